//! Sends HTTP/1.1 requests and parses the responses: one on its own connection, or several on one.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::waiting::PATIENCE;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// In order of arrival, with lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the first header with this lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Replaces invalid UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn get(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> std::io::Result<Reply> {
    call(to, "GET", path, headers, None)
}

/// Sends one request and reads the response.
pub fn call(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut request = Vec::new();
    write!(request, "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n")?;
    for (name, value) in headers {
        write!(request, "{name}: {value}\r\n")?;
    }
    if let Some(body) = body {
        write!(request, "content-length: {}\r\n", body.len())?;
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body.unwrap_or_default());
    stream.write_all(&request)?;
    let answer = read_answer(&mut stream)?;
    parse(&answer).ok_or_else(|| Error::new(ErrorKind::InvalidData, "not an HTTP/1 answer"))
}

/// A connection for several requests, whose responses have an announced length.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub fn open(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Sends a request for `/`, and returns the status after the whole response arrived.
    pub fn get(&mut self, headers: &[(&str, &str)]) -> std::io::Result<u16> {
        let mut request = b"GET / HTTP/1.1\r\nhost: edge\r\n".to_vec();
        for (name, value) in headers {
            write!(request, "{name}: {value}\r\n")?;
        }
        request.extend_from_slice(b"\r\n");
        self.stream.write_all(&request)?;
        Ok(self.read_reply()?.status)
    }

    fn read_reply(&mut self) -> std::io::Result<Reply> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some((reply, length)) = first_reply(&self.unread) {
                self.unread.drain(..length);
                return Ok(reply);
            }
            match self.stream.read(&mut chunk)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.unread.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

/// Parses the first reply, and returns its length with the announced body.
fn first_reply(answer: &[u8]) -> Option<(Reply, usize)> {
    let reply = parse(answer)?;
    let body: usize = reply.header("content-length")?.parse().ok()?;
    let surplus = reply.body.len().checked_sub(body)?;
    Some((reply, answer.len() - surplus))
}

/// Reads until the server closes the connection, or until the body has its announced length: some
/// servers, such as `chromedriver`, leave the connection open.
fn read_answer(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut answer, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let count = stream.read(&mut chunk)?;
        answer.extend_from_slice(&chunk[..count]);
        if count == 0 || has_announced_length(&answer) {
            return Ok(answer);
        }
    }
}

fn has_announced_length(answer: &[u8]) -> bool {
    let is_complete = |reply: &Reply| {
        let length = reply.header("content-length").and_then(|length| length.parse().ok());
        length.is_some_and(|length: usize| length <= reply.body.len())
    };
    parse(answer).as_ref().is_some_and(is_complete)
}

fn parse(answer: &[u8]) -> Option<Reply> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let reply = Reply { status, headers, body: answer[end + 4..].to_vec() };
    if reply.header("transfer-encoding") == Some("chunked") {
        let body = unchunked(&reply.body)?;
        return Some(Reply { body, ..reply });
    }
    Some(reply)
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line_end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line_end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let from = line_end + 2;
        body.extend_from_slice(rest.get(from..from + size)?);
        rest = rest.get(from + size + 2..)?;
    }
}

#[test]
fn replies_on_one_connection_are_separated() {
    let raw = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 429 No";
    assert_eq!(first_reply(raw).map(|(reply, length)| (reply.status, length)), Some((200, 40)));
    assert!(first_reply(&raw[..39]).is_none() && first_reply(&raw[40..]).is_none());
}

#[test]
fn chunked_response_body_is_decoded() {
    let raw =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let reply = parse(raw).unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, "abcde"));
}
