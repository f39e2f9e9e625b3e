//! How long the machine ran nobody, as threads see it that only wake; and tries that do not count because of it.
//!
//! Guarantees: as late as they are, whatever else was due on that core was, whether another process had it or the host did
//! not give it. A bound is the same on every machine: a try that misses it while the machine paused is made again, and one
//! that misses it else has failed. Leaves out: what a process waited for its own locks and threads, which is its own affair;
//! and who made a core busy, which may be the service too.
#![expect(clippy::print_stdout, reason = "which try did not count is part of the proof")]

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, available_parallelism, sleep, spawn};
use std::time::{Duration, Instant};

use crate::waiting::now;

/// Why a try does not count.
pub struct Spoiled(pub String);

/// Makes a try, and twice more at most where the machine spoiled the one before.
pub fn undisturbed(mut one_try: impl FnMut() -> Result<(), Spoiled>) {
    let mut spoiled = Vec::new();
    while let Err(Spoiled(why)) = one_try() {
        println!("does not count: {why}");
        spoiled.push(why);
        assert!(spoiled.len() < 3, "no try counts: {spoiled:#?}");
    }
}

/// Two for each core, from their start until they are stopped or dropped.
pub struct Watchers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Pause>>>,
}

/// From when one of them was due to when it ran.
type Pause = (Instant, Instant);

/// What each of them saw.
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
    /// How long one of them did not run in this time altogether, the one that saw most.
    pub fn altogether(&self, time: Pause) -> Duration {
        let each = self.0.iter().map(|seen| seen.iter().map(|&pause| shared(pause, time)).sum());
        each.max().unwrap_or_default()
    }

    /// The same at one time.
    pub fn longest(&self, time: Pause) -> Duration {
        let all = self.0.iter().flatten().map(|&pause| shared(pause, time));
        all.max().unwrap_or_default()
    }
}

/// How much of a pause lies in this time.
fn shared((due, ran): Pause, (from, to): Pause) -> Duration {
    ran.min(to).saturating_duration_since(due.max(from))
}

/// Wakes until it is `over`; less than 2 ms at one time is no pause.
fn watch(over: &AtomicBool) -> Vec<Pause> {
    const TICK: Duration = Duration::from_millis(1);
    const NO_PAUSE: Duration = Duration::from_millis(2);
    let mut pauses = Vec::new();
    while !over.load(Relaxed) {
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
fn only_what_lies_in_the_time_counts_and_of_one_watcher() {
    let at = |millis| now_plus(millis);
    let pauses = Pauses(vec![vec![(at(0), at(10)), (at(20), at(25))], vec![(at(8), at(20))]]);
    let millis = Duration::from_millis;
    assert_eq!(pauses.altogether((at(0), at(30))), millis(15));
    assert_eq!(pauses.altogether((at(9), at(30))), millis(11));
    assert_eq!(pauses.longest((at(0), at(30))), millis(12));
    assert_eq!(pauses.longest((at(21), at(30))), millis(4));
    assert_eq!(pauses.longest((at(26), at(30))), Duration::ZERO);
}

/// So long after one instant that is always the same.
#[cfg(test)]
fn now_plus(millis: u64) -> Instant {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *FIRST.get_or_init(now) + Duration::from_millis(millis)
}
