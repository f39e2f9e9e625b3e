//! The parameters of the algorithms: `target`, `tolerance`, `increase`, `decrease` and `window`.

use proptest::prelude::*;
use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, AdaptiveTuning, Hundredths,
};
use sluicegate_kernel::units::Nanos;

use super::{ALGORITHMS, Backend, NO_FLEET, bounded, ms, queueing};
use crate::dice::{Dice, seed};

const WORKERS: u32 = 40;
/// A tolerance that never lowers the limit in these tests.
const ANY_LATENCY: Option<Hundredths> = Some(Hundredths(1_000));

pub fn parameters() -> impl Strategy<Value = AdaptiveTuning> {
    let hundredths =
        |range: std::ops::Range<u32>| prop::option::of(range).prop_map(|it| it.map(Hundredths));
    let nanos = || prop::option::of(any::<u64>()).prop_map(|it| it.map(Nanos));
    let all = (nanos(), hundredths(105..1_001_u32), prop::option::of(1..1_001_u32));
    let probes = (hundredths(5..101), nanos(), hundredths(30..91));
    (all, hundredths(10..100), nanos(), probes).prop_map(
        |((target, tolerance, increase), decrease, window, probes)| {
            let (smoothing, probe_interval, probe_depth) = probes;
            AdaptiveTuning {
                target,
                tolerance,
                increase,
                decrease,
                window,
                smoothing,
                probe_interval,
                probe_depth,
            }
        },
    )
}

fn tuned(law: AdaptiveAlgorithm, start: u32, tuning: AdaptiveTuning) -> AdaptiveLimit {
    AdaptiveLimit::new(start, Some(AdaptiveConfig { tuning, ..bounded(law, 1, 1_000) }), 1)
}

#[test]
fn aimd_adds_the_increase_and_multiplies_by_the_decrease() {
    let tuning = AdaptiveTuning {
        increase: Some(3),
        decrease: Some(Hundredths(75)),
        ..AdaptiveTuning::default()
    };
    let mut policy = tuned(AdaptiveAlgorithm::Aimd, 50, tuning);
    let mut backend = Backend::new(NO_FLEET);
    backend.rounds(10, &mut policy, |_| ms(10));
    assert_eq!(policy.limit(), 80);
    backend.rounds(1, &mut policy, |_| ms(21));
    assert_eq!(policy.limit(), 60);
    backend.round(&mut policy, RequestOutcome::Dropped, |_| ms(1));
    assert_eq!(policy.limit(), 45);
}

#[test]
fn gradient2_adds_the_increase_and_multiplies_by_the_decrease() {
    let tuning = AdaptiveTuning {
        increase: Some(4),
        decrease: Some(Hundredths(75)),
        ..AdaptiveTuning::default()
    };
    let limit_after = |outcome| {
        let mut policy = tuned(AdaptiveAlgorithm::Gradient2, 100, tuning);
        let mut backend = Backend::new(NO_FLEET);
        for _ in 0..10 {
            backend.round(&mut policy, outcome, |_| ms(10));
        }
        policy.limit()
    };
    assert_eq!(limit_after(RequestOutcome::Success), 107, "ten times 0.2 · 4, rounded down");
    // The limit L becomes 0.8 L + 0.2 (0.75 L + 4) = 0.95 L + 0.8, ten times.
    assert_eq!(limit_after(RequestOutcome::Dropped), 66);
}

#[test]
fn tolerance_is_the_multiple_of_min_rtt_that_lowers_the_limit() {
    for law in [AdaptiveAlgorithm::Aimd, AdaptiveAlgorithm::Gradient] {
        for (tolerance, rtt, is_lower) in [(110, 12, true), (150, 14, false), (150, 17, true)] {
            let tolerance = Some(Hundredths(tolerance));
            let mut policy =
                tuned(law, 50, AdaptiveTuning { tolerance, ..AdaptiveTuning::default() });
            let mut backend = Backend::new(NO_FLEET);
            backend.rounds(10, &mut policy, |_| ms(10));
            let before = policy.limit();
            backend.rounds(1, &mut policy, |_| ms(rtt));
            assert_eq!(policy.limit() < before, is_lower, "{law:?}, {tolerance:?}, {rtt} ms");
        }
    }
}

