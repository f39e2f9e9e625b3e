//! The limits that change once a round trip: `aimd` and `gradient2`.
//!
//! In a fleet, the estimate is the fleet's whole limit, and each grant resets it. The replica judges
//! by its share whether the limit is used. It votes for the mean of the steps that its round trips
//! since the grant would have taken, so a vote is at most one step.
//!
//! Guarantees:
//! - The min RTT is measured again in probes, so a queue that stays does not become the min RTT.
//! - A sample from a probe or from before the last change of the limit changes nothing.
//!
//! Not covered:
//! - The steps themselves: see [`super::aimd`] and [`super::gradient2`].

use super::fixed_point::{FixedPoint, Fraction};
use super::min_rtt::MinRttMeter;
use super::round_trip::{RoundSummary, RoundTrip, Step};
use super::sample::{FleetShare, LatencySample, ProbeSchedule, scale_to_limit};
use super::tuning::AdaptiveTuning;
use super::{aimd, gradient2};
use crate::coordinator::aggregate::MIN_SAMPLES;
use crate::units::Nanos;

/// The slowdown that a probe assumes if the limit causes no queue, in millionths.
const NO_QUEUE: u64 = 1_000_000;

/// The rule of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StepRule {
    Aimd,
    Gradient2,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RoundTripLimit {
    rule: StepRule,
    tuning: AdaptiveTuning,
    round: RoundTrip,
    meter: MinRttMeter,
    /// The schedule of probes outside of a fleet.
    own_probes: ProbeSchedule,
    fleet: Option<FleetSteps>,
}

/// The share of the last grant, and the limits after the steps of the round trips since then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FleetSteps {
    fleet_share: FleetShare,
    sum: FixedPoint,
    count: u64,
}

impl RoundTripLimit {
    /// A different `jitter` for each limit keeps their probes apart.
    pub(super) fn new(rule: StepRule, jitter: u64, tuning: AdaptiveTuning) -> Self {
        let own_probes = ProbeSchedule::of_one_replica(jitter);
        let meter = MinRttMeter::new(Nanos(0), own_probes, None, tuning);
        Self { rule, tuning, round: RoundTrip::default(), meter, own_probes, fleet: None }
    }

    pub(super) const fn rule(&self) -> StepRule {
        self.rule
    }

    pub(super) fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        self.tuning = tuning;
        self.meter.set_tuning(tuning);
    }

    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.meter.min_rtt()
    }

    pub(super) fn set_fleet_share(&mut self, now: Nanos, fleet_share: Option<FleetShare>) {
        let limit = |fleet: &FleetSteps| fleet.fleet_share.limit;
        if self.fleet.as_ref().map(limit) != fleet_share.map(|it| it.limit) {
            self.round.restart(now);
        }
        self.meter.set_schedule(now, fleet_share.map_or(self.own_probes, |it| it.probes));
        let sum = FixedPoint::from_whole(0);
        self.fleet = fleet_share.map(|fleet_share| FleetSteps { fleet_share, sum, count: 0 });
    }

    /// The limit for which this replica votes; `None` without a round trip since the last grant.
    pub(super) fn wanted_limit(&self) -> Option<FixedPoint> {
        let FleetSteps { sum, count, .. } = self.fleet.as_ref().filter(|steps| 0 < steps.count)?;
        Some(sum.times(Fraction { numerator: 1, denominator: *count }))
    }

    /// The requests that may be in flight during a probe, instead of `limit`.
    pub(super) fn probe_limit(&mut self, now: Nanos, limit: FixedPoint) -> Option<FixedPoint> {
        self.meter.advance(now, NO_QUEUE);
        let share = self.fleet.as_ref().map(|fleet| fleet.fleet_share.share);
        let usable = share.map_or(limit, |share| limit.min(FixedPoint::from_whole(share)));
        self.meter.probe_part(now).map(|part| usable.times(part))
    }

    /// The limit after `sample`. In a fleet it stays, and the step only changes the vote.
    pub(super) fn record(
        &mut self,
        limit: FixedPoint,
        sample: &LatencySample,
        share: u32,
    ) -> FixedPoint {
        let allowed = limit.floor().min(share);
        self.meter.record(sample, allowed.into());
        // A small share has few requests in flight, and a vote needs more samples.
        let least = if self.fleet.is_some() { MIN_SAMPLES } else { 1 };
        let end = self.tuning.window_end(allowed.div_ceil(2).max(least).into());
        if !self.meter.is_valid(sample) {
            return limit;
        }
        let Some(round) = self.round.push(sample, end) else { return limit };
        let next = self.step(limit, &round, share);
        if let Some(steps) = &mut self.fleet {
            (steps.sum, steps.count) = (steps.sum.plus(next), steps.count.saturating_add(1));
            return limit;
        }
        self.round.restart(sample.ended_at);
        next
    }

    fn step(&mut self, limit: FixedPoint, round: &RoundSummary, share: u32) -> FixedPoint {
        if let (Some(mean), None) = (round.mean, self.meter.min_rtt()) {
            self.meter.assume(mean);
        }
        let step = Step {
            tuning: &self.tuning,
            limit,
            round,
            min_rtt: self.meter.min_rtt().unwrap_or_default().max(Nanos(1)),
            in_flight: scale_to_limit(FixedPoint::from_whole(round.in_flight), limit, share),
            is_used: limit.floor().min(share) <= round.in_flight.saturating_mul(2),
        };
        match self.rule {
            StepRule::Aimd => aimd::next_limit(&step),
            StepRule::Gradient2 => gradient2::next_limit(&step),
        }
    }
}
