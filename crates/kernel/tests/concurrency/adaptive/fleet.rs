//! The `gradient` algorithm with a share of a fleet-wide limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveTuning, FleetShare, Hundredths, ProbeSchedule,
};
use sluicegate_kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent,
};
use sluicegate_kernel::concurrency::{Permit, RequestOutcome, Requester};
use sluicegate_kernel::coordinator::ClockReading;
use sluicegate_kernel::coordinator::aggregate::FractionalLimit;
use sluicegate_kernel::units::{Nanos, Share};

use crate::dice::{Dice, seed};

const START: Nanos = Nanos::from_secs(1_000);
const MILLI: u64 = Nanos::MILLI.0;
/// One of five equal shares of the limit.
const FLEET_SHARE: FleetShare = fleet_share(8);

const fn fleet_share(share: u32) -> FleetShare {
    FleetShare { share, limit: 40, probes: probe_schedule(START, Nanos(0)) }
}

const fn probe_schedule(here: Nanos, there: Nanos) -> ProbeSchedule {
    ProbeSchedule {
        clock: ClockReading { local_time: here, coordinator_time: there },
        heartbeat: Nanos::SECOND,
    }
}

/// One of five identical replicas of a backend that serves `capacity` requests at once.
struct GradientReplica {
    limiter: Limiter,
    now: Nanos,
    capacity: u64,
    /// The service time in milliseconds.
    takes: u64,
    out: BinaryHeap<Reverse<(Nanos, u64)>>,
    permits: Vec<Permit>,
    /// The smallest limit so far.
    least: u32,
}

impl GradientReplica {
    fn new(capacity: u64) -> Self {
        Self::with_tuning(capacity, AdaptiveTuning::default())
    }

    fn with_tuning(capacity: u64, tuning: AdaptiveTuning) -> Self {
        let config = AdaptiveConfig::new(AdaptiveAlgorithm::Gradient, 1, 1_000);
        let adaptive = Some(AdaptiveConfig { tuning, ..config });
        let mut limiter = Limiter::new(&LimiterConfig { adaptive, ..LimiterConfig::fixed(10) }, 7);
        limiter.step(START, LimiterEvent::FleetShare(FLEET_SHARE));
        let (out, permits) = Default::default();
        Self { limiter, now: START, capacity, takes: 10, out, permits, least: u32::MAX }
    }

    /// Runs at the limit for `millis`. A queue slows all requests equally.
    fn run_for(&mut self, millis: u64) {
        let end = self.now.plus(Nanos(millis * MILLI));
        while self.now < end {
            self.acquire_all();
            let Some(Reverse((at, place))) = self.out.pop() else { panic!("nobody is in flight") };
            self.now = at;
            let permit = self.permits[usize::try_from(place).unwrap()];
            let (outcome, rtt) = (RequestOutcome::Success, None);
            self.limiter.step(at, LimiterEvent::Release { permit, outcome, rtt });
            self.least = self.least.min(self.limiter.limit());
        }
    }

    fn acquire_all(&mut self) {
        let arrive =
            LimiterEvent::Acquire { lifetime: None, timeout: Nanos(0), by: Requester::ANY };
        while let [LimiterEffect::Admit(permit)] = self.limiter.step(self.now, arrive)[..] {
            let whole = u64::from(self.limiter.in_flight()) * 5;
            let takes = self.takes * MILLI * whole.max(self.capacity) / self.capacity;
            self.out.push(Reverse((self.now.plus(Nanos(takes)), self.permits.len() as u64)));
            self.permits.push(permit);
        }
    }

    fn estimate(&self) -> Option<FractionalLimit> {
        self.limiter.adaptive_limit().wanted_limit()
    }
}

#[test]
fn replicas_probe_together_by_the_stores_clock() {
    let seed = seed();
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    for _ in 0..1_000 {
        let (there, passed) = (Nanos(dice.up_to(1 << 60)), dice.up_to(1 << 40));
        let rtt = Nanos(dice.up_to(Nanos::SECOND.0));
        let next = |here: Nanos, earlier: u64| {
            let looks = probe_schedule(here, there.since(Nanos(earlier)));
            let now = here.plus(Nanos(earlier + passed));
            looks.clock.next_multiple_after(now, looks.interval(rtt)).since(now)
        };
        let wanted = next(Nanos(dice.up_to(1 << 60)), 0);
        assert_eq!(next(Nanos(dice.up_to(1 << 60)), dice.up_to(1 << 30)), wanted);
        let at = there.plus(Nanos(passed)).plus(wanted);
        assert_eq!(at.0 % probe_schedule(there, there).interval(rtt).0, 0);
    }
}

#[test]
fn probe_intervals_grow_with_rtt_in_multiples() {
    let looks = probe_schedule(START, START);
    let mut last = looks.interval(Nanos(0));
    assert_eq!(last, Nanos::from_secs(4));
    for millis in 1..2_000 {
        let every = looks.interval(Nanos(millis * MILLI));
        assert!(last <= every && every.0.is_multiple_of(last.0));
        assert!(millis * MILLI * 64 <= every.0 || every == Nanos::from_secs(256));
        last = every;
    }
}

