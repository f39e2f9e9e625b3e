//! One step of every strategy: nanoseconds and allocations.
//!
//! `cargo bench --bench kernel`. Counters are stepped in turn, so no state stays in a register.
//! - `admits`: the counter has earned a hit since its last step.
//! - `denies`: the counter is full.
//! - `floor`: the loop alone, which is part of every figure.
//!
//! Bounds: 0 allocations, and a median of 15 ns for GCRA and the fixed window. The sliding log
//! allocates while its rings grow.
#![allow(missing_docs, clippy::unwrap_used, clippy::wildcard_imports)]

use divan::{AllocProfiler, Bencher, black_box};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::units::{Hits, Nanos};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const START: Nanos = Nanos(1_763_632_345_678_912_345);
const MINUTE: Nanos = Nanos::from_secs(60);

/// Few enough for the L1 cache.
const COUNTERS: usize = 256;

fn main() {
    divan::main();
}

/// Steps the counters in turn, `gap` apart.
fn steps<S: Clone + Default>(
    bencher: Bencher,
    gap: Nanos,
    step: impl Fn(&mut S, Nanos, Hits) -> CounterDecision,
) {
    let (mut states, mut now, mut turn) = (vec![S::default(); COUNTERS], START, 0);
    bencher.bench_local(|| {
        turn = (turn + 1) % COUNTERS;
        now = now.plus(gap);
        step(&mut states[turn], black_box(now), black_box(Hits(1)))
    });
}

/// Each counter is stepped every 256 ms.
const SLOW: Nanos = Nanos::MILLI;
/// Too short for a counter to earn a hit.
const FAST: Nanos = Nanos(1);

#[divan::bench]
fn floor(bencher: Bencher) {
    steps(bencher, FAST, |state: &mut u64, _, hits| {
        *state += hits.0;
        CounterDecision::OutsideWindows
    });
}

mod gcra {
    use super::*;

    /// Ten hits a second: a hit is a whole number of ticks (N = 1).
    #[divan::bench]
    fn admits_whole_intervals(bencher: Bencher) {
        let limit = Gcra::new(600, MINUTE, 50).unwrap();
        steps(bencher, SLOW, |state, now, hits| limit.charge(state, now, hits));
    }

    /// N = 1,001: every timestamp has a fraction.
    #[divan::bench]
    fn admits_fractions(bencher: Bencher) {
        let limit = Gcra::new(1_001, MINUTE, 50).unwrap();
        steps(bencher, SLOW, |state, now, hits| limit.charge(state, now, hits));
    }

    #[divan::bench]
    fn denies(bencher: Bencher) {
        let limit = Gcra::new(1_001, MINUTE, 1).unwrap();
        steps(bencher, FAST, |state, now, hits| limit.charge(state, now, hits));
    }
}

mod fixed_window {
    use super::*;

    #[divan::bench]
    fn admits(bencher: Bencher) {
        let limit = FixedWindow::new(u32::MAX, Windows::Every(MINUTE)).unwrap();
        steps(bencher, SLOW, |state, now, hits| limit.charge(state, now, hits));
    }

    #[divan::bench]
    fn denies(bencher: Bencher) {
        let limit = FixedWindow::new(1, Windows::Every(MINUTE)).unwrap();
        steps(bencher, FAST, |state, now, hits| limit.charge(state, now, hits));
    }

    #[divan::bench]
    fn admits_by_calendar(bencher: Bencher) {
        let starts = [0, 1, 2, 3].map(|year| Nanos::from_secs(31_536_000 * (54 + year)));
        let limit = FixedWindow::new(u32::MAX, Windows::Calendar { starts }).unwrap();
        steps(bencher, FAST, |state, now, hits| limit.charge(state, now, hits));
    }
}

mod sliding_window {
    use super::*;

    #[divan::bench]
    fn admits(bencher: Bencher) {
        let limit = SlidingWindow::new(600, MINUTE).unwrap();
        steps(bencher, SLOW, |state, now, hits| limit.charge(state, now, hits));
    }

    #[divan::bench]
    fn denies(bencher: Bencher) {
        let limit = SlidingWindow::new(1, MINUTE).unwrap();
        steps(bencher, FAST, |state, now, hits| limit.charge(state, now, hits));
    }
}

mod sliding_log {
    use super::*;

    #[divan::bench]
    fn admits(bencher: Bencher) {
        let limit = SlidingLog::new(600, MINUTE).unwrap();
        steps(bencher, SLOW, |state, now, hits| limit.charge(state, now, hits));
    }

    #[divan::bench]
    fn denies(bencher: Bencher) {
        let limit = SlidingLog::new(1, MINUTE).unwrap();
        steps(bencher, FAST, |state, now, hits| limit.charge(state, now, hits));
    }
}
