//! The adaptive algorithms: their common bounds, and the behavior of each.

mod fleet;
mod latent_capacity;
mod real_backend;
mod refusal;
mod tuning;

use proptest::prelude::*;
use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, LatencySample,
};
use sluicegate_kernel::units::Nanos;

use crate::dice::{Dice, seed};

const ALGORITHMS: [AdaptiveAlgorithm; 3] =
    [AdaptiveAlgorithm::Gradient, AdaptiveAlgorithm::Gradient2, AdaptiveAlgorithm::Aimd];
const NO_FLEET: u32 = u32::MAX;

fn bounded(algorithm: AdaptiveAlgorithm, min: u32, max: u32) -> AdaptiveConfig {
    AdaptiveConfig::new(algorithm, min, max)
}

fn adaptive_limit(algorithm: AdaptiveAlgorithm, start: u32) -> AdaptiveLimit {
    AdaptiveLimit::new(start, Some(bounded(algorithm, 1, 1_000)), 1)
}

const fn ms(count: u64) -> Nanos {
    Nanos(count * Nanos::MILLI.0)
}

/// A backend that is used to the limit. The function `rtt` maps requests in flight to latency.
struct Backend {
    now: Nanos,
    share: u32,
}

impl Backend {
    const fn new(share: u32) -> Self {
        Self { now: Nanos::from_secs(1_000), share }
    }

    fn round(
        &mut self,
        policy: &mut AdaptiveLimit,
        outcome: RequestOutcome,
        rtt: impl Fn(u32) -> Nanos,
    ) {
        let in_flight = policy.limit().min(self.share);
        let rtt = rtt(in_flight);
        self.now = self.now.plus(rtt);
        for _ in 0..in_flight {
            policy
                .record(&LatencySample { ended_at: self.now, rtt, in_flight, outcome }, self.share);
        }
    }

    fn rounds(&mut self, count: u32, policy: &mut AdaptiveLimit, rtt: impl Fn(u32) -> Nanos) {
        for _ in 0..count {
            self.round(policy, RequestOutcome::Success, &rtt);
        }
    }
}

/// The latency of a backend that serves requests of 10 ms, `workers` at a time.
fn queueing(workers: u32) -> impl Fn(u32) -> Nanos {
    move |in_flight| Nanos(ms(10).0 * u64::from(in_flight.max(workers)) / u64::from(workers))
}

fn outcomes() -> impl Strategy<Value = RequestOutcome> {
    prop_oneof![
        Just(RequestOutcome::Success),
        Just(RequestOutcome::Ignored),
        Just(RequestOutcome::Dropped)
    ]
}

proptest! {
    #[test]
    fn the_limit_stays_within_its_bounds(
        law in prop::sample::select(&ALGORITHMS[..]),
        (min, max, start, share) in (0..50_u32, 0..200_u32, 0..300_u32, 0..300_u32),
        (jitter, tuning) in (any::<u64>(), tuning::parameters()),
        samples in proptest::collection::vec(
            (any::<u64>(), prop_oneof![0..10_u64, any::<u64>()], any::<u32>(), outcomes()), 1..400,
        ),
    ) {
        let config = AdaptiveConfig { tuning, ..bounded(law, min, max) };
        let mut policy = AdaptiveLimit::new(start, Some(config), jitter);
        for (at, rtt, in_flight, outcome) in samples {
            policy.record(&LatencySample { ended_at: Nanos(at), rtt: Nanos(rtt), in_flight, outcome }, share);
            let low = min.max(1);
            prop_assert!((low..=max.max(low)).contains(&policy.limit()));
        }
    }
}

#[test]
fn a_pause_prevents_growth_until_its_end() {
    for law in ALGORITHMS {
        let (mut policy, mut backend) = (adaptive_limit(law, 4), Backend::new(NO_FLEET));
        let end = backend.now.plus(Nanos::from_secs(2));
        policy.pause_growth(end);
        while backend.now < end {
            backend.round(&mut policy, RequestOutcome::Success, queueing(1_000));
            assert!(policy.limit() <= 4, "{law:?}: {}", policy.limit());
        }
        policy.advance(backend.now);
        backend.rounds(50, &mut policy, queueing(1_000));
        assert!(4 < policy.limit(), "{law:?} stays at {}", policy.limit());
    }
}

