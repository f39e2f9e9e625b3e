//! Connections to the HTTP port that do not behave.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{LIMITS, Stage};
use crate::http1;
use crate::waiting::{PATIENCE, now};

const GOOD: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"good"}]}]}"#;

/// Far above the half minute that a head may take.
const LONG_PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn a_body_that_is_no_question_is_400_and_counts_nothing() {
    let mut stage = Stage::with(LIMITS, &[]);
    let not_utf8: Vec<u8> =
        GOOD.bytes().map(|byte| if byte == b'g' { 0xff } else { byte }).collect();
    let deep = "[".repeat(1_000_000);
    let bodies: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"{",
        b"null",
        &GOOD.as_bytes()[..40],
        &not_utf8,
        deep.as_bytes(),
        &[0; 99],
    ];
    for body in bodies {
        let what = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        stage.stands(&what, |stage| {
            let reply = stage.json(body);
            assert_eq!((reply.status, &*reply.text()), (400, "Bad Request\n"), "{what}");
        });
    }
}

#[test]
fn a_body_that_breaks_off_counts_nothing() {
    let mut stage = Stage::with(LIMITS, &[]);
    stage.stands("a body that breaks off", |stage| {
        let mut stream = post(stage.service.http, &format!("content-length: {}", GOOD.len() + 1));
        stream.write_all(GOOD.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let reply = read_to_end(&mut stream);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
    });
}

#[test]
fn a_hundred_megabytes_announced_are_refused_before_they_are_sent() {
    let mut stage = Stage::with(LIMITS, &[]);
    stage.stands("a hundred megabytes", |stage| {
        let mut stream = post(stage.service.http, "content-length: 104857600");
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    });
}

#[test]
fn a_hundred_megabytes_in_chunks_are_refused_at_four() {
    let mut stage = Stage::with(LIMITS, &[]);
    stage.stands("five megabytes in chunks", |stage| {
        let mut stream = post(stage.service.http, "transfer-encoding: chunked");
        // The last of these is one too much; the server must not ask for the rest.
        for _ in 0..65 {
            stream.write_all(&chunk()).unwrap();
        }
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    });
    stage.stands("a hundred megabytes in chunks", |stage| {
        let mut stream = post(stage.service.http, "transfer-encoding: chunked");
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let sent = (0..1_600).take_while(|_| stream.write_all(&chunk()).is_ok()).count();
        // Four megabytes and what the two sockets hold.
        assert!(sent < 800, "{} KiB were taken", sent * 64);
    });
}

/// 64 KiB of white space, as one chunk.
fn chunk() -> Vec<u8> {
    [b"10000\r\n".as_slice(), &vec![b' '; 64 * 1024], b"\r\n"].concat()
}

#[test]
fn heads_without_measure_and_noise_are_refused() {
    let mut stage = Stage::with(LIMITS, &[]);
    let many = "x: y\r\n".repeat(1_000);
    let long = format!("x: {}\r\n", "y".repeat(1_000_000));
    for headers in [many, long] {
        stage.stands("a head without measure", |stage| {
            let mut stream = connect(stage.service.http);
            // It may be refused, and the connection closed, before all of it is taken.
            let _ = stream.write_all(format!("POST /json HTTP/1.1\r\n{headers}\r\n").as_bytes());
            let reply = read_to_end(&mut stream);
            assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431 "), "{reply}");
        });
    }
    stage.stands("noise", |stage| {
        let Stage { service, .. } = stage;
        for port in [service.http, service.grpc, service.admin, service.metrics] {
            let mut stream = connect(port);
            let _ = stream.write_all(&[0xff; 4_096]);
            let _ = stream.shutdown(Shutdown::Write);
            read_to_end(&mut stream);
        }
    });
    stage.stands("two lengths", |stage| {
        let length = GOOD.len();
        let both = format!("content-length: {length}\r\ncontent-length: {}", length + 1);
        let mut stream = post(stage.service.http, &both);
        let _ = stream.write_all(GOOD.as_bytes());
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    });
}

/// Half a minute of wall clock: the deadlines are real, and each client goes on until it is cut off.
#[test]
fn clients_that_never_finish_are_cut_off_while_others_are_answered() {
    let mut stage = Stage::with(LIMITS, &[]);
    let http = stage.service.http;
    stage.stands("clients that never finish", |stage| {
        std::thread::scope(|scope| {
            let announced = scope.spawn(|| trickle(post(http, "content-length: 1000"), b" "));
            let chunked =
                scope.spawn(|| trickle(post(http, "transfer-encoding: chunked"), b"1\r\n \r\n"));
            let silent = scope.spawn(|| trickle(post(http, "content-length: 1000"), b""));
            let head = scope.spawn(|| trickle(connect(http), b"x"));
            assert_eq!(stage.remaining("good"), 99);
            for body in [announced, chunked, silent] {
                let (reply, took) = body.join().unwrap();
                assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
                assert!((9..20).contains(&took.as_secs()), "{took:?}");
            }
            let (reply, took) = head.join().unwrap();
            assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 408 "), "{reply}");
            assert!((29..60).contains(&took.as_secs()), "{took:?}");
        });
    });
}

/// Sends `piece` again and again until the server answers or closes; what it said, and after how long.
fn trickle(mut stream: TcpStream, piece: &[u8]) -> (String, Duration) {
    stream.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
    let began: Instant = now();
    let mut buffer = [0; 1_024];
    while began.elapsed() < LONG_PATIENCE {
        let _ = stream.write_all(piece);
        match stream.read(&mut buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(read) => {
                return (String::from_utf8_lossy(&buffer[..read]).into_owned(), began.elapsed());
            }
            Err(_) => return (String::new(), began.elapsed()),
        }
    }
    panic!("not cut off within {LONG_PATIENCE:?}");
}

/// A connection that has sent the head of a question, with this header.
fn post(to: SocketAddr, header: &str) -> TcpStream {
    let mut stream = connect(to);
    stream
        .write_all(format!("POST /json HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n").as_bytes())
        .unwrap();
    stream
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What comes until the server closes; a reset ends it as well.
fn read_to_end(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer) {
            Ok(1..) if said.is_empty() => said.extend_from_slice(&buffer),
            Ok(1..) => {}
            Ok(0) => break,
            Err(error) => {
                let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!waited || !said.is_empty(), "the server neither answered nor closed");
                break;
            }
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn the_admin_port_refuses_what_it_cannot_explain() {
    let mut stage = Stage::with(LIMITS, &[]);
    for query in ["", "domain=d", "domain=d&descriptor=k", "domain=d&descriptor=k=v&hits=-1", "%ff"]
    {
        stage.stands(query, |stage| {
            let path = format!("/explain?{query}");
            let reply = http1::get(stage.service.admin, &path, &[]).unwrap();
            assert_eq!(reply.status, 400, "{query}: {}", reply.text());
        });
    }
}
