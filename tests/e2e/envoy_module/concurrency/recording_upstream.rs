//! Upstream that records the time of each request.
//!
//! Guarantees:
//! - A recorded time is part of the time in which the request needs a permit, never longer.
//! - So the number of overlapping times is a lower bound of the permits in use, on any machine.
//! - A request ends when its response is sent, or when its client is about to disconnect.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::waiting::{now, until};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub struct RecordingUpstream {
    pub address: SocketAddr,
    state: Arc<UpstreamState>,
}

struct UpstreamState {
    times: Mutex<HashMap<u64, RequestTimes>>,
    /// Requests without a response, on open connections.
    in_flight: AtomicUsize,
    /// The number of requests so far whose response is held.
    held: AtomicUsize,
    /// The number of held responses that may be sent.
    released: Semaphore,
    requests: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestTimes {
    arrived: Option<Instant>,
    ended: Option<Instant>,
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: u64,
    number: String,
    /// The duration at the upstream in milliseconds, or any text for a response that is held.
    hold: String,
}

impl Request {
    pub fn headers<'r>(&'r self, key: &'r str) -> [(&'r str, &'r str); 3] {
        [("x-api-key", key), ("x-number", &self.number), ("x-hold", &self.hold)]
    }
}

impl RecordingUpstream {
    /// Listens on a free port until the test binary exits.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(UpstreamState {
            times: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            released: Semaphore::new(0),
            requests: AtomicU64::new(0),
        });
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(accept(listener, serving));
        });
        Self { address, state }
    }

    pub fn new_request(&self, hold: &impl ToString) -> Request {
        let id = self.state.requests.fetch_add(1, SeqCst);
        Request { id, number: id.to_string(), hold: hold.to_string() }
    }

    /// Returns the number of requests so far whose response is held.
    pub fn held(&self) -> usize {
        self.state.held.load(SeqCst)
    }

    /// Sends this many held responses, also later ones.
    pub fn release(&self, responses: usize) {
        self.state.released.add_permits(responses);
    }

    /// Records that a request needs no permit from this instant on.
    pub fn end_at(&self, request: u64, at: Instant) {
        self.state.end_at(request, at);
    }

    pub fn wait_for_in_flight(&self, count: usize) {
        until("requests in flight at the upstream", || match self.state.in_flight.load(SeqCst) {
            found if found == count => Ok(()),
            found => Err(format!("{found}, not {count}")),
        })
        .unwrap();
    }

    /// Returns the number of requests that arrived.
    pub fn arrived(&self) -> usize {
        self.state.times.lock().values().filter(|times| times.arrived.is_some()).count()
    }

    /// Returns the largest number of requests that needed a permit at the same time.
    pub fn most_in_flight(&self) -> usize {
        self.most_in_flight_since(None)
    }

    /// As [`RecordingUpstream::most_in_flight`], of the requests that arrived since an instant.
    pub fn most_in_flight_since(&self, since: Option<Instant>) -> usize {
        let times = self.state.times.lock();
        let arrived = times.values().filter_map(|times| Some((times.arrived?, times.ended)));
        largest_overlap(arrived.filter(|(arrived, _)| since.is_none_or(|since| since <= *arrived)))
    }
}

/// Returns the largest number of intervals that overlap. An interval without an end is endless.
fn largest_overlap(intervals: impl Iterator<Item = (Instant, Option<Instant>)>) -> usize {
    let mut events = Vec::new();
    for (begin, end) in intervals.filter(|(begin, end)| end.is_none_or(|end| *begin < end)) {
        events.push((begin, 1));
        events.extend(end.map(|end| (end, -1)));
    }
    // Ends come before begins of the same instant.
    events.sort_unstable();
    let mut count = 0_isize;
    let counts = events.into_iter().map(|(_, change)| {
        count += change;
        count
    });
    usize::try_from(counts.max().unwrap_or_default()).unwrap()
}

impl UpstreamState {
    fn arrive(&self, request: u64) {
        self.in_flight.fetch_add(1, SeqCst);
        self.times.lock().entry(request).or_default().arrived = Some(now());
    }

    fn end_at(&self, request: u64, at: Instant) {
        let mut times = self.times.lock();
        let ended = &mut times.entry(request).or_default().ended;
        *ended = Some(ended.map_or(at, |earlier| earlier.min(at)));
    }

    async fn hold(&self, hold: &str) {
        if let Ok(millis) = hold.parse() {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        } else {
            self.held.fetch_add(1, SeqCst);
            self.released.acquire().await.unwrap().forget();
        }
    }
}

async fn accept(listener: std::net::TcpListener, state: Arc<UpstreamState>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move { serve(stream, &state).await });
    }
}

/// Serves the requests of one connection until the proxy closes it.
async fn serve(mut stream: TcpStream, state: &UpstreamState) {
    while let Some(head) = read_head(&mut stream).await {
        let header = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_else(|| panic!("no {name} in {head}"))
        };
        let request = header("x-number").parse().unwrap();
        state.arrive(request);
        let is_open = tokio::select! {
            () = state.hold(header("x-hold")) => true,
            // A request without a body: the proxy sends no more bytes.
            _ = stream.read_u8() => false,
        };
        state.in_flight.fetch_sub(1, SeqCst);
        if !is_open {
            return;
        }
        // The permit is in use at least until the response is sent.
        state.end_at(request, now());
        if stream.write_all(RESPONSE).await.is_err() {
            return;
        }
    }
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut part) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(count @ 1..) => head.extend_from_slice(&part[..count]),
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

#[test]
fn requests_that_touch_do_not_overlap() {
    let begin = now();
    let at = |millis| begin + Duration::from_millis(millis);
    let overlap = |intervals: &[(u64, u64)]| {
        largest_overlap(intervals.iter().map(|&(from, to)| (at(from), Some(at(to)))))
    };
    assert_eq!(overlap(&[]), 0);
    assert_eq!(overlap(&[(0, 5), (5, 9), (5, 7)]), 2);
    assert_eq!(overlap(&[(0, 5), (4, 9), (8, 9)]), 2);
    assert_eq!(overlap(&[(5, 4)]), 0, "the client disconnected before the arrival");
    assert_eq!(largest_overlap([(at(0), None), (at(9), Some(at(10)))].into_iter()), 2);
}
