//! Permits of strict concurrency limits: acquires and reports of a proxy, and the store's replies.
//!
//! Guarantees:
//! - Lifetimes are exact, and a pause of grants never shrinks.

use sluicegate_concurrency::store::heartbeat::BucketKey;
use sluicegate_concurrency::store::permits::{
    AcquireOutcome, LimitPermits, LimitPermitsReply, MAX_PERMITS_PER_REPORT, PermitCorrections,
    PermitId, PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest,
};
use sluicegate_kernel::decision::StoreFailure;
use sluicegate_kernel::units::{Nanos, Share};

use crate::api::{limit_permits_result, permit_acquire_result};
use crate::concurrency::bucket;
use crate::shares::duration;
use crate::{api, failure, failure_message, micros, nanos};

/// Returns the bucket and the number of the permit of a request, or `None` if it is invalid.
#[must_use]
pub fn permit_request(wire: &api::PermitAcquire) -> Option<(BucketKey, u64)> {
    Some((bucket(&wire.bucket)?, wire.number))
}

/// Returns the message of a request.
#[must_use]
pub fn permit_request_message(request: &StrictPermitRequest) -> api::PermitAcquire {
    api::PermitAcquire { bucket: request.bucket.to_vec(), number: request.permit.id.1 }
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

/// Returns the permits in the report of the proxy `process`, or `None` if it is invalid.
#[must_use]
pub fn permit_report(wire: &api::PermitReport, process: u64) -> Option<Vec<LimitPermits>> {
    let count = |limit: &api::LimitPermits| limit.in_use.len().saturating_add(limit.released.len());
    let count = wire.limits.iter().map(count).fold(0, usize::saturating_add);
    (count.max(wire.limits.len()) <= MAX_PERMITS_PER_REPORT).then_some(())?;
    wire.limits.iter().map(|limit| limit_permits(process, limit)).collect()
}

/// Returns the message of a report.
#[must_use]
pub fn permit_report_message(report: &PermitReport) -> api::PermitReport {
    api::PermitReport { limits: report.limits.iter().map(limit_permits_message).collect() }
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

fn limit_permits(process: u64, wire: &api::LimitPermits) -> Option<LimitPermits> {
    let in_use = |permit: &api::PermitInUse| {
        Some((PermitId(process, permit.number), duration(permit.time_left_ns)?))
    };
    Some(LimitPermits {
        bucket: bucket(&wire.bucket)?,
        in_use: wire.in_use.iter().map(in_use).collect::<Option<_>>()?,
        released: wire.released.iter().map(|number| PermitId(process, *number)).collect(),
        is_claimed: true,
    })
}

fn limit_permits_message(permits: &LimitPermits) -> api::LimitPermits {
    let in_use = |(PermitId(_, number), Nanos(time_left_ns)): &(PermitId, Nanos)| {
        api::PermitInUse { number: *number, time_left_ns: *time_left_ns }
    };
    api::LimitPermits {
        bucket: permits.bucket.to_vec(),
        in_use: permits.in_use.iter().map(in_use).collect(),
        released: permits.released.iter().map(|PermitId(_, number)| *number).collect(),
    }
}

#[cfg(test)]
mod tests;
