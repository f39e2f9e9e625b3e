//! The cost of top keys: `telemetry.descriptor_values: shown` and `hashed` against `off`.
//!
//! `cargo bench --bench top_keys`; `-- decisions` and `-- service` run one part each.
//! - Decisions: `Engine::decide` with counters in memory, on one thread. With few keys, each has a
//!   slot. With a million equally frequent keys, nearly each check takes another key's slot and
//!   writes a text: the worst case.
//! - Service: two processes over gRPC with 128 checks in flight, CPU per check. Both get a few
//!   checks in turn, so other load on the machine affects both. Last, `off` is compared with itself:
//!   the difference is measurement error.
//!
//! Bound: at most 2 % CPU per check of the service.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "support/service.rs"]
mod service;

use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sluicegate::cli::{self, Terminal};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use service::{ARGUMENTS, LIMITS, Server, tokio};

/// The binary's allocator.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Checks of a turn, and turns.
const CHECKS: u64 = 100_000;
const TURNS: usize = 21;

/// Calls per turn of a service, turns per start, starts and keys.
const CALLS: u64 = 10_000;
const SERVED: usize = 21;
const STARTS: usize = 10;
const KEYS: u64 = 1_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "serve") {
        return serve();
    }
    let is_named = |part: &str| arguments.iter().any(|argument| argument == part);
    let is_all = !is_named("decisions") && !is_named("service");
    if is_all || is_named("decisions") {
        for keys in [100, 1_000_000] {
            decisions(keys);
        }
    }
    if is_all || is_named("service") {
        services("clear");
        services("off");
    }
}

/// Runs the service with this process's arguments.
fn serve() {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    let _ = cli::run(std::env::args_os().collect(), std::env::vars_os(), &mut terminal);
}

fn decisions(keys: u64) {
    let values = [DescriptorValues::Hidden, DescriptorValues::Shown, DescriptorValues::Hashed];
    let engines = values.map(engine);
    let mut turns: Vec<[f64; 3]> = Vec::new();
    for turn in 0..TURNS as u64 {
        let names: Vec<_> = (0..CHECKS).map(|n| name_of(n + turn * CHECKS, keys)).collect();
        turns.push(engines.each_ref().map(|engine| time_per_check(engine, &names)));
    }
    for (index, value) in values.into_iter().enumerate() {
        let nanos = median(turns.iter().map(|turn| turn[index]));
        let ratio = median(turns.iter().map(|turn| turn[index] / turn[0]));
        println!("decide, {keys:>7} keys, {:<6} {nanos:>6.0} ns   {ratio:.2} of off", value.word());
    }
}

fn engine(descriptor_values: DescriptorValues) -> Engine {
    let store = Arc::new(MemoryStore::new(4_000_000, WhenFull::Deny, [7; 16]));
    let policy = DecisionPolicy { descriptor_values, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::system(), store, policy);
    let (config, _) = load([("shop.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

/// A key of the `number`th check; a multiplicative hash spreads them.
fn name_of(number: u64, keys: u64) -> String {
    format!("client-{}", (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % keys)
}

fn time_per_check(engine: &Engine, names: &[String]) -> f64 {
    let checks: Vec<_> = names.iter().map(|name| check(name)).collect();
    let started = Instant::now();
    for check in &checks {
        let decision = pin!(engine.decide(check)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(decision) = decision else { panic!("memory answers at once") };
        std::hint::black_box(decision.unwrap());
    }
    started.elapsed().as_nanos() as f64 / checks.len() as f64
}

fn check(name: &str) -> Check<'_> {
    let entries = [("api_key", name)].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "shop", descriptors: [descriptor].into_iter().collect() }
}

/// Compares a service with these top keys with one without.
fn services(keys: &str) {
    let (dir, client) = (tempfile::tempdir().unwrap(), tokio(1));
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let start = |keys: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(ARGUMENTS).arg(format!("--telemetry-descriptor-values={keys}"));
        Server::start(command.arg("--limits-paths").arg(dir.path()))
    };
    let takes = |server: &Server| client.block_on(server.cpu_per_call_over(KEYS, CALLS));
    let compared = |_| {
        let (first, second) = (start(keys), start("off"));
        takes(&first);
        takes(&second);
        let turns: Vec<(f64, f64)> =
            (0..SERVED).map(|n| turn(n, || takes(&first), || takes(&second))).collect();
        let of = |what: fn(&(f64, f64)) -> f64| median(turns.iter().map(what));
        (of(|turn| turn.0), of(|turn| turn.0 / turn.1 - 1.0))
    };
    let starts: Vec<(f64, f64)> = (0..STARTS).map(compared).collect();
    let nanos = median(starts.iter().map(|start| start.0));
    let (mean, error) = mean_and_error(starts.iter().map(|start| start.1));
    println!(
        "service, 128 in flight, {keys:<6} {nanos:>6.0} ns   {mean:+.2} % ± {error:.2} against off \
         (mean of {STARTS} starts' medians of {SERVED} turns, one standard error)"
    );
}

/// Measures both. Every second turn starts with `second`.
fn turn(n: usize, first: impl Fn() -> f64, second: impl Fn() -> f64) -> (f64, f64) {
    if n.is_multiple_of(2) {
        return (first(), second());
    }
    let second = second();
    (first(), second)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Mean and standard error in percent.
fn mean_and_error(ratios: impl Iterator<Item = f64>) -> (f64, f64) {
    let ratios: Vec<f64> = ratios.map(|ratio| ratio * 100.0).collect();
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let spread = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
    (mean, (spread / (count - 1.0) / count).sqrt())
}
