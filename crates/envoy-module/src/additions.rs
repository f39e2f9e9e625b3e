//! Adds the events of one filter config to Envoy's counters, 100 ms after the first of them.
//!
//! For each addition to a counter with labels, Envoy encodes the labels and searches the counter. So
//! the events are summed here, and Envoy's main thread adds the sums.
//!
//! Guarantees:
//! - An event is added once, at most about 100 ms later, or at the end of the config.
//! - The main thread adds at most ten times a second for each config.
//!
//! Not covered:
//! - The config may end while the limiter's thread asks for an addition. Then its last events may
//!   be lost, because only Envoy's threads can add to counters.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Event;
use crate::limiter::Limiter;
use crate::sums::{AddOutcome, EventSums, Sums};

/// The time from the first event to the addition of its sums.
const ADDITION_DELAY: Duration = Duration::from_millis(100);

/// A function that makes Envoy call the hook `config_scheduled`. It may run on any thread, and does
/// nothing after the end of the config.
pub(crate) type ScheduleFn = Arc<dyn Fn() + Send + Sync>;

/// The events of one filter config that wait for an addition to Envoy's counters.
pub(crate) struct Additions {
    sums: EventSums,
    schedule: ScheduleFn,
    /// Its thread has the timer.
    limiter: Limiter,
}

thread_local! {
    /// Set in the thread of a limiter, which must not add to Envoy's counters.
    static IS_LIMITER_THREAD: Cell<bool> = const { Cell::new(false) };
}

impl Additions {
    pub(crate) fn new(schedule: ScheduleFn, limiter: Limiter) -> Self {
        Self { sums: EventSums::default(), schedule, limiter }
    }

    /// Sums events until the next addition. Returns `false` if it accepts none of them.
    pub(crate) fn sum<'e>(&self, events: impl Iterator<Item = Event<'e>>) -> bool {
        let outcome = self.sums.add(events);
        if outcome == AddOutcome::First {
            self.start_timer();
        }
        outcome != AddOutcome::Refused
    }

    /// Asks for an addition of events that are not summed here.
    pub(crate) fn request(&self) {
        self.sum(std::iter::empty());
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&self) -> Sums {
        self.sums.take()
    }

    fn start_timer(&self) {
        let schedule = Arc::clone(&self.schedule);
        self.limiter.run_after(ADDITION_DELAY, move || {
            IS_LIMITER_THREAD.set(true);
            // Envoy may destroy the config in this call, which then was its last user.
            schedule();
        });
    }
}

/// Returns `true` if this thread may add to Envoy's counters.
pub(crate) fn is_envoy_thread() -> bool {
    !IS_LIMITER_THREAD.get()
}