#[test]
fn ignored_requests_do_not_change_the_limit() {
    for law in ALGORITHMS {
        let (mut policy, mut backend) = (adaptive_limit(law, 40), Backend::new(NO_FLEET));
        for _ in 0..500 {
            backend.round(&mut policy, RequestOutcome::Ignored, |_| Nanos(0));
        }
        assert_eq!(policy.limit(), 40, "{law:?}");
    }
}

#[test]
fn fast_drops_lower_the_limit_but_not_the_min_rtt() {
    for law in ALGORITHMS {
        let (mut policy, mut backend) = (adaptive_limit(law, 40), Backend::new(NO_FLEET));
        backend.rounds(20, &mut policy, queueing(40));
        let before = policy.limit();
        backend.round(&mut policy, RequestOutcome::Dropped, |_| Nanos(1));
        assert!(policy.limit() < before, "{law:?}");
        let after = policy.limit();
        backend.rounds(60, &mut policy, queueing(40));
        assert!(after < policy.limit(), "{law:?} holds 10 ms for slow now");
    }
}

#[test]
fn gradient_follows_the_number_of_workers() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
    for workers in [16, 64, 16, 200, 50] {
        backend.rounds(12, &mut policy, queueing(workers));
        for _ in 0..200 {
            backend.round(&mut policy, RequestOutcome::Success, queueing(workers));
            let limit = policy.limit();
            // The limit is about 0.7 times the workers during a min RTT probe, and 1.3 times
            // otherwise.
            assert!(workers * 6 / 10 <= limit && limit < workers * 2, "{limit} for {workers}");
        }
    }
}

#[test]
fn gradient_distinguishes_a_slower_backend_from_a_queue() {
    for slower in [2, 3, 10] {
        let (mut policy, mut backend) =
            (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
        backend.rounds(50, &mut policy, queueing(20));
        let slow = |in_flight: u32| Nanos(queueing(20)(in_flight).0 * slower);
        backend.rounds(30, &mut policy, slow);
        assert!(18 <= policy.limit(), "{} of 20 at {slower} times", policy.limit());
        backend.rounds(30, &mut policy, queueing(20));
        assert!((18..40).contains(&policy.limit()), "{} after it", policy.limit());
    }
}

#[test]
fn gradient_at_its_minimum_corrects_a_low_min_rtt() {
    for slower in [7, 10] {
        let mut policy = AdaptiveLimit::new(4, Some(bounded(AdaptiveAlgorithm::Gradient, 4, 4)), 1);
        let mut backend = Backend::new(NO_FLEET);
        backend.rounds(50, &mut policy, |_| ms(5));
        policy.reload(4, Some(bounded(AdaptiveAlgorithm::Gradient, 4, 1_000)));
        let slow = |in_flight| Nanos(queueing(20)(in_flight).0 * slower / 10);
        backend.rounds(60, &mut policy, slow);
        assert!(18 <= policy.limit(), "{} of 20 at {slower} ms", policy.limit());
    }
}

#[test]
fn few_samples_do_not_double_the_limit() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 2), Backend::new(NO_FLEET));
    let mut before = policy.limit();
    for _ in 0..60 {
        backend.rounds(1, &mut policy, |_| ms(10));
        let limit = policy.limit();
        // The doubt of n samples is 0.25 / n. Three times that is below 0.15 only if 5 < n.
        assert!(5 < before || limit <= before * 13 / 10 + 1, "{limit} after {before}");
        before = limit;
    }
    assert_eq!(before, 1_000, "it doubles from there");
}

/// A drain after an overload: six workers, a min RTT of 10 ms, and a limit of 1.
fn policy_in_drain() -> (AdaptiveLimit, Backend) {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
    backend.rounds(60, &mut policy, queueing(6));
    assert_eq!(policy.min_rtt(), Some(ms(10)));
    backend.rounds(1, &mut policy, |_| ms(60));
    assert_eq!(policy.limit(), 1);
    (policy, backend)
}

