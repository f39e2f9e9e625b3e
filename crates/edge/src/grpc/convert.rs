//! Converts Envoy's requests to checks and decisions to Envoy's responses, without I/O.
//!
//! Guarantees:
//! - A check borrows its texts from the request, without copies.
//! - Every request becomes a check or a [`CheckError`].
//! - A response has one status per descriptor, in the order of the request.
//! - Durations in a response are rounded up to whole seconds.
//!
//! Of several errors, the first is returned, as in envoyproxy/ratelimit: missing domain, missing
//! descriptors, errors that only Sluicegate has, missing configuration.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use prost::Message as _;

use super::metadata;
use crate::ReplyOptions;
use crate::engine::{CheckError, Decision, LimitStatus, Rejection};
use crate::headers::{HeaderPair, OWNER_KEY, RETRY_AFTER, RateLimitHeaders};
use crate::kernel::decision::{
    AppliedLimit, Check, Cost, Descriptor, LimitOverride, Reason, Verdict,
};
use crate::kernel::units::{Hits, Nanos, Unit};

/// The largest number of descriptors in one check: ten times what a route can sensibly produce, and
/// small enough that the memory store locks a shard only briefly.
pub const MAX_DESCRIPTORS: usize = 1_000;

/// The largest number of entries in all descriptors of one check.
pub const MAX_ENTRIES: usize = 10 * MAX_DESCRIPTORS;

/// An entry's key of this length or longer is refused. Clients choose values, which have any length:
/// a proxy that fails open would let a request with a refused value pass.
pub const MAX_ENTRY_KEY_BYTES: usize = 64 * 1024;

/// A check with this `hits_addend` or more is refused, because envoyproxy/ratelimit reads it as
/// negative.
const MIN_REFUSED_HITS: u64 = 1 << 63;

/// Converts a rate limit request to a check.
///
/// # Errors
/// - The domain or the descriptors are missing, as in envoyproxy/ratelimit.
/// - The request has a value on which envoyproxy/ratelimit crashes or which it misreads.
/// - The request is too large.
/// - The request has a refund, and the settings do not allow refunds.
pub fn to_check<'r>(
    request: &'r RateLimitRequest,
    reporting: &ReplyOptions,
) -> Result<Check<'r>, CheckError> {
    if request.domain.is_empty() {
        return Err(CheckError::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(CheckError::NoDescriptors);
    }
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    check_counts(request.descriptors.len(), entries)?;
    let default_hits = request.hits_addend.max(1).into();
    let descriptors = request
        .descriptors
        .iter()
        .enumerate()
        .map(|(index, proto)| descriptor(index, proto, default_hits, reporting))
        .collect::<Result<_, _>>()?;
    Ok(Check { domain: &request.domain, descriptors })
}

/// Returns about the memory that a request and its check take while they wait in a queue.
pub(in crate::grpc) fn memory_bytes(request: &RateLimitRequest) -> usize {
    let descriptors = request.descriptors.len();
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
    let of_entries = entries.sum::<usize>() * (size_of::<Entry>() + size_of::<(&str, &str)>());
    let each = size_of::<RateLimitDescriptor>() + size_of::<Descriptor<'_>>();
    request.encoded_len() + descriptors * each + of_entries
}

pub(in crate::grpc) const fn check_counts(
    descriptors: usize,
    entries: usize,
) -> Result<(), CheckError> {
    if MAX_DESCRIPTORS < descriptors {
        return Err(CheckError::TooManyDescriptors { got: descriptors, most: MAX_DESCRIPTORS });
    }
    if MAX_ENTRIES < entries {
        return Err(CheckError::TooManyEntries { got: entries, most: MAX_ENTRIES });
    }
    Ok(())
}

