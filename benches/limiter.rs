//! Acquire and release of a permit: nanoseconds, allocations, and 64 tasks on one bucket.
//!
//! `cargo bench --bench limiter`. Bounds:
//! - An uncontended pair of acquire and release takes at most 300 ns and 0 allocations.
//! - 64 tasks on one bucket reach exactly the limit, at 2 million pairs a second on 2 cores.
//! - An acquire costs at most 10 ns more for a shared limit than for a local one.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use divan::{AllocProfiler, Bencher, black_box};
use parking_lot::Mutex;
use sluicegate::clock::Clock;
use sluicegate::config::concurrency::ConcurrencyFallback;
use sluicegate::engine::Membership;
use sluicegate::engine::concurrency::{ConcurrencyLimits, PermitGuard, PermitRequest, SharedLimit};
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig};
use sluicegate::kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent,
};
use sluicegate::kernel::concurrency::{ClassParts, Permit, RequestOutcome, Requester};
use sluicegate::kernel::coordinator::aggregate::VoteAggregate;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::heartbeat::{ShareRound, ShareRoundReply};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    AuditStore, BudgetStore, Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply,
};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const TASKS: u32 = 64;
const PAIRS: u32 = 50_000;
const CEILING: u32 = 16;
/// A task yields while it has a permit, once in this many pairs.
const HELD: u32 = 16;

fn main() {
    divan::main();
    contend();
    share();
}

fn pair(limiter: &mut Limiter, now: Nanos, keep: Option<Nanos>) {
    if let Some(permit) = acquire(limiter, now, keep) {
        release(limiter, now, permit);
    }
}

fn acquire(limiter: &mut Limiter, now: Nanos, keep: Option<Nanos>) -> Option<Permit> {
    match limiter
        .step(now, LimiterEvent::Acquire { lifetime: keep, timeout: Nanos(0), by: Requester::ANY })
        [..]
    {
        [LimiterEffect::Admit(permit)] => Some(permit),
        _ => None,
    }
}

fn release(limiter: &mut Limiter, now: Nanos, permit: Permit) {
    let leave = LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None };
    black_box(limiter.step(now, leave));
}

fn pairs(bencher: Bencher<'_, '_>, adaptive: Option<AdaptiveAlgorithm>, keep: Option<Nanos>) {
    let adaptive = adaptive.map(|law| AdaptiveConfig::new(law, 8, 512));
    let limiter =
        Mutex::new(Limiter::new(&LimiterConfig { adaptive, ..LimiterConfig::fixed(64) }, 0));
    let mut now = Nanos::SECOND;
    bencher.bench_local(|| {
        now = now.plus(Nanos::MICRO);
        pair(&mut limiter.lock(), black_box(now), keep);
    });
}

#[divan::bench]
fn stream_static(bencher: Bencher<'_, '_>) {
    pairs(bencher, None, None);
}

#[divan::bench(args = [AdaptiveAlgorithm::Gradient, AdaptiveAlgorithm::Gradient2, AdaptiveAlgorithm::Aimd])]
fn stream_adaptive(bencher: Bencher<'_, '_>, law: AdaptiveAlgorithm) {
    pairs(bencher, Some(law), None);
}

#[divan::bench]
fn with_a_deadline(bencher: Bencher<'_, '_>) {
    pairs(bencher, Some(AdaptiveAlgorithm::Gradient), Some(Nanos::from_secs(60)));
}

/// Runs 64 tasks on 2 threads and one bucket, through the service's own path. Measures the rate and
/// checks that the limit is reached and never exceeded.
fn contend() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let admission = Arc::new(ConcurrencyLimits::new(Arc::new(Clock::system()), 10, 0));
    let (within, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (admission, within, most) = (admission.clone(), within.clone(), most.clone());
            runtime.spawn(async move {
                let mut pairs = 0;
                while pairs < PAIRS {
                    let Ok(held) = admission.acquire(ask()).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                    pairs += 1;
                    if pairs % HELD == 0 {
                        tokio::task::yield_now().await;
                    }
                    within.fetch_sub(1, SeqCst);
                    assert!(held.release(RequestOutcome::Success, None));
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    let rate = f64::from(TASKS * PAIRS) / began.elapsed().as_secs_f64();
    assert_eq!(most.load(SeqCst), CEILING, "the ceiling is reached, and never exceeded");
    assert_eq!(admission.load(BUCKET).unwrap().in_flight, 0);
    println!(
        "64 tasks, one bucket: {:.2} million pairs/s, at most {CEILING} in flight",
        rate / 1e6
    );
}

const BUCKET: &[u8] = b"bucket";

fn ask() -> PermitRequest<'static> {
    const RULES: LimiterConfig = LimiterConfig::fixed(CEILING);
    let (keep, patience, answer) = (Some(Nanos::from_secs(60)), Nanos(0), Nanos(0));
    let (bucket, revision, rules) = (BUCKET, Revision(1), &RULES);
    PermitRequest {
        by: Requester::ANY,
        bucket,
        limit_path: "d.k",
        revision,
        rules,
        permit_lifetime: keep,
        queue_timeout: patience,
        store_timeout: answer,
        shared: None,
    }
}

/// The same for a shared concurrency limit.
fn ask_of_fleet() -> PermitRequest<'static> {
    let (max_duration, on_failure) = (Nanos::from_secs(60), ConcurrencyFallback::Deny);
    let (min, start, max) = (CEILING, CEILING, CEILING);
    let aggregate = VoteAggregate::default();
    PermitRequest {
        by: Requester::ANY,
        shared: Some(SharedLimit {
            min,
            start,
            max,
            aggregate,
            classes: ClassParts::ONE,
            max_duration,
            on_failure,
        }),
        ..ask()
    }
}

/// The service's own path, without contention.
#[divan::bench]
fn by_the_door(bencher: Bencher<'_, '_>) {
    let admission = ConcurrencyLimits::new(Arc::new(Clock::system()), 10, 0);
    // The first acquire creates the bucket.
    assert!(pass(&admission, ask()));
    bencher.bench_local(|| pass(&admission, ask()));
}

fn pass(admission: &ConcurrencyLimits, ask: PermitRequest<'_>) -> bool {
    acquired(admission, ask).release(RequestOutcome::Success, None)
}

fn acquired(admission: &ConcurrencyLimits, ask: PermitRequest<'_>) -> PermitGuard {
    let mut asked = pin!(admission.acquire(black_box(ask)));
    let Poll::Ready(held) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("nobody is in the way");
    };
    held.unwrap()
}

