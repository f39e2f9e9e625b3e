//! Admits the waiting requests of a limit with a pace when their turns come, and takes back turns.
//!
//! Guarantees:
//! - One waiting request of a bucket sleeps until the next turn, and admits for all. No task is spawned.
//! - If that request leaves the queue, the oldest other one does so.
//! - A turn that moves to an earlier instant is noticed within one second.

use std::convert::Infallible;
use std::time::Duration;

use sluicegate_lease::clock::Clock;

use super::{Bucket, BucketState};
use crate::kernel::concurrency::limiter::LimiterEvent;
use crate::kernel::concurrency::{Pace, Permit, RequestOutcome};
use crate::kernel::units::Nanos;

/// The longest sleep until a turn, because the rate may grow in the meantime.
const MAX_SLEEP: Nanos = Nanos::SECOND;

impl Bucket {
    /// Admits waiting requests at their turns, while no other call for this bucket does. Never ends; safe
    /// to cancel.
    pub(super) async fn keep_turns(&self, clock: &Clock) -> Infallible {
        let _timer = self.1.lock().await;
        loop {
            tokio::time::sleep(self.time_to_next_turn(clock)).await;
            self.step(clock, LimiterEvent::Expire);
        }
    }

    /// Releases the permit of a request that never started, and gives back its turn.
    pub(crate) fn give_back(&self, clock: &Clock, permit: Permit) {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.give_back(now, permit);
    }

    fn time_to_next_turn(&self, clock: &Clock) -> Duration {
        let state = self.0.lock();
        let next_turn = state.limiter.pace().map_or(Nanos(u64::MAX), Pace::next_turn);
        // A turn that is due has been taken already, unless nobody waits for it.
        let sleep = next_turn.since(clock.steady()).max(Nanos::MILLI).min(MAX_SLEEP);
        Duration::from_nanos(sleep.0)
    }
}

impl BucketState {
    /// As [`Bucket::give_back`].
    pub(super) fn give_back(&mut self, now: Nanos, permit: Permit) {
        // Without a pace, the second event alone is the same.
        if self.limiter.pace().is_some() {
            self.step(now, LimiterEvent::GiveBack(permit));
        }
        let outcome = RequestOutcome::Ignored;
        self.step(now, LimiterEvent::Release { permit, outcome, rtt: None });
    }
}
