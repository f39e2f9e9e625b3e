//! Tests of the proxy.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::waiting::{now, until};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
const LONG: Duration = Duration::from_millis(300);
const PINGS: usize = 20;

fn through() -> (Redis, Proxy) {
    let redis = Redis::start();
    let proxy = Proxy::before(Upstream::Unix(redis.socket()));
    (redis, proxy)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(crate::support::waiting::PATIENCE)).unwrap();
    stream
}

/// Sends `PING` and reads until the reply is complete or the connection closes.
fn ping(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    stream.write_all(PING)?;
    let mut answer = Vec::new();
    while answer.len() < PONG.len() {
        let mut byte = [0];
        match stream.read(&mut byte)? {
            0 => break,
            _ => answer.push(byte[0]),
        }
    }
    Ok(answer)
}

#[test]
fn proxy_passes_and_counts_bytes_in_both_directions() {
    let (_redis, proxy) = through();
    let stream = connect(&proxy);
    assert_eq!(ping(&stream).unwrap(), PONG);
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    assert_eq!(proxy.bytes(Way::ToStore), PING.len() as u64);
    assert_eq!(proxy.bytes(Way::FromStore), PONG.len() as u64);
}

#[test]
fn delays_of_several_bytes_overlap() {
    let (_redis, proxy) = through();
    let mut stream = connect(&proxy);
    proxy.set(Way::FromStore, Flow::Delay(LONG));
    let began = now();
    for sent in 1..=PINGS as u64 {
        stream.write_all(PING).unwrap();
        let read = || match proxy.bytes(Way::FromStore) {
            bytes if bytes == PONG.len() as u64 * sent => Ok(()),
            bytes => Err(bytes.to_string()),
        };
        until("the store answers", read).unwrap();
    }
    let all_asked = began.elapsed();
    let mut answers = [0; PONG.len() * PINGS];
    stream.read_exact(&mut answers).unwrap();
    assert!(LONG <= began.elapsed());
    // One delay after another would take twenty times as long as one.
    assert!(began.elapsed() < all_asked + LONG * 10, "delays of one direction overlap");
}

#[test]
fn silent_proxy_closes_no_connection_and_loses_no_bytes() {
    let (_redis, proxy) = through();
    let mut stream = connect(&proxy);
    assert_eq!(ping(&stream).unwrap(), PONG);
    proxy.go_silent();
    stream.write_all(PING).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let silent = stream.read(&mut [0]).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
    proxy.pass();
    stream.set_read_timeout(Some(crate::support::waiting::PATIENCE)).unwrap();
    let mut answer = [0; PONG.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, PONG);
}

#[test]
fn proxy_cut_closes_open_connections_and_refuse_closes_new_ones() {
    let (_redis, proxy) = through();
    let streams = [connect(&proxy), connect(&proxy)];
    for stream in &streams {
        assert_eq!(ping(stream).unwrap(), PONG);
    }
    proxy.cut();
    for stream in &streams {
        assert!(!matches!(ping(stream), Ok(answer) if !answer.is_empty()));
    }
    assert_eq!(ping(&connect(&proxy)).unwrap(), PONG);
    proxy.refuse(true);
    assert!(!matches!(ping(&connect(&proxy)), Ok(answer) if !answer.is_empty()));
}

#[test]
fn half_close_toward_client_keeps_store_direction_open() {
    let (_redis, proxy) = through();
    let mut stream = connect(&proxy);
    assert_eq!(ping(&stream).unwrap(), PONG);
    proxy.half_close(Way::FromStore);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the client sees the end");
    stream.write_all(PING).unwrap();
    let heard = || match proxy.bytes(Way::ToStore) {
        bytes if bytes == 2 * PING.len() as u64 => Ok(()),
        bytes => Err(bytes.to_string()),
    };
    until("the other direction flows", heard).unwrap();
    assert_eq!(proxy.open(), 1);
}

#[test]
fn new_upstream_of_the_proxy_applies_only_to_new_connections() {
    let (_redis, proxy) = through();
    let old = connect(&proxy);
    assert_eq!(ping(&old).unwrap(), PONG);
    let (_other, second) = through();
    proxy.set_upstream(Upstream::Tcp(second.address()));
    assert_eq!(ping(&connect(&proxy)).unwrap(), PONG);
    assert_eq!(ping(&old).unwrap(), PONG);
    assert_eq!((proxy.accepted(), second.accepted()), (2, 1));
}

#[test]
fn proxy_rewrites_text_that_is_split_across_writes() {
    let redis = Redis::start();
    let proxy = Proxy::rewriting(Upstream::Unix(redis.socket()), b"before", b"after!");
    let mut stream = connect(&proxy);
    for part in [&b"*2\r\n$4\r\nECHO\r\n$9\r\nbebef"[..], b"or", b"e.\r\n"] {
        stream.write_all(part).unwrap();
        stream.flush().unwrap();
    }
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$9\r\nbeafter!.\r\n");
}

#[test]
fn bytes_dropped_by_the_proxy_never_arrive_later() {
    let (_redis, proxy) = through();
    let mut stream = connect(&proxy);
    proxy.set(Way::FromStore, Flow::Lose);
    stream.write_all(PING).unwrap();
    let lost = || match proxy.bytes(Way::FromStore) {
        0 => Err("no answer yet".to_owned()),
        _ => Ok(()),
    };
    until("the store answers", lost).unwrap();
    proxy.pass();
    stream.write_all(b"*2\r\n$4\r\nECHO\r\n$4\r\nnext\r\n").unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$4\r\nnext\r\n");
}

#[test]
fn proxy_holds_the_replies_after_a_number_of_script_calls() {
    let (redis, proxy) = through();
    let mut stream = connect(&proxy);
    let digest = redis.command(&["SCRIPT", "LOAD", "return 'PONG'"]).text();
    let call = format!("*3\r\n$7\r\nEVALSHA\r\n$40\r\n{digest}\r\n$1\r\n0\r\n");
    let mut answer = [0; 10];
    proxy.hold_after(1);
    stream.write_all(call.as_bytes()).unwrap();
    stream.read_exact(&mut answer).unwrap();
    stream.write_all(call.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let held = stream.read(&mut answer).unwrap_err();
    assert_eq!(held.kind(), std::io::ErrorKind::WouldBlock);
}
