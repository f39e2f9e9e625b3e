//! Releases the checks of a step at their send times.
//!
//! A thread of its own, because a timer of Tokio has a resolution of 1 ms, longer than most checks.
//!
//! Guarantees:
//! - Checks that are due and not sent take no memory: they are a number.
//! - The thread ends with the step, or at most [`LONGEST_SLEEP`] after [`Pacer::stop`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::schedule::SendSchedule;
use crate::clock::Clock;
use crate::kernel::units::Nanos;

/// The longest sleep of the thread.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Releases the checks of one step.
#[derive(Debug)]
pub(super) struct Pacer {
    schedule: SendSchedule,
    clock: Arc<Clock>,
    started: Nanos,
    /// A permit for each check that is due and not taken.
    due: Semaphore,
    taken: AtomicU64,
    /// The duration of the step in nanoseconds, after its end.
    ended_after: AtomicU64,
    is_stopped: AtomicBool,
}

impl Pacer {
    /// Starts the step now.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(schedule: SendSchedule, clock: Arc<Clock>) -> std::io::Result<Arc<Self>> {
        let (started, due) = (clock.steady(), Semaphore::new(0));
        let (taken, ended_after) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_stopped = AtomicBool::new(false);
        let pacer = Self { schedule, clock, started, due, taken, ended_after, is_stopped };
        let pacer = Arc::new(pacer);
        let running = Arc::clone(&pacer);
        std::thread::Builder::new().name("pacer".to_owned()).spawn(move || running.run())?;
        Ok(pacer)
    }

    /// Waits for the next check that is due. Returns its index and its send time on the steady
    /// clock, or `None` after the end of the step.
    pub(super) async fn next(&self) -> Option<(u64, Nanos)> {
        self.due.acquire().await.ok()?.forget();
        let index = self.taken.fetch_add(1, Relaxed);
        Some((index, self.started.plus(self.schedule.send_time(index))))
    }

    /// Ends the step early.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    /// Returns the number of checks that were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Returns the scheduled checks per second.
    pub(super) const fn rate(&self) -> u32 {
        self.schedule.rate
    }

    /// Returns the start of the step.
    pub(super) const fn started(&self) -> Nanos {
        self.started
    }

    /// Returns the waits, until the end of the step, of the checks that were due and not taken.
    pub(super) fn untaken_waits(&self) -> impl Iterator<Item = Nanos> {
        let end = Nanos(self.ended_after.load(Relaxed));
        let untaken = self.taken()..self.schedule.due(end);
        untaken.map(move |index| end.since(self.schedule.send_time(index)))
    }

    fn run(&self) {
        let mut released = 0;
        loop {
            let elapsed = self.clock.steady().since(self.started);
            if self.schedule.duration <= elapsed || self.is_stopped.load(Relaxed) {
                self.ended_after.store(elapsed.0, Relaxed);
                return self.due.close();
            }
            let due = self.schedule.due(elapsed);
            self.due.add_permits(usize::try_from(due - released).unwrap_or(0));
            released = due;
            let next = self.schedule.send_time(due).min(self.schedule.duration);
            let elapsed = self.clock.steady().since(self.started);
            std::thread::sleep(Duration::from_nanos(next.since(elapsed).0).min(LONGEST_SLEEP));
        }
    }
}
