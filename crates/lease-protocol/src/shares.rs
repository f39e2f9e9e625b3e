//! Share rounds: a proxy's reports about shared concurrency limits, and the store's replies.
//!
//! Guarantees:
//! - A proxy sends its counts and the numbers of its grants, never the parameters of a limit.
//! - A round with a number that a store cannot represent converts to `None`.

use sluicegate_concurrency::store::heartbeat::{
    BucketKey, MAX_REPORTS_PER_ROUND, ShareReport, ShareRound, ShareRoundReply,
};
use sluicegate_kernel::coordinator::aggregate::LimitFactor;
use sluicegate_kernel::coordinator::demand_curve::{DemandPoint, MAX_POINTS};
use sluicegate_kernel::coordinator::message::GrantInUse;
use sluicegate_kernel::coordinator::{DemandCurve, Grant, Heartbeat, HeartbeatReply};
use sluicegate_kernel::decision::StoreFailure;
use sluicegate_kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};

use crate::api::share_reply::{Refusal, Result as WireReply};
use crate::api::share_round_result;
use crate::concurrency::bucket;
use crate::{api, failure, failure_message, nanos};

/// Numbers are below this, because Redis scripts compute with doubles: 2^53.
const NUMBER_BOUND: u64 = 1 << 53;

/// The longest duration, in nanoseconds: 2^51 µs, so that sums in Redis scripts stay exact.
const MAX_DURATION: u64 = 1_000 << 51;

/// The largest number of requests in a report, as in the Redis store.
const MAX_REQUESTS: u64 = u32::MAX as u64;

/// The share reports of a proxy, before Sluicegate compares them with its own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedRound {
    /// The coordinator's incarnation that made all grants of the proxy.
    pub coordinator_incarnation: Option<Incarnation>,
    /// True if the proxy leaves.
    pub is_leaving: bool,
    /// The reports. A grant in use has only its numbers: its share and its limit are 0.
    pub reports: Vec<(BucketKey, Heartbeat)>,
}

/// Returns the round of the proxy `replica`, or `None` if it is invalid.
#[must_use]
pub fn share_round(wire: &api::ShareRound, replica: ReplicaId) -> Option<ClaimedRound> {
    let coordinator_incarnation = match wire.coordinator_incarnation {
        Some(incarnation) => Some(Incarnation(number(incarnation)?)),
        None => None,
    };
    (wire.reports.len() <= MAX_REPORTS_PER_ROUND).then_some(())?;
    let reports = wire.reports.iter().map(|report| share_report(replica, report));
    let (is_leaving, reports) = (wire.is_leaving, reports.collect::<Option<_>>()?);
    Some(ClaimedRound { coordinator_incarnation, is_leaving, reports })
}

/// Returns the message of a round.
#[must_use]
pub fn share_round_message(round: &ShareRound) -> api::ShareRound {
    let coordinator_incarnation = round.record.coordinator_incarnation;
    api::ShareRound {
        coordinator_incarnation: coordinator_incarnation.map(|incarnation| incarnation.0),
        is_leaving: round.is_leaving,
        reports: round.reports.iter().map(share_report_message).collect(),
    }
}

/// Returns the store's reply to `round`, or `None` if it is invalid.
#[must_use]
pub fn share_round_result(
    wire: &api::ShareRoundResult,
    round: &ShareRound,
) -> Option<Result<ShareRoundReply, StoreFailure>> {
    let reply = match wire.result.as_ref()? {
        share_round_result::Result::Failure(cause) => return Some(Err(failure(*cause))),
        share_round_result::Result::Applied(reply) => reply,
    };
    (reply.replies.len() == round.reports.len()).then_some(())?;
    let replies = reply.replies.iter().zip(&round.reports);
    Some(Ok(ShareRoundReply {
        incarnation: Incarnation(reply.coordinator_incarnation),
        store_time: nanos(reply.store_time_us),
        replies: replies.map(|(reply, report)| heartbeat_reply(reply, &report.heartbeat)).collect(),
    }))
}

/// Returns the message of the store's reply to a round.
#[must_use]
pub fn share_round_result_message(
    reply: &Result<ShareRoundReply, StoreFailure>,
) -> api::ShareRoundResult {
    let result = match reply {
        Ok(reply) => share_round_result::Result::Applied(api::ShareRoundReply {
            coordinator_incarnation: reply.incarnation.0,
            store_time_us: reply.store_time.0 / 1_000,
            replies: reply
                .replies
                .iter()
                .map(Option::as_ref)
                .map(heartbeat_reply_message)
                .collect(),
        }),
        Err(cause) => share_round_result::Result::Failure(failure_message(*cause)),
    };
    api::ShareRoundResult { result: Some(result) }
}

fn number(wire: u64) -> Option<u64> {
    (wire < NUMBER_BOUND).then_some(wire)
}

fn requests(wire: u64) -> Option<Share> {
    (wire <= MAX_REQUESTS).then_some(Share(wire))
}

pub(crate) fn duration(wire: u64) -> Option<Nanos> {
    (wire < MAX_DURATION).then_some(Nanos(wire))
}

