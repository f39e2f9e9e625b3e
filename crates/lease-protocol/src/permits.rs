//! Permits of strict concurrency limits: acquires and reports of a proxy, and the store's replies.
//!
//! Guarantees:
//! - Lifetimes are exact, and a pause of grants never shrinks.

use sluicegate_concurrency::store::permits::{
    AcquireOutcome, LimitPermits, LimitPermitsReply, MAX_PERMITS_PER_REPORT, PermitCorrections,
    PermitId, PermitReport, PermitReportReply, PermitTiming, StrictAcquire, StrictPermitReply,
    StrictPermitRequest,
};
use sluicegate_kernel::coordinator::config::MOST;
use sluicegate_kernel::decision::StoreFailure;
use sluicegate_kernel::units::{Nanos, Share};

use crate::api::{limit_permits_result, permit_acquire_result};
use crate::concurrency::bucket;
use crate::shares::duration;
use crate::{api, failure, failure_message, micros, nanos};

/// Returns the request, or `None` if it is invalid.
#[must_use]
pub fn permit_request(wire: &api::PermitAcquire) -> Option<StrictPermitRequest> {
    let permit = StrictAcquire {
        id: permit_id(*wire.permit.as_ref()?),
        limit: Some(Share(wire.limit)).filter(|limit| (Share(1)..=MOST).contains(limit))?,
        lifetime: duration(wire.lifetime_ns)?,
        timing: timing(wire.timing.as_ref()?)?,
    };
    Some(StrictPermitRequest { bucket: bucket(&wire.bucket)?, permit })
}

/// Returns the message of a request.
#[must_use]
pub fn permit_request_message(request: &StrictPermitRequest) -> api::PermitAcquire {
    let StrictAcquire { id, limit, lifetime, timing } = request.permit;
    api::PermitAcquire {
        bucket: request.bucket.to_vec(),
        permit: Some(permit_id_message(id)),
        limit: limit.0,
        lifetime_ns: lifetime.0,
        timing: Some(timing_message(&timing)),
    }
}

/// Returns the store's reply to a request, or `None` if it is invalid.
#[must_use]
pub fn permit_result(
    wire: &api::PermitAcquireResult,
) -> Option<Result<StrictPermitReply, StoreFailure>> {
    let reply = match wire.result.as_ref()? {
        permit_acquire_result::Result::Failure(cause) => return Some(Err(failure(*cause))),
        permit_acquire_result::Result::Applied(reply) => reply,
    };
    let result = match (reply.acquired, reply.closed_for_us) {
        (true, _) => AcquireOutcome::Acquired,
        (false, 0) => AcquireOutcome::LimitReached,
        (false, closed_for) => AcquireOutcome::Closed(nanos(closed_for)),
    };
    Some(Ok(StrictPermitReply { result, held: Share(reply.permits) }))
}

/// Returns the message of the store's reply to a request.
#[must_use]
pub fn permit_result_message(
    reply: &Result<StrictPermitReply, StoreFailure>,
) -> api::PermitAcquireResult {
    let applied = |reply: &StrictPermitReply| api::PermitAcquireReply {
        acquired: reply.result == AcquireOutcome::Acquired,
        closed_for_us: match reply.result {
            AcquireOutcome::Closed(closed_for) => micros(closed_for),
            AcquireOutcome::Acquired | AcquireOutcome::LimitReached => 0,
        },
        permits: reply.held.0,
    };
    let result = match reply {
        Ok(reply) => permit_acquire_result::Result::Applied(applied(reply)),
        Err(cause) => permit_acquire_result::Result::Failure(failure_message(*cause)),
    };
    api::PermitAcquireResult { result: Some(result) }
}