/// Measures the extra cost of a shared limit for an acquire and for a pair, as the median of many
/// turns. Checks that no request calls the store. Heartbeats run between turns.
fn share() {
    const TURNS: usize = 501;
    let clock = Arc::new(Clock::system());
    let store =
        Counting { memory: MemoryStore::new(1, WhenFull::Deny, [0; 16]), calls: AtomicU32::new(0) };
    let (alone, of_fleet) = (alone(&clock), of_fleet(&clock, &store));
    let mut more: [Vec<f64>; 2] = Default::default();
    let mut alone_took: [Vec<f64>; 2] = Default::default();
    for _ in 0..TURNS {
        block_on(of_fleet.fleet_reporter().unwrap().report_once(&clock, &store));
        let before = store.calls.load(SeqCst);
        let (here, there) = (turn(&alone, ask()), turn(&of_fleet, ask_of_fleet()));
        assert_eq!(store.calls.load(SeqCst), before, "no call of the store for a request");
        for at in 0..2 {
            alone_took[at].push(here[at]);
            more[at].push(there[at] - here[at]);
        }
    }
    let [acquire, pair] = alone_took.map(median);
    let [acquire_more, pair_more] = more.map(median);
    println!(
        "a share of the fleet's: {acquire_more:.1} ns on top of an acquire's {acquire:.1}, {pair_more:.1} on top of a pair's {pair:.1}; calls for requests: 0"
    );
}

fn alone(clock: &Arc<Clock>) -> ConcurrencyLimits {
    let admission = ConcurrencyLimits::new(Arc::clone(clock), 10, 0);
    assert!(pass(&admission, ask()));
    admission
}

/// Limits with an active share.
fn of_fleet(clock: &Arc<Clock>, store: &Counting) -> ConcurrencyLimits {
    let membership = Arc::new(Membership::new("one", 1, NonZeroU32::MIN));
    let fleet =
        FleetReporter::new(membership, clock.now(), SharePace::default(), Duration::from_secs(1));
    let admission = ConcurrencyLimits::new(Arc::clone(clock), 10, 0).with_fleet(Arc::new(fleet));
    let held = block_on(async {
        let first = PermitRequest { store_timeout: Nanos::SECOND, ..ask_of_fleet() };
        let mut asked = pin!(admission.acquire(first));
        tokio::select! {
            biased;
            held = &mut asked => held,
            () = admission.fleet_reporter().unwrap().report_once(clock, store) => asked.await,
        }
    });
    assert!(held.unwrap().release(RequestOutcome::Success, None));
    admission
}

/// Nanoseconds of an acquire, and of an acquire with its release, without contention.
fn turn(admission: &ConcurrencyLimits, ask: PermitRequest<'_>) -> [f64; 2] {
    const ACQUIRES: usize = CEILING as usize;
    const ROUNDS: usize = 64;
    let mut held: Vec<PermitGuard> = Vec::with_capacity(ACQUIRES);
    let (mut acquires, began) = (Duration::ZERO, Instant::now());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        held.extend((0..ACQUIRES).map(|_| acquired(admission, ask)));
        acquires += began.elapsed();
        for held in held.drain(..) {
            assert!(held.release(RequestOutcome::Success, None));
        }
    }
    [acquires, began.elapsed()].map(|took| took.as_nanos() as f64 / (ACQUIRES * ROUNDS) as f64)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A memory store that counts its calls.
#[derive(Debug)]
struct Counting {
    memory: MemoryStore,
    calls: AtomicU32,
}

impl CounterStore for Counting {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.calls.fetch_add(1, SeqCst);
        self.memory.charge(now, charges)
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.calls.fetch_add(1, SeqCst);
        self.memory.exchange_lease_message(now, message)
    }
}

impl AuditStore for Counting {}

impl BudgetStore for Counting {}

impl FleetStore for Counting {
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        self.calls.fetch_add(1, SeqCst);
        self.memory.report_shares(now, round)
    }
}
