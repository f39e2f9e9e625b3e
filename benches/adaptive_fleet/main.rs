//! Adaptive limits over several replicas, in virtual time: limit, latency and goodput.
//!
//! `cargo bench --bench adaptive_fleet` writes CSV, one row per run, and
//! `docs/pictures/adaptive_fleet.svg`. A number after `--` is the seed of service times and arrivals.
//! `cargo bench --bench adaptive_fleet -- processes` does the same with real processes, in real time:
//! three minutes for each fleet, or the number of seconds that follows.
//!
//! A backend serves 20 requests of 0.2 s at once and is saturated. Bound, also checked by
//! `crates/concurrency/tests/adaptive_fleet.rs`: in the last half of each run, limit, latency and
//! goodput of a fleet are within 20 % of those of one replica with the whole load.
#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::print_stdout)]
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods, reason = "real processes need the real clock")]

#[path = "../../tests/support/dice.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod dice;
mod fleet;
mod plot;
mod processes;
mod store;
#[path = "../../tests/support"]
#[allow(dead_code, clippy::let_underscore_must_use, reason = "made for the tests")]
mod support {
    pub mod http1;
    pub mod redis;
    pub mod resp;
    pub mod service;
    pub mod signals;
    pub mod waiting;
}

use fleet::{Figures, Fleet, Load, Scenario, last_half};
use plot::Line;
use sluicegate_kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig};
use sluicegate_kernel::units::Nanos;

const ALGORITHMS: [(&str, AdaptiveAlgorithm); 3] = [
    ("gradient", AdaptiveAlgorithm::Gradient),
    ("aimd", AdaptiveAlgorithm::Aimd),
    ("gradient2", AdaptiveAlgorithm::Gradient2),
];
const FLEETS: [(&str, Fleet); 8] = [
    ("1 local", Fleet::Local),
    ("1 shared", Fleet::Shared(1, Load::Even)),
    ("2 even", Fleet::Shared(2, Load::Even)),
    ("2 skewed", Fleet::Shared(2, Load::Skewed)),
    ("4 even", Fleet::Shared(4, Load::Even)),
    ("4 skewed", Fleet::Shared(4, Load::Skewed)),
    ("16 even", Fleet::Shared(16, Load::Even)),
    ("16 skewed", Fleet::Shared(16, Load::Skewed)),
];
const SECONDS: u64 = 180;
const SEED: u64 = 42;

fn main() {
    if std::env::args().any(|argument| argument == "processes") {
        return processes::run(&ALGORITHMS.map(|(name, _)| name));
    }
    println!(
        "algorithm,replicas,limit,rtt s,goodput/s,limit of one,rtt of one,goodput of one,kept"
    );
    let seed = std::env::args().find_map(|argument| argument.parse().ok());
    let mut lines = Vec::new();
    for (name, algorithm) in ALGORITHMS {
        let mut alone = None;
        for (replicas, fleet) in FLEETS {
            let scenario = Scenario {
                fleet,
                adaptive: AdaptiveConfig::new(algorithm, 4, 400),
                start: 20,
                service: Nanos(200 * Nanos::MILLI.0),
                seconds: SECONDS,
                seed: seed.unwrap_or(SEED),
            };
            let seconds = scenario.run();
            let got = last_half(&seconds);
            show(name, replicas, got, *alone.get_or_insert(got));
            lines.push(Line { algorithm: name, replicas, seconds });
        }
    }
    if seed.is_none() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/adaptive_fleet.svg");
        std::fs::write(picture, plot::svg(&lines, &ALGORITHMS.map(|(name, _)| name))).unwrap();
    }
}

fn show(algorithm: &str, replicas: &str, got: Figures, alone: Figures) {
    let Figures { limit, rtt, goodput } = got;
    let ratios = [limit / alone.limit, rtt / alone.rtt, goodput / alone.goodput];
    let kept = ratios.iter().all(|ratio| (0.8..=1.2).contains(ratio));
    let [of_limit, of_rtt, of_goodput] = ratios;
    print!("{algorithm},{replicas},{limit:.1},{rtt:.3},{goodput:.1},");
    println!("{of_limit:.2},{of_rtt:.2},{of_goodput:.2},{kept}");
}