#[test]
fn a_queue_stays_under_the_target_latency() {
    let seed = seed();
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    for law in ALGORITHMS {
        for (target, share) in [(12, NO_FLEET), (14, NO_FLEET), (14, 20), (30, NO_FLEET)] {
            // Each share belongs to one of several equal replicas.
            let workers = WORKERS.min(share);
            let tuning = AdaptiveTuning {
                target: Some(ms(target)),
                tolerance: ANY_LATENCY,
                ..AdaptiveTuning::default()
            };
            let mut policy = tuned(law, 10, tuning);
            let mut backend = Backend::new(share);
            let mut late = 0;
            for round in 0..600 {
                // Latency varies by 4 % around that of the queue.
                let noise = 96 + dice.up_to(8);
                let rtt = |in_flight| Nanos(queueing(workers)(in_flight).0 * noise / 100);
                let in_flight = policy.limit().min(share);
                late += u32::from(200 < round && ms(target) < rtt(in_flight));
                backend.round(&mut policy, RequestOutcome::Success, rtt);
            }
            assert!(late <= 4, "{law:?}, {target} ms, seed {seed}: {late} of 400 rounds");
            let limit = policy.limit().min(share);
            assert!(workers * 6 / 10 <= limit, "{law:?}, {target} ms: {limit} of {workers}");
        }
    }
}

#[test]
fn a_target_below_the_min_rtt_lowers_the_limit_to_its_minimum() {
    for law in ALGORITHMS {
        let tuning = AdaptiveTuning { target: Some(ms(9)), ..AdaptiveTuning::default() };
        let config = AdaptiveConfig { tuning, ..bounded(law, 3, 1_000) };
        let (mut policy, mut backend) =
            (AdaptiveLimit::new(100, Some(config), 1), Backend::new(NO_FLEET));
        backend.rounds(100, &mut policy, |_| ms(10));
        assert_eq!(policy.limit(), 3, "{law:?}");
    }
}

#[test]
fn the_limit_changes_once_per_window() {
    let (window, rtt) = (Nanos::SECOND, ms(10));
    for law in ALGORITHMS {
        // A probe would change the limit between two windows.
        let (window_of_samples, probe_interval) = (Some(window), Some(Nanos::from_secs(3_600)));
        let tuning = AdaptiveTuning {
            window: window_of_samples,
            probe_interval,
            ..AdaptiveTuning::default()
        };
        let config = AdaptiveConfig { tuning, ..bounded(law, 10, 1_000) };
        let (mut policy, mut backend) =
            (AdaptiveLimit::new(10, Some(config), 1), Backend::new(NO_FLEET));
        let mut changes = vec![backend.now];
        for _ in 0..3_000 {
            let before = policy.limit();
            backend.round(&mut policy, RequestOutcome::Success, |_| rtt);
            if policy.limit() != before {
                changes.push(backend.now);
            }
        }
        assert!(4 < changes.len(), "{law:?} changed {} times in 30 s", changes.len());
        for pair in changes.windows(2) {
            let gap = pair[1].since(pair[0]);
            assert!(window <= gap, "{law:?}: {gap:?} between two changes");
        }
    }
}

#[test]
fn a_window_with_one_drop_lowers_the_limit_once() {
    for law in ALGORITHMS {
        let tuning = AdaptiveTuning { window: Some(Nanos::SECOND), ..AdaptiveTuning::default() };
        let config = AdaptiveConfig { tuning, ..bounded(law, 10, 1_000) };
        let (mut policy, mut backend) =
            (AdaptiveLimit::new(100, Some(config), 1), Backend::new(NO_FLEET));
        for round in 0..150 {
            let outcome =
                if round == 50 { RequestOutcome::Dropped } else { RequestOutcome::Success };
            backend.round(&mut policy, outcome, |_| ms(10));
        }
        let config = bounded(law, 10, 1_000);
        let mut calm = AdaptiveLimit::new(100, Some(AdaptiveConfig { tuning, ..config }), 1);
        let mut backend = Backend::new(NO_FLEET);
        backend.rounds(150, &mut calm, |_| ms(10));
        assert!(policy.limit() < calm.limit(), "{law:?}: {} and {}", policy.limit(), calm.limit());
    }
}

#[test]
fn reload_applies_new_parameters_and_keeps_the_limit() {
    for law in ALGORITHMS {
        let mut policy = tuned(law, 10, AdaptiveTuning::default());
        let mut backend = Backend::new(NO_FLEET);
        backend.rounds(100, &mut policy, queueing(WORKERS));
        let learned = policy.limit();
        let tuning = AdaptiveTuning { target: Some(ms(9)), ..AdaptiveTuning::default() };
        policy.reload(10, Some(AdaptiveConfig { tuning, ..bounded(law, 1, 1_000) }));
        assert_eq!(policy.limit(), learned, "{law:?}");
        backend.rounds(100, &mut policy, queueing(WORKERS));
        assert!(policy.limit() < 10, "{law:?}: {}", policy.limit());
    }
}
