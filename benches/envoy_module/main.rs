//! Measures the module inside a real Envoy against Envoy's own filters.
//!
//! `cargo bench --bench envoy_module` prints two tables. It needs the Envoy that
//! `scripts/test.sh` installs, and `nginx`.
//!
//! - Five Envoys with one worker share one upstream: without a limit, with the module, with the
//!   module on a route without limits, with the filter `ratelimit` and Sluicegate, and with the
//!   filter `local_ratelimit`. Requests take turns, so other load on the machine affects all of
//!   them. CPU is that of the process.
//! - The limiter of the module alone: the time of a decision, and calls per decision.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss
)]

mod envoys;
mod limiter;
mod load;

use std::time::Duration;

use envoys::{Case, Machine};
use load::Turn;

const ROUNDS: usize = 5;

const CASES: [Case; 5] =
    [Case::Bare, Case::Module, Case::ModuleOff, Case::RateLimit, Case::LocalRateLimit];

fn main() {
    let machine = Machine::start();
    let envoys: Vec<_> = CASES.iter().map(|case| machine.envoy(*case)).collect();
    println!("real Envoys, medians of {ROUNDS} turns");
    for (in_flight, requests) in [(1, 4_000), (64, 20_000)] {
        let mut turns: Vec<Vec<Turn>> = CASES.iter().map(|_| Vec::new()).collect();
        for round in 0..=ROUNDS {
            for (envoy, turns) in envoys.iter().zip(&mut turns) {
                let turn = load::measure(envoy, machine.service_id(), in_flight, requests);
                // The first round warms up.
                turns.extend((0 < round).then_some(turn));
            }
        }
        print(in_flight, &turns);
    }
    drop((envoys, machine));
    limiter::measure();
}

fn print(in_flight: usize, turns: &[Vec<Turn>]) {
    println!("\n{in_flight} in flight");
    println!(
        "{:<16} {:>9} {:>9} {:>10} {:>11} {:>11} {:>12}",
        "filter", "p50 us", "added us", "requests/s", "Envoy us", "added us", "Sluicegate us"
    );
    for (case, own) in CASES.iter().zip(turns) {
        // Subtracts within a round: a slow round is slow for all.
        let p50 = |turn: &Turn| turn.p50.as_nanos() as f64 / 1e3;
        let added = paired(own, &turns[0], |own, bare| p50(own) - p50(bare));
        let added_cpu = paired(own, &turns[0], |own, bare| own.envoy_cpu - bare.envoy_cpu);
        let ratio = paired(own, &turns[0], |own, bare| own.rate / bare.rate);
        println!(
            "{:<16} {:>9.1} {:>9.1} {:>6.0} {:.2} {:>11.1} {:>11.1} {:>12.2}",
            case.name(),
            median(own.iter().map(p50).collect()),
            added,
            median(own.iter().map(|turn| turn.rate).collect()),
            ratio,
            median(own.iter().map(|turn| turn.envoy_cpu).collect()),
            added_cpu,
            median(own.iter().map(|turn| turn.service_cpu).collect()),
        );
    }
}

fn paired(own: &[Turn], bare: &[Turn], value: impl Fn(&Turn, &Turn) -> f64) -> f64 {
    median(own.iter().zip(bare).map(|(own, bare)| value(own, bare)).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn patiently<T>(name: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{name}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
