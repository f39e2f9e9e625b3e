//! A load generator that uses little CPU: prebuilt requests over HTTP/2 (RFC 9113).
//!
//! On two processors, a client that uses more CPU than the service slows it down and measures
//! itself. This client uses a fraction of tonic's CPU time. It has one task per connection, and a
//! check needs no allocation and no header compression. The client sends checks at a [`Pace`],
//! verifies that each decision is OK, and records its latency.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior};

use super::{CONNECTIONS, KEYS, at_random, question};

/// Connection preface, empty SETTINGS, and a `WINDOW_UPDATE` to the largest receive window.
const HELLO: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";
const SETTINGS_ARE_HEARD: &[u8] = &[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const FRAME: usize = 9;
/// Checks that become due within this time are sent together.
const TICK: Duration = Duration::from_millis(1);
/// Send window in bytes before the server's first `WINDOW_UPDATE` (RFC 9113, 6.9.2).
const ROOM: i64 = 65_535;
/// Preallocated entries per connection. Growing a list of half a million entries copies it for
/// tens of milliseconds, on all connections at about the same time.
const MOST: usize = 1 << 20;
/// Maximum checks in flight per connection; less than the service's limit.
const MOST_AT_ONCE: usize = 1_000;

/// When checks are sent.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// Open loop: this rate over all connections, independent of the replies.
    Due { per_second: f64 },
    /// Closed loop: this many checks in flight on each connection.
    Ever { in_flight: usize },
}

/// One decision: its due time since the start, and its latency from then.
pub(crate) struct Taken {
    pub(crate) due: Duration,
    pub(crate) took: Duration,
}

/// Sends checks on all connections from `began` until `over`, then awaits the pending replies.
pub(crate) async fn ask(
    address: SocketAddr,
    pace: Pace,
    began: Instant,
    over: Arc<AtomicBool>,
) -> Vec<Taken> {
    let mut tasks = Vec::new();
    for connection in 0..CONNECTIONS {
        let asking = Asking::connect(address, pace, began, connection).await;
        tasks.push(tokio::spawn(asking.until(Arc::clone(&over))));
    }
    let mut taken = Vec::new();
    for task in tasks {
        taken.push(task.await.unwrap());
    }
    // Flattened after all tasks have ended: the copy would delay connections that still receive.
    taken.into_iter().flatten().collect()
}

/// One check. `due` is set until its stream ends, which can be after the reply.
struct Asked {
    due: Option<Instant>,
    has_answer: bool,
}

/// One connection. Check number n, counted from 0, uses stream 2n + 1.
struct Asking {
    stream: TcpStream,
    pace: Pace,
    began: Instant,
    connection: usize,
    questions: Vec<Question>,
    /// Bytes to send.
    out: Vec<u8>,
    /// Received bytes that are not parsed yet.
    came: Vec<u8>,
    room: i64,
    asked: Vec<Asked>,
    /// Checks without a complete reply.
    waiting: usize,
    taken: Vec<Taken>,
}

