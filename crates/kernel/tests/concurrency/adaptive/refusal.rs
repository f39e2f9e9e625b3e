//! The `gradient` algorithm with a backend that refuses requests.

use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveLimit, LatencySample};
use sluicegate_kernel::units::Nanos;

use super::{NO_FLEET, adaptive_limit, ms, queueing};
use crate::dice::{Dice, seed};

fn dropped(ended_at: Nanos, in_flight: u32) -> LatencySample {
    LatencySample { ended_at, rtt: ms(5), in_flight, outcome: RequestOutcome::Dropped }
}

fn limit_after(start: u32, samples: &[LatencySample], share: u32) -> u32 {
    let mut policy = adaptive_limit(AdaptiveAlgorithm::Gradient, start);
    for sample in samples {
        policy.record(sample, share);
    }
    policy.limit()
}

#[test]
fn a_refusal_lowers_the_limit_below_the_served_requests() {
    let refused_at = |in_flight| [dropped(ms(100), in_flight)];
    assert_eq!(limit_after(60, &refused_at(41), NO_FLEET), 36, "40 served, less 4");
    assert_eq!(limit_after(20, &refused_at(11), NO_FLEET), 8, "10 served, less 15 %");
    assert_eq!(limit_after(60, &refused_at(90), NO_FLEET), 56, "60 allowed, less 4");
    assert_eq!(limit_after(60, &refused_at(21), 30), 37, "21 of 30 are 42 of 60");
}

#[test]
fn a_refusal_at_low_load_keeps_the_limit() {
    for (in_flight, limit) in [(1, 60), (29, 60), (30, 25)] {
        assert_eq!(limit_after(60, &[dropped(ms(100), in_flight)], NO_FLEET), limit);
    }
    assert_eq!(limit_after(60, &[dropped(ms(100), 14)], 30), 60, "14 of 30 are 28 of 60");
}

#[test]
fn requests_admitted_before_the_fall_do_not_lower_it_again() {
    let [first, before, after] = [100, 103, 106].map(|at| dropped(ms(at), 41));
    assert_eq!(limit_after(60, &[first, before], NO_FLEET), 36);
    assert_eq!(limit_after(60, &[first, before, after], NO_FLEET), 32);
}

/// Rounds of a backend with 100 workers that drops `percent` of its requests at any load. Returns
/// the mean limit of the last half.
fn mean_limit_with_failures(percent: u64, dice: &mut Dice) -> u32 {
    let mut policy: AdaptiveLimit = adaptive_limit(AdaptiveAlgorithm::Gradient, 50);
    let (mut now, mut sum) = (Nanos::from_secs(1_000), 0);
    for round in 0..2_000 {
        let in_flight = policy.limit();
        let rtt = queueing(100)(in_flight);
        now = now.plus(rtt);
        for _ in 0..in_flight {
            let is_dropped = dice.up_to(99) < percent;
            let outcome =
                if is_dropped { RequestOutcome::Dropped } else { RequestOutcome::Success };
            policy.record(&LatencySample { ended_at: now, rtt, in_flight, outcome }, NO_FLEET);
        }
        sum += if round < 1_000 { 0 } else { policy.limit() };
    }
    sum / 1_000
}

#[test]
fn one_percent_of_failures_at_any_load_keep_the_limit() {
    let seed = seed();
    let mean = mean_limit_with_failures(1, &mut Dice::new(seed));
    assert!(90 <= mean, "seed {seed}: {mean} for 100 workers");
    let many = mean_limit_with_failures(30, &mut Dice::new(seed));
    assert!(many < 20, "seed {seed}: {many} with 30 % of failures");
}

#[test]
fn a_pause_of_growth_does_not_keep_the_limit_of_a_drain() {
    let mut policy = adaptive_limit(AdaptiveAlgorithm::Gradient, 50);
    let (mut now, mut drained) = (Nanos::from_secs(1_000), None);
    for _ in 0..200 {
        let in_flight = policy.limit();
        let rtt = queueing(100)(in_flight);
        now = now.plus(rtt);
        for _ in 0..in_flight {
            let outcome = RequestOutcome::Success;
            policy.record(&LatencySample { ended_at: now, rtt, in_flight, outcome }, NO_FLEET);
        }
        if drained.is_none() && policy.limit() < 50 {
            drained = Some(policy.limit());
            policy.pause_growth(now.plus(Nanos::from_secs(3_600)));
        }
    }
    let drained = drained.expect("the first window is followed by a drain");
    assert!(drained <= 25 && 45 <= policy.limit(), "{drained}, then {}", policy.limit());
    assert!(policy.limit() <= 65, "the limit returns to 1.3 x 50: {}", policy.limit());
}