/// Returns the report, or `None` if it is invalid.
#[must_use]
pub fn permit_report(wire: &api::PermitReport) -> Option<PermitReport> {
    let limits = wire.limits.iter().map(limit_permits);
    let report = PermitReport {
        times: timing(wire.timing.as_ref()?)?,
        to_all_nodes: wire.to_all_nodes,
        limits: limits.collect::<Option<_>>()?,
    };
    let is_short = report.permit_count() <= MAX_PERMITS_PER_REPORT
        && report.limits.len() <= MAX_PERMITS_PER_REPORT;
    is_short.then_some(report)
}

/// Returns the message of a report.
#[must_use]
pub fn permit_report_message(report: &PermitReport) -> api::PermitReport {
    api::PermitReport {
        timing: Some(timing_message(&report.times)),
        to_all_nodes: report.to_all_nodes,
        limits: report.limits.iter().map(limit_permits_message).collect(),
    }
}

/// Returns the store's replies to a report of `limits` limits, or `None` if they are invalid.
#[must_use]
pub fn permit_report_result(
    wire: &api::PermitReportResult,
    limits: usize,
) -> Option<PermitReportReply> {
    (wire.limits.len() == limits).then_some(())?;
    let reply = |wire: &api::LimitPermitsResult| {
        Some(match wire.result.as_ref()? {
            limit_permits_result::Result::Applied(reply) => Ok(LimitPermitsReply {
                changes: PermitCorrections { restored: reply.restored, freed: reply.freed },
                held: Share(reply.permits),
            }),
            limit_permits_result::Result::Failure(cause) => Err(failure(*cause)),
        })
    };
    wire.limits.iter().map(reply).collect()
}

/// Returns the message of the store's replies to a report.
#[must_use]
pub fn permit_report_result_message(replies: &PermitReportReply) -> api::PermitReportResult {
    let message = |reply: &Result<LimitPermitsReply, StoreFailure>| {
        let result = match reply {
            Ok(reply) => limit_permits_result::Result::Applied(api::LimitPermitsReply {
                restored: reply.changes.restored,
                freed: reply.changes.freed,
                permits: reply.held.0,
            }),
            Err(cause) => limit_permits_result::Result::Failure(failure_message(*cause)),
        };
        api::LimitPermitsResult { result: Some(result) }
    };
    api::PermitReportResult { limits: replies.iter().map(message).collect() }
}

const fn permit_id(wire: api::PermitId) -> PermitId {
    PermitId(wire.process, wire.number)
}

const fn permit_id_message(PermitId(process, number): PermitId) -> api::PermitId {
    api::PermitId { process, number }
}

fn timing(wire: &api::PermitTiming) -> Option<PermitTiming> {
    Some(PermitTiming {
        grace: duration(wire.grace_ns)?,
        max_silence: duration(wire.max_silence_ns)?,
        max_lifetime: duration(wire.max_lifetime_ns)?,
    })
}

const fn timing_message(timing: &PermitTiming) -> api::PermitTiming {
    api::PermitTiming {
        grace_ns: timing.grace.0,
        max_silence_ns: timing.max_silence.0,
        max_lifetime_ns: timing.max_lifetime.0,
    }
}

fn limit_permits(wire: &api::LimitPermits) -> Option<LimitPermits> {
    let in_use = |permit: &api::PermitInUse| {
        Some((permit_id(*permit.permit.as_ref()?), duration(permit.time_left_ns)?))
    };
    Some(LimitPermits {
        bucket: bucket(&wire.bucket)?,
        in_use: wire.in_use.iter().map(in_use).collect::<Option<_>>()?,
        released: wire.released.iter().copied().map(permit_id).collect(),
    })
}

fn limit_permits_message(permits: &LimitPermits) -> api::LimitPermits {
    let in_use = |(id, Nanos(time_left_ns)): &(PermitId, Nanos)| api::PermitInUse {
        permit: Some(permit_id_message(*id)),
        time_left_ns: *time_left_ns,
    };
    api::LimitPermits {
        bucket: permits.bucket.to_vec(),
        in_use: permits.in_use.iter().map(in_use).collect(),
        released: permits.released.iter().copied().map(permit_id_message).collect(),
    }
}

#[cfg(test)]
mod tests;
