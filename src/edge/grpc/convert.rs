//! Envoy's messages to questions, answers to Envoy's messages. Pure.
//!
//! Guarantees: a question borrows its request; every request is either a question or a
//! [`Refusal`]; an answer has one status per descriptor, in order; times are rounded up; a rule's
//! metadata is copied, never changed.
//! Leaves out: whether a configuration is loaded. The order of refusals is the reference's: the
//! domain, then the list (both here), then the configuration (the engine), and only our own
//! refusals of what the reference crashes on come before the last.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::Duration;

use super::metadata;
use crate::edge::Reporting;
use crate::edge::headers::Headers;
use crate::edge::hook::OWNER;
use crate::engine::{Answer, Refusal, Rejection, Status};
use crate::kernel::decision::{Cost, Descriptor, Override, Question, Reason, Shown, Verdict};
use crate::kernel::units::{Hits, Nanos, Unit};

/// Most descriptors in one question: ten times what a route can sensibly produce, and few enough
/// that one question cannot hold a shard for long.
pub const MAX_DESCRIPTORS: usize = 1_000;

/// Most entries of all descriptors of one question: ten for each of as many descriptors as may be.
pub const MAX_ENTRIES: usize = 10 * MAX_DESCRIPTORS;

/// The first length of a key or value, in bytes, that is refused: Envoy's own headers end at 60 KiB.
pub const MAX_ENTRY_BYTES: usize = 64 * 1024;

/// The first `hits_addend` that is refused. The reference takes it for a negative number.
const HITS_END: u64 = 1 << 63;

/// The question that `request` asks.
///
/// # Errors
/// What the reference refuses (no domain, no descriptors) and what it crashes on or misreads.
pub fn question<'r>(
    request: &'r RateLimitRequest,
    reporting: &Reporting,
) -> Result<Question<'r>, Refusal> {
    if request.domain.is_empty() {
        return Err(Refusal::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(Refusal::NoDescriptors);
    }
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    check_counts(request.descriptors.len(), entries)?;
    let every = request.hits_addend.max(1).into();
    let descriptors = request
        .descriptors
        .iter()
        .enumerate()
        .map(|(index, written)| descriptor(index, written, every, reporting))
        .collect::<Result<_, _>>()?;
    Ok(Question { domain: &request.domain, descriptors })
}

/// Whether one question may hold so many descriptors, and so many entries in all of them.
pub(super) const fn check_counts(descriptors: usize, entries: usize) -> Result<(), Refusal> {
    if MAX_DESCRIPTORS < descriptors {
        return Err(Refusal::TooManyDescriptors { got: descriptors, most: MAX_DESCRIPTORS });
    }
    if MAX_ENTRIES < entries {
        return Err(Refusal::TooManyEntries { got: entries, most: MAX_ENTRIES });
    }
    Ok(())
}

fn descriptor<'r>(
    index: usize,
    written: &'r RateLimitDescriptor,
    every: u64,
    reporting: &Reporting,
) -> Result<Descriptor<'r>, Refusal> {
    let longest = written.entries.iter().map(|entry| entry.key.len().max(entry.value.len())).max();
    if let Some(got) = longest.filter(|&got| MAX_ENTRY_BYTES <= got) {
        return Err(Refusal::EntryTooLong { descriptor: index, got, most: MAX_ENTRY_BYTES });
    }
    Ok(Descriptor {
        entries: written.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect(),
        cost: cost(index, written, every, reporting)?,
        limit: written.limit.map(|limit| r#override(index, limit)).transpose()?,
    })
}

/// The descriptor's own addend wins, zero included; `every` is the request's.
fn cost(
    index: usize,
    written: &RateLimitDescriptor,
    every: u64,
    reporting: &Reporting,
) -> Result<Cost, Refusal> {
    let hits = written.hits_addend.as_ref().map_or(every, |own| own.value);
    if HITS_END <= hits {
        return Err(Refusal::HitsTooLarge { descriptor: index, got: hits });
    }
    match (written.is_negative_hits, reporting.negative_hits) {
        (false, _) => Ok(Cost::Charge(Hits(hits))),
        (true, true) => Ok(Cost::Refund(Hits(hits))),
        (true, false) => Err(Refusal::RefundsAreOff { descriptor: index }),
    }
}

fn r#override(index: usize, limit: RateLimitOverride) -> Result<Override, Refusal> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        // The request's enumeration has no week; the reference takes the answer's number for it.
        7 => Unit::Week,
        got => return Err(Refusal::UnknownUnit { descriptor: index, got }),
    };
    Ok(Override { requests: limit.requests_per_unit, unit })
}

/// The message that tells `answer` to the asker of `request`.
#[must_use]
pub fn reply(
    request: &RateLimitRequest,
    answer: &Answer,
    reporting: &Reporting,
) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(answer.verdict).into(),
        statuses: answer.statuses.iter().map(status).collect(),
        response_headers_to_add: headers(&reporting.headers, answer),
        request_headers_to_add: upstream(reporting, answer),
        dynamic_metadata: reporting.dynamic_metadata.then(|| metadata::of(request, answer)),
        ..RateLimitResponse::default()
    }
}

