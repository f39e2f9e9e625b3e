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
use std::time::Duration;

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

/// Two for each core, from their start to [`Watchers::stop`].
pub struct Watchers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Late>>,
}

/// By how much one of them overslept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    pub altogether: Duration,
    pub longest: Duration,
}

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

    /// The most that any of them saw.
    pub fn stop(self) -> Late {
        self.over.store(true, Relaxed);
        let seen = self.threads.into_iter().map(|it| it.join().unwrap());
        seen.fold(Late::default(), |most, it| Late {
            altogether: most.altogether.max(it.altogether),
            longest: most.longest.max(it.longest),
        })
    }
}

/// Wakes until it is `over`; less than 2 ms at one time is no pause.
fn watch(over: &AtomicBool) -> Late {
    const TICK: Duration = Duration::from_millis(1);
    const NO_PAUSE: Duration = Duration::from_millis(2);
    let mut late = Late::default();
    while !over.load(Relaxed) {
        let asleep = now();
        sleep(TICK);
        let pause = asleep.elapsed().saturating_sub(TICK);
        late.longest = late.longest.max(pause);
        late.altogether += if pause < NO_PAUSE { Duration::ZERO } else { pause };
    }
    late
}
