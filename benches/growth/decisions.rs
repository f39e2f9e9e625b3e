//! The time of a decision in memory, by keys, descriptors and rules.

use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::Curve;

const TURNS: usize = 9;
const CHECKS: usize = 20_000;
/// Coprime to all numbers of keys, so that a walk with this step visits all keys. Neighboring checks use
/// distant keys, which the CPU cannot prefetch.
const STEP: usize = 7_654_321;

const RULE: &str = "- key: api_key\n  rate_limit: {requests_per_unit: 400000000, unit: day}\n";

pub fn keys() -> Curve {
    let sizes: Vec<(usize, Engine)> =
        [1_000, 10_000, 100_000, 1_000_000, 10_000_000].map(|keys| (keys, filled(keys))).into();
    let expected = ("keys", "constant, and the misses of the CPU's caches");
    let mut walked = 0;
    Curve::measure(
        expected,
        TURNS,
        &sizes,
        |(keys, _)| *keys as f64,
        |(keys, engine)| {
            walked = (walked + STEP * CHECKS) % keys;
            let names: Vec<_> = (0..CHECKS).map(|at| name((walked + at * STEP) % keys)).collect();
            time(engine, &names, 1)
        },
    )
}

pub fn descriptors() -> Curve {
    let engine = filled(10_000);
    let names: Vec<_> = (0..CHECKS).map(|at| name(at % 10_000)).collect();
    let expected = ("descriptors", "constant or falling for each descriptor");
    Curve::measure(
        expected,
        TURNS,
        &[1_u32, 2, 5, 10, 20],
        |count| f64::from(*count),
        |count| time(&engine, &names, usize::try_from(*count).unwrap()) / f64::from(*count),
    )
}

pub fn rules() -> Curve {
    let sizes: Vec<(usize, Engine)> =
        [10, 100, 1_000, 10_000, 100_000].map(|rules| (rules, ruled(rules))).into();
    // Each size uses the same ten rules, so that the CPU's caches make no difference.
    let names: Vec<_> = (0..CHECKS).map(|at| name(at % 10)).collect();
    let expected = ("rules", "constant");
    Curve::measure(
        expected,
        TURNS,
        &sizes,
        |(rules, _)| *rules as f64,
        |(_, engine)| time(engine, &names, 1),
    )
}

fn name(number: usize) -> String {
    format!("client-{number:08}")
}

/// An engine with one rule and this many counters.
fn filled(keys: usize) -> Engine {
    let engine = engine(RULE, keys);
    for key in 0..keys {
        decide(&engine, &check(&[name(key)]));
    }
    engine
}

/// An engine with a rule for each of this many values.
fn ruled(rules: usize) -> Engine {
    let mut text = String::new();
    for rule in 0..rules {
        let value = name(rule);
        writeln!(text, "- key: api_key\n  value: {value}\n  rate_limit: {{requests_per_unit: 400000000, unit: day}}")
            .unwrap();
    }
    engine(&text, 1_000)
}

fn engine(descriptors: &str, keys: usize) -> Engine {
    let store = Arc::new(MemoryStore::new(keys * 2, WhenFull::Deny, [7; 16]));
    let engine = Engine::new(Clock::system(), store, DecisionPolicy::default());
    let limits = format!("domain: shop\ndescriptors:\n{descriptors}");
    let (config, _) = load([("shop.yaml", limits.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

fn check(names: &[String]) -> Check<'_> {
    Check { domain: "shop", descriptors: names.iter().map(|name| descriptor(name)).collect() }
}

fn descriptor(name: &str) -> Descriptor<'_> {
    let entries = [("api_key", name)].into_iter().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None }
}

/// Nanoseconds of a check with this many descriptors. The checks are prepared.
fn time(engine: &Engine, names: &[String], descriptors: usize) -> f64 {
    let checks: Vec<_> = names.chunks_exact(descriptors).map(check).collect();
    let started = Instant::now();
    for check in &checks {
        decide(engine, check);
    }
    started.elapsed().as_nanos() as f64 / checks.len() as f64
}

fn decide(engine: &Engine, check: &Check<'_>) {
    let reply = pin!(engine.decide(check)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(reply) = reply else { panic!("memory answers at once") };
    std::hint::black_box(reply.unwrap());
}