fn upstream(reporting: &Reporting, answer: &Answer) -> Vec<HeaderValue> {
    let reference = reporting.upstream.clone();
    headers(&Headers { reference, ..Headers::default() }, answer)
}

/// The reply to a question whose descriptors `covered` a ceiling turned away.
pub(super) fn rejection(
    request: &RateLimitRequest,
    covered: &[usize],
    rejection: &Rejection,
) -> RateLimitResponse {
    let verdict = |descriptor: usize| {
        if covered.contains(&descriptor) { Verdict::Deny } else { Verdict::Admit }
    };
    let statuses = (0..request.descriptors.len()).map(|descriptor| DescriptorStatus {
        code: code(verdict(descriptor)).into(),
        ..DescriptorStatus::default()
    });
    let reject = &rejection.reject;
    let wait = reject.retry_after.map(|wait| HeaderValue {
        key: "Retry-After".to_owned(),
        value: wait.as_secs_ceil().max(1).to_string(),
        raw_value: Vec::new(),
    });
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: statuses.collect(),
        response_headers_to_add: wait.into_iter().collect(),
        raw_body: reject.body.as_bytes().to_vec(),
        ..RateLimitResponse::default()
    }
}

/// Names the replica that answers with `reply`, in a header and in metadata.
pub(super) fn name_owner(reply: &mut RateLimitResponse, owner: &str) {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.to_owned(),
        value: value.to_owned(),
        raw_value: Vec::new(),
    };
    reply.response_headers_to_add.push(header(OWNER, owner));
    metadata::name_owner(&mut reply.dynamic_metadata, owner);
}

/// The reply to a release: OK to each descriptor.
pub(super) fn released(request: &RateLimitRequest) -> RateLimitResponse {
    let ok = || DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let statuses = request.descriptors.iter().map(|_| ok()).collect();
    let overall_code = Code::Ok.into();
    RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }
}

/// A status of the gRPC protocol for a question that is not answered: UNKNOWN where clients know
/// it from the reference, `INVALID_ARGUMENT` for what only we refuse.
#[must_use]
pub fn refusal(refusal: &Refusal) -> tonic::Status {
    match refusal {
        Refusal::EmptyDomain
        | Refusal::NoDescriptors
        | Refusal::NoConfig
        | Refusal::BackendDown(_) => tonic::Status::unknown(refusal.to_string()),
        Refusal::TooManyDescriptors { .. }
        | Refusal::TooManyEntries { .. }
        | Refusal::EntryTooLong { .. }
        | Refusal::HitsTooLarge { .. }
        | Refusal::UnknownUnit { .. }
        | Refusal::BadId { .. }
        | Refusal::RefundsAreOff { .. } => tonic::Status::invalid_argument(refusal.to_string()),
    }
}

/// The name of an override's unit as protobuf's text form writes it: a number where it has none.
pub(super) fn unit_text(unit: i32) -> String {
    RateLimitUnit::try_from(unit)
        .map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_owned())
}

fn status(status: &Status) -> DescriptorStatus {
    let finding = &status.finding;
    let Some(shown) = &finding.limit else {
        let unlimited = finding.reason == Reason::Unlimited;
        return DescriptorStatus {
            code: code(finding.verdict).into(),
            limit_remaining: if unlimited { u32::MAX } else { 0 },
            ..DescriptorStatus::default()
        };
    };
    DescriptorStatus {
        code: code(finding.verdict).into(),
        current_limit: Some(current_limit(shown)),
        limit_remaining: u32::try_from(finding.room.remaining.0).unwrap_or(u32::MAX),
        duration_until_reset: Some(whole_seconds(finding.room.reset_after)),
        ..DescriptorStatus::default()
    }
}

/// A period that is none of the units is UNKNOWN here; `RateLimit-Policy` names it.
fn current_limit(shown: &Shown) -> RateLimit {
    RateLimit {
        name: shown.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: shown.requests,
        unit: shown.unit.map_or(rate_limit::Unit::Unknown, unit).into(),
    }
}

const fn unit(unit: Unit) -> rate_limit::Unit {
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

/// Envoy rounds a reset down in the headers it makes of it, so a fraction would be lost there.
fn whole_seconds(duration: Nanos) -> Duration {
    let seconds = i64::try_from(duration.as_secs_ceil()).unwrap_or(i64::MAX);
    Duration { seconds, nanos: 0 }
}

const fn code(verdict: Verdict) -> Code {
    match verdict {
        Verdict::Admit => Code::Ok,
        Verdict::Deny => Code::OverLimit,
    }
}

fn headers(headers: &Headers, answer: &Answer) -> Vec<HeaderValue> {
    headers
        .of(answer)
        .into_iter()
        .map(|(key, value)| HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() })
        .collect()
}
