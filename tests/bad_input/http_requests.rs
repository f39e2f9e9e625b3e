//! Tests of malformed, oversized and unfinished HTTP requests.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::{Fixture, LIMITS};
use crate::support::http1;
use crate::support::waiting::{Ends, PATIENCE, now};

const GOOD: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"good"}]}]}"#;

#[test]
fn malformed_body_gets_400_and_charges_nothing() {
    let mut fixture = Fixture::with(LIMITS, &[]);
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
        let label = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        fixture.assert_unaffected(&label, |fixture| {
            let reply = fixture.json(body);
            assert_eq!((reply.status, &*reply.text()), (400, "Bad Request\n"), "{label}");
        });
    }
}

#[test]
fn truncated_body_charges_nothing() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    fixture.assert_unaffected("a body that breaks off", |fixture| {
        let mut stream = post(fixture.service.http, &format!("content-length: {}", GOOD.len() + 1));
        stream.write_all(GOOD.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let reply = read_to_end(&mut stream);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
    });
}

#[test]
fn oversized_content_length_gets_413_before_the_body() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    fixture.assert_unaffected("a hundred megabytes", |fixture| {
        let mut stream = post(fixture.service.http, "content-length: 104857600");
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    });
}

#[test]
fn oversized_chunked_body_gets_413_at_one_mebibyte() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    fixture.assert_unaffected("two megabytes in chunks", |fixture| {
        let mut stream = post(fixture.service.http, "transfer-encoding: chunked");
        // 16 chunks are 1 MiB, the maximum body. The server must refuse at chunk 17, before the
        // end.
        for _ in 0..17 {
            stream.write_all(&chunk()).unwrap();
        }
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    });
    fixture.assert_unaffected("a hundred megabytes in chunks", |fixture| {
        let mut stream = post(fixture.service.http, "transfer-encoding: chunked");
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let sent = (0..1_600).take_while(|_| stream.write_all(&chunk()).is_ok()).count();
        // 800 chunks are far above 1 MiB plus the buffers of both sockets.
        assert!(sent < 800, "{} KiB were taken", sent * 64);
    });
}

fn chunk() -> Vec<u8> {
    [b"10000\r\n".as_slice(), &vec![b' '; 64 * 1024], b"\r\n"].concat()
}

#[test]
fn oversized_headers_random_bytes_and_conflicting_lengths_are_refused() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let many = "x: y\r\n".repeat(1_000);
    let long = format!("x: {}\r\n", "y".repeat(1_000_000));
    for headers in [many, long] {
        fixture.assert_unaffected("a head without measure", |fixture| {
            let mut stream = connect(fixture.service.http);
            // Ignores write errors: the server may close the connection before it reads all
            // headers.
            let _ = stream.write_all(format!("POST /json HTTP/1.1\r\n{headers}\r\n").as_bytes());
            let reply = read_to_end(&mut stream);
            assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431 "), "{reply}");
        });
    }
    fixture.assert_unaffected("noise", |fixture| {
        let Fixture { service, .. } = fixture;
        for port in [service.http, service.grpc, service.admin, service.metrics] {
            let mut stream = connect(port);
            let _ = stream.write_all(&[0xff; 4_096]);
            let _ = stream.shutdown(Shutdown::Write);
            read_to_end(&mut stream);
        }
    });
    fixture.assert_unaffected("two lengths", |fixture| {
        let length = GOOD.len();
        let both = format!("content-length: {length}\r\ncontent-length: {}", length + 1);
        let mut stream = post(fixture.service.http, &both);
        let _ = stream.write_all(GOOD.as_bytes());
        let reply = read_to_end(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    });
}

/// Takes 10 s of real time, because each client with a body sends until the server's timeout ends
/// its connection. A head may take 30 s; `edge::http::timeouts` waits for the end of a shorter
/// timeout.
#[test]
fn unfinished_requests_time_out_while_others_succeed() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let http = fixture.service.http;
    fixture.assert_unaffected("clients that never finish", |fixture| {
        let (never, bodies_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let body = |header: &str, piece: &[u8]| {
            let reply = trickle(|| post(http, header), piece, &never);
            reply.unwrap()
        };
        std::thread::scope(|scope| {
            let ends = Ends(&bodies_ended);
            let announced = scope.spawn(|| body("content-length: 1000", b" "));
            let chunked = scope.spawn(|| body("transfer-encoding: chunked", b"1\r\n \r\n"));
            let silent = scope.spawn(|| body("content-length: 1000", b""));
            let head = scope.spawn(|| trickle(|| connect(http), b"x", &bodies_ended));
            assert_eq!(fixture.remaining("good"), 99);
            for body in [announced, chunked, silent] {
                let (reply, took) = body.join().unwrap();
                assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
                assert!(9 <= took.as_secs(), "{took:?}");
            }
            drop(ends);
            // The head has the longer timeout, which only a slow machine reaches here.
            let early = head.join().unwrap().filter(|(_, took)| took.as_secs() < 29);
            assert_eq!(early, None, "a head ended before the bodies");
        });
    });
}

/// Sends `piece` repeatedly until the server replies or disconnects. Returns the reply and the
/// duration, or `None` if `stop` is set first.
fn trickle(
    open: impl FnOnce() -> TcpStream,
    piece: &[u8],
    stop: &AtomicBool,
) -> Option<(String, Duration)> {
    let began = now();
    let mut stream = open();
    stream.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
    let mut buffer = [0; 1_024];
    while !stop.load(Relaxed) {
        let _ = stream.write_all(piece);
        let reply = match stream.read(&mut buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                assert!(began.elapsed() < PATIENCE, "not closed within {PATIENCE:?}");
                continue;
            }
            Ok(read) => String::from_utf8_lossy(&buffer[..read]).into_owned(),
            Err(_) => String::new(),
        };
        return Some((reply, began.elapsed()));
    }
    None
}

/// Connects and sends the request line and headers of a POST to `/json`, with `header`.
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

fn read_to_end(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer) {
            Ok(1..) if received.is_empty() => received.extend_from_slice(&buffer),
            Ok(1..) => {}
            Ok(0) => break,
            Err(error) => {
                let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!waited || !received.is_empty(), "the server neither answered nor closed");
                break;
            }
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

#[test]
fn malformed_explain_queries_get_400() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    for query in ["", "domain=d", "domain=d&descriptor=k", "domain=d&descriptor=k=v&hits=-1", "%ff"]
    {
        fixture.assert_unaffected(query, |fixture| {
            let path = format!("/explain?{query}");
            let reply = http1::get(fixture.service.admin, &path, &[]).unwrap();
            assert_eq!(reply.status, 400, "{query}: {}", reply.text());
        });
    }
}
