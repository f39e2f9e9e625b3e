//! The requests in flight, as a backend sees them.
//!
//! Guarantees:
//! - A request counts only while its permit cannot have expired, so a late task counts nothing.
//! - So the number of requests is a lower bound of the permits in use, on any machine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::waiting::{now, until};

#[derive(Debug)]
pub(in crate::store::redis) struct BackendLoad {
    limit: i64,
    max_duration: Duration,
    state: Mutex<LoadState>,
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Default)]
struct LoadState {
    requests: HashMap<u64, Request>,
    entered: u64,
    max_in_flight: i64,
    /// The time at which requests in flight first reached the limit since the last reset.
    full_at: Option<Instant>,
    /// The share that the most recently stopped replica had when it stopped.
    share_stopped: i64,
    max_allowance: i64,
    excess: i64,
    late_releases: u64,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// The earliest time at which the permit may expire.
    expires: Instant,
    /// `true` if its replica was stopped between its decision and its reply.
    was_delayed: bool,
}

/// A counted request, until [`BackendLoad::leave`].
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) struct Entered {
    number: u64,
    expires: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Usual,
    /// Each request lasts until its permit may expire.
    Held,
    Finished,
}

impl BackendLoad {
    pub(in crate::store::redis) fn new(limit: i64, max_duration: Duration) -> Arc<Self> {
        let (state, phase) = (Mutex::default(), watch::Sender::new(Phase::Usual));
        Arc::new(Self { limit, max_duration, state, phase })
    }

    /// Counts a request whose permit was acquired by a call that started at `asked`.
    pub(in crate::store::redis) fn enter(&self, asked: Instant, was_delayed: bool) -> Entered {
        let expires = asked + self.max_duration;
        let mut state = self.state.lock();
        state.entered += 1;
        let number = state.entered;
        state.requests.insert(number, Request { expires, was_delayed });
        let (inside, delayed) = state.count();
        let allowance = delayed.min(state.share_stopped);
        state.max_in_flight = state.max_in_flight.max(inside);
        state.max_allowance = state.max_allowance.max(allowance);
        state.excess = state.excess.max(inside - allowance - self.limit);
        if self.limit <= inside {
            state.full_at.get_or_insert_with(now);
        }
        Entered { number, expires }
    }

    /// Ends a request. Its caller releases the permit afterwards.
    pub(in crate::store::redis) fn leave(&self, request: Entered) {
        self.state.lock().requests.remove(&request.number);
    }

    /// Records the reply to the release of a permit that a call acquired from `asked` on. A busy
    /// machine may release it after its expiry.
    pub(super) fn record_release(&self, asked: Instant) {
        if asked + self.max_duration <= now() {
            self.state.lock().late_releases += 1;
        }
    }

    pub(super) fn late_releases(&self) -> u64 {
        self.state.lock().late_releases
    }

    /// Waits for `duration`, and longer while requests are held.
    pub(in crate::store::redis) async fn wait(&self, request: Entered, duration: Duration) {
        let mut phase = self.phase.subscribe();
        let _ = timeout(duration, phase.wait_for(|phase| *phase == Phase::Finished)).await;
        let left = request.expires.saturating_duration_since(now());
        let _ = timeout(left, phase.wait_for(|phase| *phase != Phase::Held)).await;
    }

    pub(in crate::store::redis) fn in_flight(&self) -> i64 {
        self.state.lock().count().0
    }

    /// Holds all requests until as many are in flight as the limit allows, then ends them.
    pub(in crate::store::redis) fn fill(&self) -> Result<(), String> {
        self.phase.send_replace(Phase::Held);
        let filled = until("the limit is reached", || match self.in_flight() {
            inside if inside == self.limit => Ok(()),
            inside => Err(format!("{inside} inside")),
        });
        self.phase.send_replace(Phase::Usual);
        filled
    }

    /// Waits until this number of further requests has entered.
    pub(in crate::store::redis) fn wait_for_requests(&self, number: u64) {
        let before = self.state.lock().entered;
        until("requests enter", || match self.state.lock().entered - before {
            entered if number <= entered => Ok(()),
            entered => Err(format!("{entered} of {number}")),
        })
        .unwrap();
    }

    pub(in crate::store::redis) fn finish(&self) {
        self.phase.send_replace(Phase::Finished);
    }

    pub(in crate::store::redis) fn is_finished(&self) -> bool {
        *self.phase.borrow() == Phase::Finished
    }

    pub(super) fn forget_full(&self) {
        self.state.lock().full_at = None;
    }

    pub(super) fn full_at(&self) -> Option<Instant> {
        self.state.lock().full_at
    }

    pub(super) fn set_share_stopped(&self, share: i64) {
        self.state.lock().share_stopped = share;
    }

    pub(in crate::store::redis) fn max_in_flight(&self) -> i64 {
        self.state.lock().max_in_flight
    }

    pub(in crate::store::redis) fn summary(&self) -> String {
        let (state, limit) = (self.state.lock(), self.limit);
        let LoadState { entered, max_in_flight, max_allowance, .. } = *state;
        format!(
            "{entered} requests, at most {max_in_flight} inside of {limit}, allowance {max_allowance}"
        )
    }
}

impl LoadState {
    /// Removes requests whose permits may have expired. Returns the number of the others, and how
    /// many of them were delayed.
    fn count(&mut self) -> (i64, i64) {
        let at = now();
        self.requests.retain(|_, request| at < request.expires);
        let delayed = self.requests.values().filter(|request| request.was_delayed).count();
        let count = |number: usize| i64::try_from(number).unwrap();
        (count(self.requests.len()), count(delayed))
    }
}

pub(in crate::store::redis) fn assert_within_limit(load: &BackendLoad) {
    let state = load.state.lock();
    let (above, most) = (state.excess, state.max_in_flight);
    assert!(above <= 0, "{above} too many inside, {most} at most");
}

#[test]
fn requests_count_until_they_end_or_may_expire() {
    let load = BackendLoad::new(1, Duration::from_secs(600));
    let first = load.enter(now(), false);
    assert_eq!(load.in_flight(), 1);
    load.leave(first);
    assert_eq!(load.in_flight(), 0);
    for _ in 0..2 {
        load.enter(now(), false);
    }
    assert_eq!((load.max_in_flight(), load.state.lock().excess), (2, 1));
    let expiring = BackendLoad::new(1, Duration::ZERO);
    for _ in 0..2 {
        expiring.enter(now(), false);
    }
    assert_eq!(expiring.in_flight(), 0);
    assert_within_limit(&expiring);
}

#[test]
fn delayed_requests_count_up_to_the_share_of_the_stopped_replica() {
    let load = BackendLoad::new(1, Duration::from_secs(600));
    load.set_share_stopped(1);
    for _ in 0..2 {
        load.enter(now(), true);
    }
    assert_within_limit(&load);
    load.enter(now(), true);
    assert_eq!(load.state.lock().excess, 1);
}