fn descriptor<'r>(
    index: usize,
    proto: &'r RateLimitDescriptor,
    default_hits: u64,
    reporting: &ReplyOptions,
) -> Result<Descriptor<'r>, CheckError> {
    let longest = proto.entries.iter().map(|entry| entry.key.len()).max();
    if let Some(got) = longest.filter(|&got| MAX_ENTRY_KEY_BYTES <= got) {
        return Err(CheckError::EntryTooLong { descriptor: index, got, most: MAX_ENTRY_KEY_BYTES });
    }
    Ok(Descriptor {
        entries: proto.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect(),
        cost: cost(index, proto, default_hits, reporting)?,
        limit: proto.limit.map(|limit| r#override(index, limit)).transpose()?,
    })
}

/// Returns the hits of a descriptor: its own `hits_addend`, even 0, or else the request's.
fn cost(
    index: usize,
    proto: &RateLimitDescriptor,
    default_hits: u64,
    reporting: &ReplyOptions,
) -> Result<Cost, CheckError> {
    let hits = proto.hits_addend.as_ref().map_or(default_hits, |own| own.value);
    if MIN_REFUSED_HITS <= hits {
        return Err(CheckError::HitsTooLarge { descriptor: index, got: hits });
    }
    match (proto.is_negative_hits, reporting.allow_negative_hits) {
        (false, _) => Ok(Cost::Charge(Hits(hits))),
        (true, true) => Ok(Cost::Refund(Hits(hits))),
        (true, false) => Err(CheckError::RefundsDisabled { descriptor: index }),
    }
}

fn r#override(index: usize, limit: RateLimitOverride) -> Result<LimitOverride, CheckError> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        // The enum of requests has no week. envoyproxy/ratelimit accepts 7, the week of the enum of
        // responses.
        7 => Unit::Week,
        got => return Err(CheckError::UnknownUnit { descriptor: index, got }),
    };
    Ok(LimitOverride { requests: limit.requests_per_unit, unit })
}

/// Converts the decision on a rate limit request to its response.
#[must_use]
pub fn to_response(
    request: &RateLimitRequest,
    decision: &Decision,
    reporting: &ReplyOptions,
) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: wire_code(decision.verdict).into(),
        statuses: decision.statuses.iter().map(descriptor_status).collect(),
        response_headers_to_add: header_values(&reporting.headers, decision),
        request_headers_to_add: upstream_headers(reporting, decision),
        dynamic_metadata: metadata::for_reply(request, decision, reporting),
        ..RateLimitResponse::default()
    }
}

fn upstream_headers(reporting: &ReplyOptions, decision: &Decision) -> Vec<HeaderValue> {
    let reference = reporting.upstream_names.clone();
    header_values(
        &RateLimitHeaders { compat_names: reference, ..RateLimitHeaders::default() },
        decision,
    )
}

/// Builds the response to an acquire that a concurrency limit denied. The descriptors `covered`,
/// which needed permits, get `OVER_LIMIT`.
pub(crate) fn rejection_response(
    request: &RateLimitRequest,
    covered: &[usize],
    rejection: &Rejection,
    options: &ReplyOptions,
) -> RateLimitResponse {
    let verdict = |descriptor: usize| {
        if covered.contains(&descriptor) { Verdict::Deny } else { Verdict::Allow }
    };
    let statuses = (0..request.descriptors.len()).map(|descriptor| DescriptorStatus {
        code: wire_code(verdict(descriptor)).into(),
        ..DescriptorStatus::default()
    });
    let reject = &rejection.reject;
    let wait = reject.retry_after.map(retry_after_header);
    let denied_by = options.headers.for_rejection(rejection).map(header_value);
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: statuses.collect(),
        response_headers_to_add: wait.into_iter().chain(denied_by).collect(),
        dynamic_metadata: metadata::for_rejection(rejection, options),
        raw_body: reject.body.as_bytes().to_vec(),
        ..RateLimitResponse::default()
    }
}

