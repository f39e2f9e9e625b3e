//! Measures scheduling delays of the machine and repeats attempts that they disturbed. For tests of
//! documented times, on a machine without other load.
//!
//! Guarantees:
//! - Every cause of a delay is measured: other processes, other threads, CPU time stolen by the
//!   host.
//! - The time bounds of tests are the same on every machine.
//! - An attempt that fails without a scheduling delay fails the test.
//!
//! Not covered:
//! - Time that the service waits for its own locks and threads.
//! - The process that keeps a core busy, which may be the service itself.
#![expect(clippy::print_stdout, reason = "which try did not count is part of the proof")]

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, available_parallelism, sleep, spawn};
use std::time::{Duration, Instant};

use crate::support::waiting::now;

/// The reason why an attempt is ignored, such as a scheduling delay.
pub struct Disturbed(pub String);

/// Runs an attempt at most three times, until one is undisturbed.
pub fn retry_disturbed(mut attempt: impl FnMut() -> Result<(), Disturbed>) {
    let mut reasons = Vec::new();
    while let Err(Disturbed(why)) = attempt() {
        println!("does not count: {why}");
        reasons.push(why);
        assert!(reasons.len() < 3, "no try counts: {reasons:#?}");
    }
}

/// Two sleeping threads for each core, which record their late wake-ups.
pub struct Watchers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Pause>>>,
}

/// A late wake-up of a thread: the scheduled and the actual time.
type Pause = (Instant, Instant);

/// Pauses of each thread.
pub struct Pauses(Vec<Vec<Pause>>);

impl Watchers {
    pub fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watch = |_| {
            let over = Arc::clone(&over);
            spawn(move || watch(&over))
        };
        let threads = (0..2 * available_parallelism().map_or(1, NonZero::get)).map(watch).collect();
        Self { over, threads }
    }

    pub fn stop(mut self) -> Pauses {
        self.over.store(true, Relaxed);
        Pauses(self.threads.drain(..).map(|it| it.join().unwrap()).collect())
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

impl Pauses {
    /// The largest sum of a thread's pauses in this interval.
    pub fn longest_total(&self, time: Pause) -> Duration {
        let each = self.0.iter().map(|seen| seen.iter().map(|&pause| overlap(pause, time)).sum());
        each.max().unwrap_or_default()
    }
}

/// Overlap of a pause with an interval.
fn overlap((due, ran): Pause, (from, to): Pause) -> Duration {
    ran.min(to).saturating_duration_since(due.max(from))
}

/// Sleeps repeatedly and records late wake-ups of at least 2 ms, until `is_over` is set.
fn watch(is_over: &AtomicBool) -> Vec<Pause> {
    const TICK: Duration = Duration::from_millis(1);
    const NO_PAUSE: Duration = Duration::from_millis(2);
    let mut pauses = Vec::new();
    while !is_over.load(Relaxed) {
        let due = now() + TICK;
        sleep(TICK);
        let ran = now();
        if NO_PAUSE <= ran.saturating_duration_since(due) {
            pauses.push((due, ran));
        }
    }
    pauses
}

#[test]
fn pauses_are_summed_per_thread_within_the_interval() {
    let at = |millis| now_plus(millis);
    let pauses = Pauses(vec![vec![(at(0), at(10)), (at(20), at(25))], vec![(at(8), at(20))]]);
    let millis = Duration::from_millis;
    assert_eq!(pauses.longest_total((at(0), at(30))), millis(15));
    assert_eq!(pauses.longest_total((at(9), at(30))), millis(11));
    assert_eq!(pauses.longest_total((at(21), at(30))), millis(4));
    assert_eq!(pauses.longest_total((at(26), at(30))), Duration::ZERO);
}

/// Instant relative to a fixed start.
#[cfg(test)]
fn now_plus(millis: u64) -> Instant {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *FIRST.get_or_init(now) + Duration::from_millis(millis)
}
