//! Upstream whose responses the test sends step by step.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::support::waiting::PATIENCE;

pub struct Visits {
    pub address: SocketAddr,
    arrived: Receiver<Visit>,
}

/// A request at the upstream, without a complete response.
pub struct Visit(TcpStream);

impl Visits {
    /// Listens on a free port until the test binary exits.
    pub fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (arrive, arrived) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let arrive = arrive.clone();
                std::thread::spawn(move || read(stream, &arrive));
            }
        });
        Self { address, arrived }
    }

    /// Waits for the next request to the upstream.
    pub fn next(&self) -> Visit {
        self.arrived.recv_timeout(PATIENCE).expect("no request arrived")
    }

    /// Returns the next request to the upstream if it arrives soon.
    pub fn try_next(&self) -> Option<Visit> {
        self.arrived.recv_timeout(Duration::from_millis(5)).ok()
    }
}

fn read(mut stream: TcpStream, arrive: &Sender<Visit>) {
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    while !is_whole(&request) {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(got) => request.extend_from_slice(&part[..got]),
        }
    }
    let _ = arrive.send(Visit(stream));
}

/// True if the headers and the announced body have arrived. Closing a connection with unread bytes
/// would reset it.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |length| length.trim().parse().unwrap());
    end + 4 + length <= request.len()
}

impl Visit {
    /// Sends a complete 200 response.
    pub fn answer(mut self) {
        let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
        self.0.write_all(answer.as_bytes()).unwrap();
    }

    /// Sends a complete 503 response.
    pub fn refuse(mut self) {
        let answer =
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
        self.0.write_all(answer.as_bytes()).unwrap();
    }

    /// Sends the headers and the first part of the response body.
    pub fn begin(&mut self) {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
        self.0.write_all(format!("{head}2\r\nok\r\n").as_bytes()).unwrap();
    }

    /// Sends the headers and an endless body, which exceeds all buffers on the way.
    pub fn stream(&mut self) {
        let mut stream = self.0.try_clone().unwrap();
        std::thread::spawn(move || {
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            // Sends until the client or the proxy closes its connection.
            let mut sent = stream.write_all(head.as_bytes());
            while sent.is_ok() {
                sent = stream.write_all(&[b'x'; 16 * 1024]);
            }
        });
    }

    /// Accepts a WebSocket upgrade and sends the first bytes.
    pub fn switch(&mut self) {
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket";
        self.0.write_all(format!("{head}\r\n\r\nhello").as_bytes()).unwrap();
    }

    /// Sends the rest of the response body.
    pub fn end(mut self) {
        self.0.write_all(b"0\r\n\r\n").unwrap();
    }

    /// Closes the connection without sending more.
    pub fn reset(self) {
        drop(self.0);
    }
}
