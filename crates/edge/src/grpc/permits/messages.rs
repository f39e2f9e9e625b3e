//! Converts the messages of `sluicegate.v1.Permits`.
//!
//! Guarantees:
//! - Times are rounded up, so that clients do not retry too early.
//! - An outcome or owner that the protocol does not define is an error.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::Status;

use super::api::{self, AcquireRequest, AcquireResponse, ReleaseRequest};
use crate::engine::fleet::incarnation::is_incarnation_name;
use crate::engine::{AdmissionOutcome, CheckError, Decision, LimitStatus, Rejection};
use crate::hook::ID;
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// Validates the name of the owner. An empty text means that the request names no owner.
pub(super) fn parse_owner(text: &str) -> Result<Option<&str>, Status> {
    let is_sound = text.is_empty() || is_incarnation_name(text);
    let refused =
        || Status::invalid_argument("owner must be the `owner` of the response to the acquire");
    is_sound.then_some(Some(text).filter(|text| !text.is_empty())).ok_or_else(refused)
}

pub(in crate::grpc) fn to_rate_limit_request(request: AcquireRequest) -> RateLimitRequest {
    let entry = |api::Entry { key, value }| Entry { key, value };
    let to_descriptor = |descriptor: api::Descriptor| RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        hits_addend: Some(UInt64Value { value: descriptor.hits.unwrap_or(1) }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = request.descriptors.into_iter().map(to_descriptor).collect();
    RateLimitRequest { domain: request.domain, descriptors, hits_addend: 0 }
}

pub(super) fn shorter_timeout(
    caller_timeout: Option<Nanos>,
    max_wait_us: Option<u64>,
) -> Option<Nanos> {
    caller_timeout.into_iter().chain(max_wait_us.map(from_micros)).min()
}

pub(super) const fn from_micros(us: u64) -> Nanos {
    Nanos(us.saturating_mul(1_000))
}

/// Converts to microseconds, rounded up, so that clients do not retry too early.
pub(in crate::grpc) const fn to_micros(time: Nanos) -> u64 {
    time.0.div_ceil(1_000)
}

pub(super) fn parse_outcome(
    request: &ReleaseRequest,
) -> Result<(ReportedOutcome, Option<Nanos>), Status> {
    let rtt = request.rtt_us.map(from_micros);
    if let Some(answer) = &request.answer {
        return Ok((ReportedOutcome::Answered(parse_answer(answer)?), rtt));
    }
    let outcome = match api::Outcome::try_from(request.outcome) {
        Ok(api::Outcome::Success) => RequestOutcome::Success,
        Ok(api::Outcome::Ignored) => RequestOutcome::Ignored,
        Ok(api::Outcome::Dropped) => RequestOutcome::Dropped,
        Ok(api::Outcome::Unspecified) | Err(_) => {
            let message = "without answer, outcome must be SUCCESS (1), IGNORED (2) or DROPPED (3)";
            return Err(Status::invalid_argument(message));
        }
    };
    Ok((outcome.into(), rtt))
}

fn parse_answer(answer: &api::Answer) -> Result<UpstreamAnswer, Status> {
    let http = answer.http_status.and_then(|status| u16::try_from(status).ok());
    if answer.http_status.is_some() && !http.is_some_and(|http| (100..600).contains(&http)) {
        return Err(Status::invalid_argument("answer.http_status must be from 100 to 599"));
    }
    if http.is_none() && answer.grpc_status.is_none() {
        return Err(Status::invalid_argument("answer needs http_status or grpc_status"));
    }
    let grpc = answer.grpc_status.and_then(|code| u8::try_from(code).ok());
    if answer.grpc_status.is_some() && grpc.is_none_or(|code| 16 < code) {
        return Err(Status::invalid_argument("answer.grpc_status must be from 0 to 16"));
    }
    let retry_after = answer.retry_after_us.map(from_micros);
    Ok(UpstreamAnswer { http, grpc, has_latency: true, retry_after })
}

/// Converts the engine's result to a reply. A client with permits must renew them within
/// `renew_within`; `None` if it has no permits.
pub(in crate::grpc) fn to_acquire_response(
    admitted: &AdmissionOutcome,
    renew_within: Option<Nanos>,
) -> AcquireResponse {
    match admitted {
        AdmissionOutcome::Decided(decision, _) if decision.verdict == Verdict::Allow => {
            AcquireResponse {
                verdict: api::acquire_response::Verdict::Allow.into(),
                has_permits: renew_within.is_some(),
                renew_within_us: renew_within.map_or(0, to_micros),
                ..AcquireResponse::default()
            }
        }
        AdmissionOutcome::Decided(decision, _) => denied_response(decision),
        AdmissionOutcome::Rejected(rejection) => rejected_response(rejection),
    }
}

fn denied_response(decision: &Decision) -> AcquireResponse {
    let denies = |status: &&LimitStatus| status.decision.verdict == Verdict::Deny;
    let reason =
        decision.statuses.iter().find(denies).map(|status| status.decision.reason.as_str());
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: reason.unwrap_or_default().to_owned(),
        status: 429,
        retry_after_us: decision.retry_after.map(to_micros),
        ..AcquireResponse::default()
    }
}

fn rejected_response(rejection: &Rejection) -> AcquireResponse {
    let reject = &rejection.reject;
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: rejection.reason.as_str().to_owned(),
        status: reject.status.into(),
        retry_after_us: reject.retry_after.map(to_micros),
        body: reject.body.to_string(),
        ..AcquireResponse::default()
    }
}

pub(in crate::grpc) fn error_status(error: &CheckError) -> Status {
    match error {
        // The id's format was validated before, so another request in flight has this id.
        CheckError::BadId { why, .. } => Status::already_exists(format!("{ID}: {why}")),
        CheckError::NoConfig | CheckError::StoreUnavailable(_) => {
            Status::unavailable(error.to_string())
        }
        _ => Status::invalid_argument(error.to_string()),
    }
}