impl Asking {
    async fn connect(address: SocketAddr, pace: Pace, began: Instant, connection: usize) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(HELLO).await.unwrap();
        let questions = (0..KEYS).map(|key| Question::of(&question(key).encode_to_vec())).collect();
        let (out, came) = (Vec::new(), Vec::new());
        let (asked, taken) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST));
        Self {
            stream,
            pace,
            began,
            connection,
            questions,
            out,
            came,
            room: ROOM,
            asked,
            waiting: 0,
            taken,
        }
    }

    async fn until(mut self, over: Arc<AtomicBool>) -> Vec<Taken> {
        let mut ticks: Interval = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut end = None;
        loop {
            end = end.or_else(|| over.load(Relaxed).then(Instant::now));
            let is_all_asked = self.ask_what_is_due(end);
            if end.is_some() && is_all_asked && self.waiting == 0 {
                return self.taken;
            }
            self.stream.write_all(&self.out).await.unwrap();
            self.out.clear();
            tokio::select! {
                length = self.stream.read_buf(&mut self.came) => {
                    assert_ne!(length.unwrap(), 0, "the connection ended");
                    self.hear();
                }
                _ = ticks.tick() => {}
            }
        }
    }

    /// Sends the checks that are due before `end`, and returns `true` if none of them remains.
    fn ask_what_is_due(&mut self, end: Option<Instant>) -> bool {
        let now = end.unwrap_or_else(Instant::now);
        if end.is_some() && matches!(self.pace, Pace::Ever { .. }) {
            return true;
        }
        while let Some(due) = self.next_due(now).filter(|due| *due <= now) {
            let number = self.asked.len();
            let among_all = number * CONNECTIONS + self.connection;
            let question = &self.questions[(at_random(among_all as u64) % KEYS) as usize];
            if self.room < question.message || MOST_AT_ONCE <= self.waiting {
                return false;
            }
            self.room -= question.message;
            question.put(2 * number as u32 + 1, &mut self.out);
            self.asked.push(Asked { due: Some(due), has_answer: false });
            self.waiting += 1;
        }
        true
    }

    /// When the next check is due; `None` while enough checks are in flight.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        match self.pace {
            Pace::Ever { in_flight } => (self.waiting < in_flight).then_some(now),
            Pace::Due { per_second } => {
                let before = self.asked.len() * CONNECTIONS + self.connection;
                Some(self.began + Duration::from_secs_f64(before as f64 / per_second))
            }
        }
    }

    /// Parses the complete frames.
    fn hear(&mut self) {
        let (mut at, came) = (0, std::mem::take(&mut self.came));
        while let Some(head) = came.get(at..at + FRAME) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = came.get(at + FRAME..at + FRAME + length) else { break };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.hear_frame(head[3], head[4], stream, payload);
            at += FRAME + length;
        }
        self.came = came;
        self.came.drain(..at);
    }

    fn hear_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        match kind {
            // One frame contains one message: compression flag (1 byte), length (4 bytes), payload.
            DATA => {
                let answer = RateLimitResponse::decode(&payload[5..]).unwrap();
                assert_eq!(answer.overall_code, Code::Ok as i32);
                self.asked[stream as usize / 2].has_answer = true;
            }
            HEADERS if flags & END_STREAM != 0 => self.ends(stream, payload),
            SETTINGS if flags & ACK == 0 => self.out.extend_from_slice(SETTINGS_ARE_HEARD),
            PING if flags & ACK == 0 => {
                self.out.extend_from_slice(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]);
                self.out.extend_from_slice(payload);
            }
            WINDOW_UPDATE if stream == 0 => {
                self.room += i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
            }
            HEADERS | SETTINGS | PING | WINDOW_UPDATE => {}
            other => panic!("a frame of kind {other} for stream {stream}: {payload:?}"),
        }
    }

    /// Ends a stream. Without a reply, its trailers contain the error.
    fn ends(&mut self, stream: u32, trailers: &[u8]) {
        let asked = &mut self.asked[stream as usize / 2];
        assert!(asked.has_answer, "no answer: {}", String::from_utf8_lossy(trailers));
        let due = asked.due.take().unwrap();
        self.waiting -= 1;
        self.taken.push(Taken { due: due - self.began, took: due.elapsed() });
    }
}

/// The frames of a check for one key, on any stream.
struct Question {
    headers: Vec<u8>,
    data: Vec<u8>,
    /// Bytes that count against the send window. Header bytes do not.
    message: i64,
}

impl Question {
    fn of(message: &[u8]) -> Self {
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        // RFC 7541, 6.2.2 and appendix A: POST, http, and names 4, 1 and 31 of the static table.
        // `te` is not in that table.
        let headers = [
            vec![0x83, 0x86, 0x04],
            text("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
            [vec![0x01], text("sluicegate")].concat(),
            [vec![0x0f, 0x10], text("application/grpc")].concat(),
            [vec![0x00], text("te"), text("trailers")].concat(),
        ];
        let length = (message.len() as u32).to_be_bytes();
        let message = [&[0], &length[..], message].concat();
        Self {
            headers: frame(HEADERS, END_HEADERS, &headers.concat()),
            data: frame(DATA, END_STREAM, &message),
            message: i64::try_from(message.len()).unwrap(),
        }
    }

    fn put(&self, stream: u32, out: &mut Vec<u8>) {
        for frame in [&self.headers, &self.data] {
            let (kind, payload) = (&frame[..FRAME - 4], &frame[FRAME..]);
            out.extend_from_slice(kind);
            out.extend_from_slice(&stream.to_be_bytes());
            out.extend_from_slice(payload);
        }
    }
}

/// A frame of stream 0.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags, 0, 0, 0, 0], payload].concat()
}
