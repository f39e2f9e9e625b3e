//! Store calls and unspent hits of leases: fixed batch, `AdaGrad`, recent demand, learned, and an oracle.
//!
//! `cargo bench --bench lease_sizing`. A deterministic simulation of one key; nothing is timed. The
//! oracle knows the future: it makes the fewest calls without unspent hits. Each cell has the store
//! calls and the unspent hits. The ratio is that of the calls, learned against recent demand.

#![allow(missing_docs, clippy::print_stdout, clippy::cast_precision_loss)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::indexing_slicing)]

#[path = "support/adagrad.rs"]
#[allow(unreachable_pub)]
mod adagrad;
#[path = "support/lease_traces.rs"]
#[allow(unreachable_pub)]
mod lease_traces;

use adagrad::simulate_adagrad;
use lease_traces::{Random, Trace, arrivals, bursts, erratic, merged, oracle, simulate};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::units::Hits;

const HOUR: u64 = 3_600;
const MAX_LEASE: u64 = 1_000;
const BATCH: Hits = Hits(50);

#[derive(Clone, Copy)]
enum Expected {
    Steady,
    Repeating,
    Wrong,
}

fn main() {
    println!(
        "| demand | hits | batch of 50 | AdaGrad | recent demand | learned | oracle | ratio | bound |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, expected, trace) in traces() {
        let sizings = [LeaseSizing::Fixed(BATCH), LeaseSizing::Recent, LeaseSizing::Learned];
        let [fixed, recent, learned] = sizings.map(|sizing| simulate(sizing, &trace, MAX_LEASE));
        let adagrad = simulate_adagrad(BATCH.0, &trace, MAX_LEASE);
        let best = oracle(&trace, MAX_LEASE);
        let bound = match expected {
            Expected::Steady => "",
            Expected::Repeating => "0.7",
            Expected::Wrong => "1.1",
        };
        let columns = [fixed, adagrad, recent, learned, best]
            .map(|used| format!("{}, {}", used.calls, used.unspent))
            .join(" | ");
        let ratio = learned.calls as f64 / recent.calls as f64;
        println!("| {name} | {} | {columns} | {ratio:.2} | {bound} |", trace.len());
    }
}

fn traces() -> Vec<(&'static str, Expected, Trace)> {
    use Expected::{Repeating, Steady, Wrong};
    let random = &mut Random(35);
    let minutes: Vec<f64> = (0..180).map(|minute| f64::from(minute) * 60.0 + 3.0).collect();
    let about_500 = |random: &mut Random| random.hits(450, 550);
    vec![
        (
            "constant, 4 a second",
            Steady,
            (0..4 * HOUR).map(|hit| lease_traces::seconds_after_start(hit as f64 / 4.0)).collect(),
        ),
        ("random arrivals, 4 a second", Steady, arrivals(random, 3 * HOUR, |_| 4.0)),
        ("random arrivals, 1 in 5 seconds", Steady, arrivals(random, 24 * HOUR, |_| 0.2)),
        (
            "daily cycle, 0.1 to 6 a second",
            Repeating,
            arrivals(random, 48 * HOUR, |second| daily(second, 6.0)),
        ),
        (
            "daily cycle, 1 to 60 a second",
            Repeating,
            arrivals(random, 24 * HOUR, |second| daily(second, 60.0)),
        ),
        ("500 hits each minute", Repeating, bursts(random, &minutes, |_| 500)),
        ("450 to 550 hits each minute", Repeating, bursts(random, &minutes, about_500)),
        ("the same, and 2 a second", Repeating, {
            let burst = bursts(random, &minutes, about_500);
            merged(burst, arrivals(random, 3 * HOUR, |_| 2.0))
        }),
        ("500 hits each minute, shifted every 5 minutes", Wrong, {
            let starts = shifted(random);
            bursts(random, &starts, |_| 500)
        }),
        ("the same, and 2 a second", Wrong, {
            let starts = shifted(random);
            let burst = bursts(random, &starts, |_| 500);
            merged(burst, arrivals(random, 3 * HOUR, |_| 2.0))
        }),
        (
            "50 to 1,000 hits each minute",
            Wrong,
            bursts(random, &minutes, |random| random.hits(50, 1_000)),
        ),
        ("100 and 1,000 hits in turn, 3 minutes each", Wrong, {
            let mut turn = 0;
            let all: Vec<Trace> = minutes
                .iter()
                .map(|start| {
                    turn += 1;
                    let hits = if turn % 6 < 3 { 100 } else { 1_000 };
                    bursts(random, &[*start], |_| hits)
                })
                .collect();
            all.concat()
        }),
        ("erratic: pauses, rates, bursts", Wrong, erratic(random, 8.0 * 3_600.0)),
        ("random walk, 0.1 to 50 a second", Wrong, random_walk(random)),
        ("1 a second, and 2,000 hits once", Wrong, {
            let burst = bursts(random, &[4_000.0], |_| 2_000);
            merged(burst, arrivals(random, 3 * HOUR, |_| 1.0))
        }),
    ]
}

/// The rate of a daily cycle.
fn daily(second: f64, most: f64) -> f64 {
    let phase = (second / 86_400.0 * std::f64::consts::TAU).cos();
    most * (0.508 - 0.492 * phase)
}

/// Bursts once a minute, whose second of the minute changes every five minutes.
fn shifted(random: &mut Random) -> Vec<f64> {
    let mut shift = 0.0;
    let mut starts = Vec::new();
    for minute in 0..180 {
        if minute % 5 == 0 {
            shift = random.between(0.0, 55.0);
        }
        starts.push(f64::from(minute) * 60.0 + shift);
    }
    starts
}

/// A rate that changes by up to a third every ten seconds.
fn random_walk(random: &mut Random) -> Trace {
    let mut rates = vec![2.0_f64];
    for step in 0..1_080 {
        let next = rates[step] * random.between(-0.3, 0.3).exp();
        rates.push(next.clamp(0.1, 50.0));
    }
    arrivals(random, 3 * HOUR, |second| rates[second as usize / 10])
}