fn share_report(replica: ReplicaId, wire: &api::ShareReport) -> Option<(BucketKey, Heartbeat)> {
    let vote = match wire.vote {
        Some(vote) if LimitFactor::TWICE < LimitFactor(vote) => return None,
        vote => vote.map(LimitFactor),
    };
    let grant_in_use = match &wire.grant_in_use {
        Some(grant) => Some(grant_in_use(grant)?),
        None => None,
    };
    let heartbeat = Heartbeat {
        replica,
        incarnation: Incarnation(number(wire.incarnation)?),
        number: number(wire.number)?,
        grant_in_use,
        in_flight: requests(wire.in_flight)?,
        demand: requests(wire.demand)?,
        curve: curve(&wire.curve)?,
        vote,
        is_leaving: wire.is_leaving,
        is_claimed: true,
    };
    Some((bucket(&wire.bucket)?, heartbeat))
}

fn share_report_message(report: &ShareReport) -> api::ShareReport {
    let ShareReport { bucket, heartbeat, .. } = report;
    api::ShareReport {
        bucket: bucket.to_vec(),
        incarnation: heartbeat.incarnation.0,
        number: heartbeat.number,
        grant_in_use: heartbeat.grant_in_use.as_ref().map(grant_in_use_message),
        in_flight: heartbeat.in_flight.0,
        demand: heartbeat.demand.0,
        vote: heartbeat.vote.map(|LimitFactor(factor)| factor),
        is_leaving: heartbeat.is_leaving,
        curve: heartbeat.curve.points().iter().map(|point| demand_point_message(*point)).collect(),
    }
}

fn curve(wire: &[api::DemandPoint]) -> Option<DemandCurve> {
    // Count before the conversion, because the message may be long.
    (wire.len() <= MAX_POINTS).then_some(())?;
    let points = wire.iter().map(|point| DemandPoint::new(point.class, point.level, point.demand));
    DemandCurve::new(&points.collect::<Option<Vec<_>>>()?)
}

const fn demand_point_message(point: DemandPoint) -> api::DemandPoint {
    api::DemandPoint { class: point.class(), level: point.level(), demand: point.demand }
}

fn grant_in_use(wire: &api::GrantInUse) -> Option<GrantInUse> {
    Some(GrantInUse {
        coordinator_incarnation: Incarnation(number(wire.coordinator_incarnation)?),
        generation: Generation(number(wire.generation)?),
        share: Share(0),
        limit: Share(0),
    })
}

const fn grant_in_use_message(grant: &GrantInUse) -> api::GrantInUse {
    api::GrantInUse {
        coordinator_incarnation: grant.coordinator_incarnation.0,
        generation: grant.generation.0,
    }
}

/// Returns the store's reply to `heartbeat`; `None` without a known reply.
fn heartbeat_reply(wire: &api::ShareReply, heartbeat: &Heartbeat) -> Option<HeartbeatReply> {
    Some(match wire.result.as_ref()? {
        WireReply::Grant(grant) => HeartbeatReply::Grant(Grant {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            heartbeat_number: heartbeat.number,
            coordinator_incarnation: Incarnation(grant.coordinator_incarnation),
            generation: Generation(grant.generation),
            share: Share(grant.share),
            fair_share: Share(grant.fair_share),
            limit: Share(grant.limit),
            replicas: grant.replicas,
            is_recovering: grant.is_recovering,
        }),
        WireReply::Left(_) => HeartbeatReply::Left,
        WireReply::Refusal(refusal) => match Refusal::try_from(*refusal).ok()? {
            Refusal::Unspecified => return None,
            Refusal::Stale => HeartbeatReply::Stale,
            Refusal::Superseded => HeartbeatReply::Superseded,
            Refusal::StateLost => HeartbeatReply::StateLost,
            Refusal::TooManyReplicas => HeartbeatReply::TooManyReplicas,
        },
    })
}

fn heartbeat_reply_message(reply: Option<&HeartbeatReply>) -> api::ShareReply {
    let refusal = |refusal: Refusal| WireReply::Refusal(refusal.into());
    let result = reply.map(|reply| match reply {
        HeartbeatReply::Grant(grant) => WireReply::Grant(grant_message(grant)),
        HeartbeatReply::Left => WireReply::Left(true),
        HeartbeatReply::Stale => refusal(Refusal::Stale),
        HeartbeatReply::Superseded => refusal(Refusal::Superseded),
        HeartbeatReply::StateLost => refusal(Refusal::StateLost),
        HeartbeatReply::TooManyReplicas => refusal(Refusal::TooManyReplicas),
    });
    api::ShareReply { result }
}

const fn grant_message(grant: &Grant) -> api::ShareGrant {
    api::ShareGrant {
        coordinator_incarnation: grant.coordinator_incarnation.0,
        generation: grant.generation.0,
        share: grant.share.0,
        fair_share: grant.fair_share.0,
        limit: grant.limit.0,
        replicas: grant.replicas,
        is_recovering: grant.is_recovering,
    }
}

#[cfg(test)]
mod tests;