#[test]
fn one_slow_drain_sample_hardly_changes_min_rtt() {
    let (mut policy, mut backend) = policy_in_drain();
    backend.rounds(1, &mut policy, |_| ms(14));
    assert_eq!((policy.limit(), policy.min_rtt()), (1, Some(ms(10))), "by one that was slow");
    backend.rounds(1, &mut policy, |_| ms(10));
    // The mean, 12 ms, is close, so the min RTT moves by a fifth of the difference.
    assert_eq!(policy.min_rtt(), Some(Nanos(ms(104).0 / 10)), "and the drain is over");
}

#[test]
fn four_high_latencies_with_a_drained_limit_raise_the_min_rtt() {
    let (mut policy, mut backend) = policy_in_drain();
    for _ in 0..4 {
        assert_eq!((policy.limit(), policy.min_rtt()), (1, Some(ms(10))));
        backend.rounds(1, &mut policy, |_| ms(15));
    }
    assert_eq!(policy.min_rtt(), Some(ms(15)));
    assert!(1 < policy.limit());
}

#[test]
fn sparse_requests_set_the_min_rtt_to_their_latency() {
    let (mut policy, mut now) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Nanos::from_secs(1_000));
    let seed = seed();
    let mut dice = Dice::new(seed);
    for _ in 0..20_000 {
        // Ten requests a second, one at a time, 2 to 18 ms each.
        now = now.plus(ms(100));
        let rtt = ms(2 + dice.up_to(16));
        policy.record(
            &LatencySample { ended_at: now, rtt, in_flight: 1, outcome: RequestOutcome::Success },
            NO_FLEET,
        );
        let ideal = policy.min_rtt().unwrap_or_default();
        assert!(ideal <= ms(18), "seed {seed}: {ideal:?} where none took longer than 18 ms");
    }
}

#[test]
fn large_overload_is_detected_before_half_the_requests_return() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
    backend.rounds(40, &mut policy, queueing(32));
    let (in_flight, outcome) = (policy.limit(), RequestOutcome::Success);
    let rtt = queueing(8)(in_flight);
    for _ in 0..in_flight / 2 {
        backend.now = backend.now.plus(Nanos::MILLI);
        policy.record(&LatencySample { ended_at: backend.now, rtt, in_flight, outcome }, NO_FLEET);
    }
    assert!(policy.limit() < in_flight / 2, "{} of {in_flight}", policy.limit());
}

#[test]
fn min_rtt_measured_during_a_queue_is_corrected() {
    let mut policy =
        AdaptiveLimit::new(200, Some(bounded(AdaptiveAlgorithm::Gradient, 1, 1_000)), 1);
    let mut backend = Backend::new(NO_FLEET);
    backend.rounds(30, &mut policy, queueing(20));
    assert!(policy.limit() < 40, "{}", policy.limit());
}

#[test]
fn one_zero_latency_sample_does_not_collapse_the_limit() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
    backend.rounds(100, &mut policy, queueing(40));
    let before = policy.limit();
    let quick = LatencySample {
        ended_at: backend.now,
        rtt: Nanos(0),
        in_flight: 1,
        outcome: RequestOutcome::Success,
    };
    policy.record(&quick, NO_FLEET);
    backend.rounds(10, &mut policy, queueing(40));
    assert!(before / 2 <= policy.limit(), "{} from {before}", policy.limit());
}

#[test]
fn full_share_grows_the_limit_and_latency_lowers_it() {
    for law in [AdaptiveAlgorithm::Gradient, AdaptiveAlgorithm::Aimd] {
        let (mut policy, mut backend) = (adaptive_limit(law, 100), Backend::new(10));
        backend.rounds(100, &mut policy, queueing(1_000));
        assert!(100 < policy.limit(), "{law:?}: a share in full use is a limit in full use");
    }
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 100), Backend::new(10));
    backend.rounds(20, &mut policy, queueing(1_000));
    let before = policy.limit();
    backend.rounds(1, &mut policy, |_| ms(100));
    assert!(policy.limit() < before, "ten times the latency and nothing happened");
}

