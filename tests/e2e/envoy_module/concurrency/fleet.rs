//! Several Envoys with two workers each share one limit.
//!
//! Guarantees:
//! - Thousands of requests are aborted, by a closed or a reset connection.
//! - Aborts also hit requests that wait in a queue.
//!
//! Not covered:
//! - Envoy releases a permit some microseconds before it resets the aborted upstream request. So an
//!   aborted request counts until its client disconnects.
//!
//! `SLUICEGATE_ABORTED_REQUESTS` sets the number of aborted requests.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::SockRef;

use super::recording_upstream::RecordingUpstream;
use super::{Fleet, KEY, REJECTED, SHARED, STRICT};
use crate::support::dice::{Dice, seed};
use crate::support::waiting::{PATIENCE, now};

const LIMIT: usize = 12;
const ENVOYS: usize = 3;
const CLIENTS: usize = 40;

/// The longest times of requests at the upstream in milliseconds, one for each round. On a busy
/// machine, the first one may be too short for many requests at once.
const LONGEST_HOLDS: [u64; 3] = [20, 80, 320];

/// The number of aborted requests of each round.
fn aborted_requests() -> usize {
    let variable = std::env::var("SLUICEGATE_ABORTED_REQUESTS");
    variable.map_or(2_000, |count| count.parse().unwrap())
}

/// The outcomes of the requests.
#[derive(Debug, Default)]
struct Outcomes {
    completed: AtomicUsize,
    rejected: AtomicUsize,
    closed: AtomicUsize,
    reset: AtomicUsize,
}

impl Outcomes {
    fn aborted(&self) -> usize {
        self.closed.load(Relaxed) + self.reset.load(Relaxed)
    }
}

/// A client that aborts requests at random.
struct AbortingClient<'f> {
    ingress: SocketAddr,
    upstream: &'f RecordingUpstream,
    dice: Dice,
    longest_hold: u64,
    outcomes: &'f Outcomes,
}

impl AbortingClient<'_> {
    fn run(&mut self) {
        let (mut aborted, count) = (0, aborted_requests() / CLIENTS);
        while aborted < count {
            aborted += usize::from(self.send());
        }
    }

    /// Sends a request. Returns `true` if it was aborted.
    fn send(&mut self) -> bool {
        let request = self.upstream.new_request(&self.dice.up_to(self.longest_hold));
        let mut stream = TcpStream::connect(self.ingress).unwrap();
        let mut text = "GET / HTTP/1.1\r\nhost: edge\r\n".to_owned();
        for (name, value) in request.headers(KEY) {
            text.extend([name, ": ", value, "\r\n"]);
        }
        text.push_str("\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let abort_after = Duration::from_micros(1 + self.dice.up_to(30_000));
        let is_patient = self.dice.once_in(3);
        let timeout = if is_patient { PATIENCE } else { abort_after };
        stream.set_read_timeout(Some(timeout)).unwrap();
        let mut head = [0; 12];
        if stream.read_exact(&mut head).is_ok() {
            self.count(&head);
            return false;
        }
        assert!(!is_patient, "no response");
        self.upstream.end_at(request.id, now());
        self.abort(&stream);
        true
    }

    fn count(&self, head: &[u8]) {
        let status = std::str::from_utf8(&head[9..]).unwrap();
        let count = match status.parse() {
            Ok(200) => &self.outcomes.completed,
            Ok(REJECTED) => &self.outcomes.rejected,
            _ => panic!("status {status}"),
        };
        count.fetch_add(1, Relaxed);
    }

    fn abort(&mut self, stream: &TcpStream) {
        if self.dice.once_in(2) {
            SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            self.outcomes.reset.fetch_add(1, Relaxed);
        } else {
            self.outcomes.closed.fetch_add(1, Relaxed);
        }
    }
}

fn run_clients(fleet: &Fleet, first: u64, longest_hold: u64, outcomes: &Outcomes) {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = AbortingClient {
                ingress: fleet.ingress(number % ENVOYS),
                upstream: &fleet.upstream,
                dice: Dice::new(first.wrapping_add(number as u64)),
                longest_hold,
                outcomes,
            };
            scope.spawn(move || client.run());
        }
    });
}

#[test]
fn three_envoys_never_exceed_the_limit_and_leak_no_permit() {
    let limit = format!(
        "limit: {LIMIT}, queue: {{size: 12, timeout: 1s}}, max_duration: 2s, on_store_failure: deny"
    );
    let fleet = Fleet::start(SHARED, &limit, (2, ENVOYS));
    let (first, outcomes) = (seed(), Outcomes::default());
    println!("SLUICEGATE_SEED={first}");
    let is_full = LONGEST_HOLDS.into_iter().any(|longest_hold| {
        let before = outcomes.aborted();
        run_clients(&fleet, first.wrapping_add(longest_hold), longest_hold, &outcomes);
        let most = fleet.upstream.most_in_flight();
        println!("{outcomes:?}, {} at the upstream, {most} at once", fleet.upstream.arrived());
        assert!(most <= LIMIT, "{most} requests in flight");
        assert_eq!(outcomes.aborted() - before, aborted_requests() / CLIENTS * CLIENTS);
        LIMIT / 2 <= most
    });
    assert!(is_full, "too few requests at once prove nothing");
    fleet.upstream.wait_for_in_flight(0);
    fleet.wait_until_idle(ENVOYS);
    fleet.fill_and_empty(LIMIT, &[0]);
    fleet.fill_and_empty(LIMIT, &[0, 1, 2]);
    assert!(fleet.upstream.most_in_flight() <= LIMIT);
    for envoy in &fleet.envoys {
        assert_eq!(envoy.counter("dynamicmodulescustom.panics"), 0, "{}", envoy.log());
    }
}

#[test]
fn a_strict_limit_counts_the_requests_of_two_envoys() {
    let limit = "limit: 3, mode: strict, max_duration: 10m, on_store_failure: deny";
    let fleet = Fleet::start(STRICT, limit, (2, 2));
    std::thread::scope(|scope| {
        let send = |envoy| {
            let fleet = &fleet;
            scope.spawn(move || fleet.get_held_until_allowed(envoy))
        };
        let held = [0, 1, 1].map(send);
        fleet.upstream.wait_for_in_flight(3);
        fleet.expect_rejections();
        fleet.upstream.release(1);
        fleet.upstream.wait_for_in_flight(2);
        let next = send(0);
        fleet.upstream.wait_for_in_flight(3);
        fleet.expect_rejections();
        fleet.upstream.release(3);
        held.into_iter().chain([next]).for_each(|client| client.join().unwrap());
    });
    assert_eq!(fleet.upstream.most_in_flight(), 3);
    fleet.wait_until_idle(2);
}
