//! The law of adaptive limits in a fleet, with the experiment of `benches/adaptive_fleet`.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../../../tests/support/dice.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod dice;
#[path = "../../../benches/adaptive_fleet/fleet.rs"]
#[allow(clippy::cast_precision_loss)]
mod fleet;
#[path = "../../../benches/adaptive_fleet/store.rs"]
mod store;

use fleet::{Figures, Fleet, Load, Scenario, last_half};
use sluicegate_kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig};
use sluicegate_kernel::units::Nanos;

const ALGORITHMS: [AdaptiveAlgorithm; 3] =
    [AdaptiveAlgorithm::Gradient, AdaptiveAlgorithm::Aimd, AdaptiveAlgorithm::Gradient2];
const FLEETS: [Fleet; 7] = [
    Fleet::Shared(1, Load::Even),
    Fleet::Shared(2, Load::Even),
    Fleet::Shared(2, Load::Skewed),
    Fleet::Shared(4, Load::Even),
    Fleet::Shared(4, Load::Skewed),
    Fleet::Shared(16, Load::Even),
    Fleet::Shared(16, Load::Skewed),
];

fn scenario(fleet: Fleet, algorithm: AdaptiveAlgorithm, seconds: u64) -> Scenario {
    let (adaptive, seed) = (AdaptiveConfig::new(algorithm, 4, 400), dice::seed());
    println!("SLUICEGATE_SEED={seed}");
    let service = Nanos(200 * Nanos::MILLI.0);
    Scenario { fleet, adaptive, start: 20, service, seconds, seed }
}

fn is_close(got: f64, want: f64) -> bool {
    (got - want).abs() <= 0.2 * want
}

#[test]
fn a_fleet_has_the_limit_of_one_replica_with_the_whole_load() {
    for algorithm in ALGORITHMS {
        let alone = last_half(&scenario(Fleet::Local, algorithm, 120).run());
        for fleet in FLEETS {
            let got = last_half(&scenario(fleet, algorithm, 120).run());
            let Figures { limit, rtt, goodput } = got;
            println!("{algorithm:?} {fleet:?}: {limit:.1} at {rtt:.3} s, {goodput:.1}/s");
            let is_lawful = is_close(limit, alone.limit)
                && is_close(rtt, alone.rtt)
                && is_close(goodput, alone.goodput);
            assert!(is_lawful, "{algorithm:?} {fleet:?}: {got:?}, one replica {alone:?}");
        }
    }
}

#[test]
fn a_saturated_limit_does_not_drift_in_six_minutes() {
    for algorithm in ALGORITHMS {
        let seconds = scenario(Fleet::Local, algorithm, 360).run();
        let (early, late) = (last_half(&seconds[30..120]), last_half(&seconds[240..]));
        println!("{algorithm:?}: {early:?}, {late:?}");
        assert!(is_close(late.limit, early.limit), "{algorithm:?}: {early:?}, then {late:?}");
        // Each rule allows a queue: at most 2.4 times the capacity, 48 requests.
        assert!(late.rtt < 0.5, "{algorithm:?}: {late:?}, 0.2 s without a queue");
    }
}

#[test]
fn a_limit_above_the_capacity_at_the_start_comes_down() {
    for algorithm in ALGORITHMS {
        for fleet in [Fleet::Local, Fleet::Shared(4, Load::Even)] {
            let scenario = Scenario { start: 100, ..scenario(fleet, algorithm, 480) };
            let late = last_half(&scenario.run());
            println!("{algorithm:?} {fleet:?}: {late:?}");
            assert!(late.limit < 70.0, "{algorithm:?} {fleet:?}: {late:?}, 20 served at once");
        }
    }
}