/// Adds `Retry-After`, unless the settings already add it.
pub(super) fn add_retry_after(reply: &mut RateLimitResponse, retry_after: Option<Nanos>) {
    let is_there = |header: &HeaderValue| header.key == RETRY_AFTER;
    if let Some(wait) = retry_after.filter(|_| !reply.response_headers_to_add.iter().any(is_there))
    {
        reply.response_headers_to_add.push(retry_after_header(wait));
    }
}

fn retry_after_header(wait: Nanos) -> HeaderValue {
    let value = wait.as_secs_ceil().max(1).to_string();
    header_value((RETRY_AFTER, value))
}

pub(super) fn add_owner(reply: &mut RateLimitResponse, owner: &str) {
    reply.response_headers_to_add.push(header_value((OWNER_KEY, owner.to_owned())));
    metadata::add_owner(&mut reply.dynamic_metadata, owner);
}

pub(super) fn release_response(request: &RateLimitRequest) -> RateLimitResponse {
    let ok = || DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let statuses = request.descriptors.iter().map(|_| ok()).collect();
    let overall_code = Code::Ok.into();
    RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }
}

/// Converts an error to a gRPC status: `UNKNOWN` for errors of envoyproxy/ratelimit,
/// `INVALID_ARGUMENT` for errors that only Sluicegate has.
#[must_use]
pub fn error_status(error: &CheckError) -> tonic::Status {
    match error {
        CheckError::EmptyDomain
        | CheckError::NoDescriptors
        | CheckError::NoConfig
        | CheckError::StoreUnavailable(_) => tonic::Status::unknown(error.to_string()),
        CheckError::TooManyDescriptors { .. }
        | CheckError::TooManyEntries { .. }
        | CheckError::EntryTooLong { .. }
        | CheckError::HitsTooLarge { .. }
        | CheckError::UnknownUnit { .. }
        | CheckError::BadId { .. }
        | CheckError::RefundsDisabled { .. } => tonic::Status::invalid_argument(error.to_string()),
    }
}

fn descriptor_status(status: &LimitStatus) -> DescriptorStatus {
    let descriptor_decision = &status.decision;
    let Some(limit) = &descriptor_decision.limit else {
        let unlimited = descriptor_decision.reason == Reason::Unlimited;
        return DescriptorStatus {
            code: wire_code(descriptor_decision.verdict).into(),
            limit_remaining: if unlimited { u32::MAX } else { 0 },
            ..DescriptorStatus::default()
        };
    };
    DescriptorStatus {
        code: wire_code(descriptor_decision.verdict).into(),
        current_limit: Some(current_limit(limit)),
        limit_remaining: u32::try_from(descriptor_decision.headroom.remaining.0)
            .unwrap_or(u32::MAX),
        duration_until_reset: Some(whole_seconds(descriptor_decision.headroom.reset_after)),
        ..DescriptorStatus::default()
    }
}

/// Converts a limit for a descriptor's status. A period that is no unit of Envoy becomes `UNKNOWN`.
fn current_limit(limit: &AppliedLimit) -> RateLimit {
    RateLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: limit.requests,
        unit: limit.unit.map_or(rate_limit::Unit::Unknown, wire_unit).into(),
    }
}

const fn wire_unit(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}

/// Converts to whole seconds, rounded up, because Envoy truncates fractions in headers.
fn whole_seconds(duration: Nanos) -> Duration {
    let seconds = i64::try_from(duration.as_secs_ceil()).unwrap_or(i64::MAX);
    Duration { seconds, nanos: 0 }
}

const fn wire_code(verdict: Verdict) -> Code {
    match verdict {
        Verdict::Allow => Code::Ok,
        Verdict::Deny => Code::OverLimit,
    }
}

fn header_values(headers: &RateLimitHeaders, decision: &Decision) -> Vec<HeaderValue> {
    headers.for_decision(decision).into_iter().map(header_value).collect()
}

fn header_value((key, value): HeaderPair<'_>) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() }
}
