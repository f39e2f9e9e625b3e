//! Tests that concurrent checks on one key use exactly the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use sluicegate::kernel::rate::Strategy;
use sluicegate::store::{ChargeOutcome, CounterStore};

use super::{NEW_YEAR, RUNTIME, Stores, calendar, charge, each, is_allowed, strategies};
use crate::support::waiting::for_a_day_with_a_minute_left;

/// The rounds of one store for one strategy. In each round, tasks charge one new key together.
#[derive(Clone, Copy)]
struct Load {
    tasks: usize,
    checks_per_task: usize,
    limit: u32,
    rounds: usize,
}

/// A store in this process decides within a microsecond, so only long loops overlap.
const LOCAL: Load = Load { tasks: 4, checks_per_task: 1_000, limit: 2_500, rounds: 20 };

/// A server decides the checks of many tasks in one call.
const REMOTE: Load = Load { tasks: 64, checks_per_task: 1, limit: 40, rounds: 8 };

/// A check waits for the disk, or for several nodes.
const SLOW: Load = Load { rounds: 3, ..REMOTE };

/// The loads of [`Stores::stores`].
const LOADS: [Load; 7] = [LOCAL, LOCAL, SLOW, REMOTE, REMOTE, SLOW, REMOTE];

/// Multiplies a number of rounds by `SLUICEGATE_ROUNDS`, at most 40.
fn rounds(count: usize) -> usize {
    let factor = std::env::var("SLUICEGATE_ROUNDS").map_or(1, |factor| factor.parse().unwrap());
    count * factor
}

#[test]
fn concurrent_checks_use_exactly_the_limit() {
    let stores = Stores::start();
    let limits = [LOCAL.limit, REMOTE.limit].map(|limit| {
        let [gcra, fixed, sliding, log] = strategies(limit);
        [gcra, fixed, sliding, log, calendar(limit)]
    });
    for (long, short) in limits[0].into_iter().zip(limits[1]) {
        for (backend, load) in stores.stores().into_iter().zip(LOADS) {
            let strategy = if load.limit == LOCAL.limit { long } else { short };
            assert_exact_limit(&backend.into(), strategy, load, || 0);
        }
        for leasing in stores.leasing().map(Arc::new) {
            let backend: Arc<dyn CounterStore> = leasing.clone();
            assert_exact_limit(&backend, short, REMOTE, || leasing.failed_calls());
            leasing.assert_used_balances(short);
        }
    }
}

/// Asserts the limit in each round, until there were enough rounds without a failed store call.
/// `failed_calls` counts the calls in the background that failed.
fn assert_exact_limit(
    store: &Arc<dyn CounterStore>,
    strategy: Strategy,
    load: Load,
    failed_calls: impl Fn() -> u64,
) {
    let rounds = rounds(load.rounds);
    let mut exact_rounds = 0;
    for round in 0..4 * rounds {
        for_a_day_with_a_minute_left();
        let failed_before = failed_calls();
        let counts = run_round(store, strategy, load, &round.to_string());
        let context = || format!("round {round} of {store:?}, {strategy:?}: {counts:?}");
        let limit = load.limit as usize;
        assert!(counts.allowed <= limit, "{}", context());
        if failed_before != failed_calls() {
            // Hits of a lost lease message are charged, and no check gets them.
            continue;
        }
        // A failed check may be charged.
        assert!(limit <= counts.allowed + counts.failed, "{}", context());
        exact_rounds += usize::from(counts.failed == 0);
        if exact_rounds == rounds {
            return;
        }
    }
    panic!("calls failed in all but {exact_rounds} rounds of {store:?}, {strategy:?}");
}

/// The outcomes of the checks of a round. The other checks are denied.
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounts {
    allowed: usize,
    failed: usize,
}

impl RoundCounts {
    fn count(&mut self, outcome: ChargeOutcome) {
        self.allowed += usize::from(is_allowed(outcome));
        self.failed += usize::from(matches!(outcome, ChargeOutcome::Failed(_)));
    }

    fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.failed += other.failed;
    }
}

fn run_round(
    store: &Arc<dyn CounterStore>,
    strategy: Strategy,
    load: Load,
    key: &str,
) -> RoundCounts {
    let charges = Arc::new(each([charge(key, strategy, 1)]));
    let started = Arc::new(AtomicUsize::new(0));
    let spawn = |checks: usize, others: usize| {
        let (store, charges, started) =
            (Arc::clone(store), Arc::clone(&charges), Arc::clone(&started));
        RUNTIME.spawn(async move {
            // The tasks start together, because the first ones could otherwise be done already.
            started.fetch_add(1, SeqCst);
            while started.load(SeqCst) < others {
                tokio::task::yield_now().await;
            }
            let mut counts = RoundCounts::default();
            for _ in 0..checks {
                counts.count(store.charge(NEW_YEAR, &charges).wait().await[0]);
            }
            counts
        })
    };
    // The first check finishes before the others start, so that they find its lease.
    let mut counts = RUNTIME.block_on(spawn(1, 1)).unwrap();
    let tasks: Vec<_> =
        (0..load.tasks).map(|_| spawn(load.checks_per_task, 1 + load.tasks)).collect();
    for task in tasks {
        counts.add(RUNTIME.block_on(task).unwrap());
    }
    counts
}