#[test]
fn an_unused_limit_does_not_grow() {
    for law in ALGORITHMS {
        let (mut policy, mut now) = (adaptive_limit(law, 100), Nanos::from_secs(1_000));
        for _ in 0..20_000 {
            now = now.plus(ms(10));
            let outcome = RequestOutcome::Success;
            policy.record(
                &LatencySample { ended_at: now, rtt: ms(10), in_flight: 3, outcome },
                NO_FLEET,
            );
            assert!(policy.limit() <= 130, "{law:?}: {}", policy.limit());
        }
    }
}

#[test]
fn min_rtt_probes_are_short_shallow_and_jittered() {
    let probes = |jitter| {
        let mut policy =
            AdaptiveLimit::new(10, Some(bounded(AdaptiveAlgorithm::Gradient, 1, 1_000)), jitter);
        let mut backend = Backend::new(NO_FLEET);
        backend.rounds(30, &mut policy, queueing(40));
        let mut probes = Vec::new();
        for round in 0..2_000 {
            backend.round(&mut policy, RequestOutcome::Success, queueing(40));
            assert!(28 <= policy.limit(), "a cliff: {}", policy.limit());
            if policy.limit() < 40 {
                probes.push(round);
            }
        }
        probes
    };
    let (one, other) = (probes(1), probes(2));
    assert!((8..=32).contains(&one.len()), "{one:?}");
    assert_ne!(one, other, "all replicas look at once");
}

#[test]
fn a_lowered_limit_recovers_without_successful_requests() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Gradient, 10), Backend::new(NO_FLEET));
    backend.rounds(30, &mut policy, queueing(40));
    backend.rounds(1, &mut policy, queueing(4));
    let low = policy.limit();
    assert!(low < 20, "an overload: {low}");
    backend.round(&mut policy, RequestOutcome::Ignored, |_| Nanos::from_secs(10));
    assert!(low < policy.limit(), "stuck at {low}");
}

#[test]
fn reload_keeps_an_unchanged_algorithms_state() {
    for law in ALGORITHMS {
        let (mut policy, mut backend) = (adaptive_limit(law, 10), Backend::new(NO_FLEET));
        backend.rounds(100, &mut policy, queueing(60));
        let learnt = policy.limit();
        assert_ne!(learnt, 10, "{law:?}");
        policy.reload(10, Some(bounded(law, 1, 2_000)));
        assert_eq!(policy.limit(), learnt, "{law:?}");
        policy.reload(10, Some(bounded(law, 1, 20)));
        assert_eq!(policy.limit(), learnt.min(20), "{law:?} cut to its new bound");
        policy.reload(7, None);
        assert_eq!(policy.limit(), 7, "{law:?} to a static limit");
    }
}

#[test]
fn gradient2_computes_the_documented_example() {
    let (mut policy, mut now) = (adaptive_limit(AdaptiveAlgorithm::Gradient2, 64), Nanos::SECOND);
    let mut round_trip = |policy: &mut AdaptiveLimit, rtt, in_flight| {
        now = now.plus(rtt);
        let outcome = RequestOutcome::Success;
        for _ in 0..32 {
            policy.record(&LatencySample { ended_at: now, rtt, in_flight, outcome }, NO_FLEET);
        }
        policy.limit()
    };
    assert_eq!(round_trip(&mut policy, ms(10), 1), 64, "hardly used: only the min RTT is learned");
    assert_eq!(round_trip(&mut policy, ms(40), 64), 59);
}

#[test]
fn aimd_adds_one_or_takes_a_tenth_per_round_trip() {
    let (mut policy, mut backend) =
        (adaptive_limit(AdaptiveAlgorithm::Aimd, 50), Backend::new(NO_FLEET));
    assert_eq!(policy.min_rtt(), None);
    backend.rounds(10, &mut policy, |_| ms(10));
    assert_eq!((policy.limit(), policy.min_rtt()), (60, Some(ms(10))));
    backend.rounds(1, &mut policy, |_| ms(21));
    assert_eq!(policy.limit(), 54);
}
