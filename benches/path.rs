//! Time and memory of a decision: `Engine::decide` with counters in memory.
//!
//! `cargo bench --bench path` prints the time of a decision over a thousand and over a million live
//! keys. The difference is the cost of CPU cache misses. Two other parts run only if selected:
//! - `-- keys` adds ten million GCRA counters and prints the memory per counter.
//! - `-- statistics` prints the cost of envoyproxy/ratelimit's statistics per decision: with one
//!   name per rule, and with one name per value (`detailed_metric`).
//!
//! Times are medians over batches of 64 checks, so reading the clock costs little. The checks of a
//! batch are prepared. Their text is in the CPU cache, as if just read from the wire; the counters
//! are not.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::Store;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::telemetry::stats::mapping::StatMapping;
use sluicegate::telemetry::stats::{Stats, TimedMethod};

#[path = "support/remote_memory.rs"]
mod remote_memory;

use remote_memory::RemoteMemory;

/// The binary's allocator.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                        rate_limit: {requests_per_unit: 1000, unit: day, strategy: gcra}\n";
const THREADS: u64 = 2;
const BATCH: u32 = 64;
const BATCHES: usize = 10_000;
/// Turns of each engine.
const TURNS: usize = 20;

fn main() {
    if std::env::args().any(|arg| arg == "keys") {
        return memory_per_key(10_000_000);
    }
    if std::env::args().any(|arg| arg == "statistics") {
        return statistics(1_000);
    }
    for live_keys in [1_000, 1_000_000] {
        decide_over(live_keys);
    }
    decide_on_balances(1_000);
}

/// Compares a decision on a lease balance with one on a local counter, on one thread.
fn decide_on_balances(keys: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _within = runtime.enter();
    let names: Vec<String> = (0..keys).map(|i| format!("client-{i}")).collect();
    let limits = |mode: &str| {
        format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{requests_per_unit: 400000000, \
             unit: day{mode}}}\n"
        )
    };
    let memory = || MemoryStore::new(keys * 2, WhenFull::Deny, [7; 16]);
    let strict = engine_with(Arc::new(memory()), &limits(""));
    let leased = limits(", mode: leased, max_overshoot: 0");
    let leased = engine_with(Arc::new(RemoteMemory(memory())), &leased);
    for name in &names {
        let entries = [("api_key", name.as_str())];
        // Large demand makes the lease far larger than the hits charged below.
        for hits in [1_000_000, 1_000_000, 1, 1] {
            let mut question = question(&entries);
            question.descriptors[0].cost = Cost::Charge(Hits(hits));
            runtime.block_on(leased.decide(&question)).unwrap();
        }
        decide(&strict, &question(&entries));
    }
    let asked = Random(1).names("client", keys);
    let (strict, held) = (median_of_batches(&strict, &asked), median_of_batches(&leased, &asked));
    row("decide, one fixed window, at hand, 1 thread", strict);
    row("decide, one fixed window, held of a lease, 1 thread", held);
    println!("held to at hand: {:.2}", held.as_secs_f64() / strict.as_secs_f64());
}

/// Compares checks with and without statistics, which include the call's latency. Both take turns,
/// so other load on the machine affects both.
fn statistics(keys: usize) {
    let limits = |metric: &str| {
        format!(
            "domain: shop\ndescriptors:\n- key: api_key\n{metric}  rate_limit: {{requests_per_unit: 400000000, unit: day}}\n"
        )
    };
    let memory = || Arc::new(MemoryStore::new(keys * 2, WhenFull::Deny, [7; 16]));
    let asked = Random(1).names("client", keys);
    for (what, metric) in [("one name", ""), ("a name for each value", "  detailed_metric: true\n")]
    {
        let plain = engine_with(memory(), &limits(metric));
        let stats = Arc::new(Stats::new(10_000, StatMapping::built_in(false)).without_sending());
        let told = engine_with(memory(), &limits(metric)).with_stats(stats);
        let turns: Vec<_> = asked
            .chunks_exact(asked.len() / TURNS)
            .map(|asked| [median_of_batches(&plain, asked), median_of_batches(&told, asked)])
            .collect();
        let median = |of: usize| {
            let mut times: Vec<_> = turns.iter().map(|turn| turn[of]).collect();
            times.sort_unstable();
            times[times.len() / 2]
        };
        let (without, with) = (median(0), median(1));
        row(&format!("decide, statistics of {what}: without"), without);
        row(&format!("decide, statistics of {what}: with"), with);
        println!("with to without: {:.2}", with.as_secs_f64() / without.as_secs_f64());
    }
}