#[test]
fn replica_without_a_probe_has_no_estimate() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(3_900);
    assert_eq!(replica.estimate(), None);
}

#[test]
fn probe_lowers_the_share_and_ends_by_time() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(3_900);
    assert_eq!(replica.least, 8);
    replica.run_for(110);
    assert!((1..8).contains(&replica.least), "{}", replica.least);
    // From here on no request finishes.
    replica.limiter.step(replica.now.plus(Nanos::SECOND), LimiterEvent::Expire);
    assert_eq!(replica.limiter.limit(), 8);
}

#[test]
fn probe_never_lowers_a_share_of_one() {
    let mut replica = GradientReplica::new(1_000);
    replica.limiter.step(START, LimiterEvent::FleetShare(fleet_share(1)));
    replica.run_for(9_000);
    assert_eq!(replica.least, 1);
}

#[test]
fn unqueued_latency_yields_a_growth_vote() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(5_000);
    assert_eq!(replica.estimate(), Some(FractionalLimit::from_share(Share(80))), "twice the limit");
}

#[test]
fn probe_detects_a_queue_from_the_start() {
    let mut replica = GradientReplica::new(10);
    replica.run_for(5_000);
    let would = replica.estimate().unwrap();
    // The target is 1.3 · 10. The first probe lowers the fleet to 10 requests in flight, which the
    // backend serves without a queue.
    assert!(would <= FractionalLimit::from_share(Share(20)), "{would:?}");
    assert!(replica.limiter.limit() <= 4, "far too much is lowered before the ceiling follows");
}

#[test]
fn probe_distinguishes_a_slower_backend_from_a_queue() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(5_000);
    replica.takes = 30;
    replica.run_for(1_000);
    assert!(
        replica.estimate().unwrap() < FractionalLimit::from_share(Share(40)),
        "it looks like one at first"
    );
    replica.run_for(16_000);
    assert_eq!(replica.limiter.adaptive_limit().min_rtt(), Some(Nanos(30 * MILLI)));
    assert!(FractionalLimit::from_share(Share(40)) < replica.estimate().unwrap());
}

#[test]
fn faster_backend_is_probed_before_a_growth_vote() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(5_000);
    replica.takes = 5;
    replica.run_for(1_000);
    assert_eq!(replica.limiter.adaptive_limit().min_rtt(), Some(Nanos(5 * MILLI)));
    assert_eq!(replica.estimate(), Some(FractionalLimit::from_share(Share(40))));
    replica.run_for(4_000);
    assert!(FractionalLimit::from_share(Share(40)) < replica.estimate().unwrap());
}

/// The limit for which a replica under `tuning` votes, instead of 40.
fn wanted_limit(capacity: u64, tuning: AdaptiveTuning) -> u64 {
    let mut replica = GradientReplica::with_tuning(capacity, tuning);
    replica.run_for(9_000);
    replica.estimate().unwrap().round_down().0
}

#[test]
fn a_target_bounds_the_growth_vote() {
    let target = |millis| AdaptiveTuning {
        target: Some(Nanos(millis * MILLI)),
        ..AdaptiveTuning::default()
    };
    assert_eq!(wanted_limit(1_000, AdaptiveTuning::default()), 80);
    assert_eq!(wanted_limit(1_000, target(15)), 53, "40 · 0.9 · 15 / 10 is 54, with rounding");
    assert_eq!(wanted_limit(1_000, target(11)), 40, "no growth above nine tenths");
    assert_eq!(wanted_limit(1_000, target(8)), 28, "40 · 0.9 · 8 / 10");
}

#[test]
fn tolerance_sets_the_queue_of_the_whole_fleet() {
    let tolerance = |hundredths| AdaptiveTuning {
        tolerance: Some(Hundredths(hundredths)),
        ..AdaptiveTuning::default()
    };
    // The capacity is 20. Each of the five replicas has a whole number of requests in flight.
    let limit = wanted_limit(20, tolerance(130));
    assert!(limit.abs_diff(26) <= 5, "20 · 1.3 is 26, not {limit}");
    let limit = wanted_limit(20, tolerance(180));
    assert!(limit.abs_diff(36) <= 5, "20 · 1.8 is 36, not {limit}");
}

#[test]
fn a_replica_votes_after_its_window() {
    let window = Some(Nanos::from_secs(3));
    let tuning = AdaptiveTuning { window, ..AdaptiveTuning::default() };
    let mut replica = GradientReplica::with_tuning(1_000, tuning);
    replica.run_for(9_000);
    assert!(replica.estimate().is_some());
    let larger = FleetShare { share: 10, limit: 50, ..FLEET_SHARE };
    replica.limiter.step(replica.now, LimiterEvent::FleetShare(larger));
    replica.run_for(2_900);
    assert_eq!(replica.estimate(), None, "the window under the new limit is not over");
    replica.run_for(500);
    assert!(replica.estimate().is_some());
}

#[test]
fn replica_without_a_share_follows_its_own_limit() {
    let mut replica = GradientReplica::new(1_000);
    replica.run_for(5_000);
    replica.limiter.step(replica.now, LimiterEvent::Share(u32::MAX));
    replica.run_for(2_000);
    assert!(16 < replica.limiter.limit(), "{}", replica.limiter.limit());
}