fn decide_over(live_keys: usize) {
    let engine = engine_of(live_keys * 2);
    let names: Vec<String> = (0..live_keys).map(|i| format!("client-{i}")).collect();
    for name in &names {
        decide(&engine, &question(&[("api_key", name)]));
    }
    drop(names);
    let engine = &engine;
    let medians: Vec<Duration> = std::thread::scope(|scope| {
        let worker = |seed| {
            scope.spawn(move || {
                let asked = Random(seed).names("client", live_keys);
                median_of_batches(engine, &asked)
            })
        };
        let workers: Vec<_> = (1..=THREADS).map(worker).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let slower = medians.into_iter().max().unwrap();
    row(&format!("decide, one descriptor, {live_keys} live keys, {THREADS} threads"), slower);
}

fn memory_per_key(keys: u32) {
    let engine = engine_of(keys as usize);
    let before = resident_bytes();
    let mut name = String::new();
    for i in 0..keys {
        name.clear();
        write!(name, "client-{i}").unwrap();
        decide(&engine, &question(&[("api_key", &name)]));
    }
    let each = (resident_bytes() - before) as f64 / f64::from(keys);
    println!("{keys} live GCRA keys: {each:.1} bytes each, resident");
}

fn engine_of(max_keys: usize) -> Engine {
    engine_with(Arc::new(MemoryStore::new(max_keys, WhenFull::Deny, [7; 16])), LIMITS)
}

fn engine_with(backend: Arc<dyn Store>, limits: &str) -> Engine {
    let engine = Engine::new(Clock::system(), backend, DecisionPolicy::default());
    let limits = limits.as_bytes();
    let (config, _warnings) = load([("shop.yaml", limits)], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

fn question<'q>(entries: &[(&'q str, &'q str)]) -> Check<'q> {
    let entries = entries.iter().copied().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "shop", descriptors: [descriptor].into_iter().collect() }
}

fn decide(engine: &Engine, question: &Check<'_>) {
    let answer = pin!(engine.decide(question)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(answer) = answer else { panic!("memory answers at once") };
    std::hint::black_box(answer.unwrap());
}

/// The median time per decision over batches of prepared checks.
fn median_of_batches(engine: &Engine, asked: &[String]) -> Duration {
    let batch = |names: &[String]| {
        let questions: Vec<_> = names.iter().map(|name| question(&[("api_key", name)])).collect();
        let started = Instant::now();
        for question in &questions {
            decide(engine, question);
            if let Some(stats) = engine.stats() {
                let now = engine.clock().now();
                stats.record_call(TimedMethod::ShouldRateLimit, now, Nanos(1));
            }
        }
        started.elapsed() / BATCH
    };
    let mut times: Vec<Duration> = asked.chunks_exact(BATCH as usize).map(batch).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn row(what: &str, time: Duration) {
    println!("{what:<58}{:>12}", format!("{time:.1?}"));
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Pseudo-random numbers from a seed (splitmix64): the same keys in the same order in every run.
struct Random(u64);

impl Random {
    /// Names from `kind-0` to below `kind-bound`, in the order of use.
    fn names(mut self, kind: &str, bound: usize) -> Vec<String> {
        let count = BATCHES * BATCH as usize;
        (0..count).map(|_| format!("{kind}-{}", self.below(bound))).collect()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % bound
    }
}
