//! Parses the reserved descriptor keys with which Envoy's rate limit filter acquires and releases
//! permits: `sluicegate.acquire`, `sluicegate.release` and others.
//!
//! Guarantees:
//! - Entries with a reserved key never match a rule.
//! - All reserved entries of a request have the same request id, of 16 to 128 characters of
//!   `[0-9A-Za-z._-]`.
//! - A request with a release and ordinary descriptors is an error.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::engine::{CheckError, validate_id};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::units::Nanos;

/// The purpose of a rate limit request, according to its reserved keys.
#[derive(Debug, PartialEq, Eq)]
pub enum ReservedCall {
    /// A check of rate limits only: no descriptor ends with a reserved key.
    Plain,
    /// An acquire of permits for the descriptors in `covered`, and a check of the rate limits of
    /// all descriptors.
    Acquire {
        /// The request id under which the permits are stored.
        id: String,
        /// The indexes of the descriptors that need permits, ascending.
        covered: Vec<usize>,
    },
    /// A release of the permits of one request id.
    Release {
        /// The request id.
        id: String,
        /// The replica that owns the permits, if the request names it.
        owner: Option<String>,
        /// The request outcome.
        outcome: ReportedOutcome,
        /// The upstream's latency, or the duration of the request if the proxy sent only that.
        rtt: Option<Nanos>,
    },
}

/// A reserved key. Only the last entry of a descriptor can have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservedKey {
    Acquire,
    Release,
    Owner,
    RttUs,
    Status,
    DurationMs,
}

/// An entry with a reserved key. `hits` is the `hits_addend` of its descriptor.
struct ReservedEntry {
    descriptor: usize,
    key: ReservedKey,
    value: String,
    hits: u64,
}

impl ReservedKey {
    fn parse(key: &str) -> Option<Self> {
        Some(match key.strip_prefix("sluicegate.")? {
            "acquire" => Self::Acquire,
            "release" => Self::Release,
            "owner" => Self::Owner,
            "rtt_us" => Self::RttUs,
            "status" => Self::Status,
            "duration_ms" => Self::DurationMs,
            _ => return None,
        })
    }
}

/// Returns the purpose of `request`, and removes its entries with `sluicegate.acquire`.
///
/// # Errors
/// [`CheckError::BadId`] if the reserved entries are invalid. `request` may then be partly changed
/// and must not be decided.
pub fn take_reserved(request: &mut RateLimitRequest) -> Result<ReservedCall, CheckError> {
    let reserved = reserved_entries(request);
    let Some(first) = reserved.first() else { return Ok(ReservedCall::Plain) };
    let id = shared_id(&reserved, first)?;
    if reserved.iter().all(|entry| entry.key == ReservedKey::Acquire) {
        let covered: Vec<_> = reserved.iter().map(|entry| entry.descriptor).collect();
        for &descriptor in &covered {
            let Some(covered_descriptor) = request.descriptors.get_mut(descriptor) else {
                continue;
            };
            covered_descriptor.entries.pop();
            if covered_descriptor.entries.is_empty() {
                return bad_id(descriptor, "sluicegate.acquire must follow another entry");
            }
        }
        return Ok(ReservedCall::Acquire { id, covered });
    }
    if let Some(acquire) = reserved.iter().find(|entry| entry.key == ReservedKey::Acquire) {
        return bad_id(acquire.descriptor, "a request cannot both acquire and release permits");
    }
    if reserved.len() < request.descriptors.len() {
        return bad_id(first.descriptor, "a release cannot have ordinary descriptors");
    }
    let owner = reserved.iter().find(|entry| entry.key == ReservedKey::Owner);
    let owner = owner.map(|entry| entry.value.clone());
    let (outcome, rtt) = release_outcome(&reserved);
    Ok(ReservedCall::Release { id, owner, outcome, rtt })
}

fn reserved_entries(request: &RateLimitRequest) -> Vec<ReservedEntry> {
    let reserved_entry = |(descriptor, content): (usize, &RateLimitDescriptor)| {
        let last = content.entries.last()?;
        let key = ReservedKey::parse(&last.key)?;
        let hits = content.hits_addend.as_ref().map_or(0, |addend| addend.value);
        Some(ReservedEntry { descriptor, key, value: last.value.clone(), hits })
    };
    request.descriptors.iter().enumerate().filter_map(reserved_entry).collect()
}

/// Returns the request id, which must be the same in all entries with `sluicegate.acquire` or
/// `sluicegate.release`.
fn shared_id(reserved: &[ReservedEntry], first: &ReservedEntry) -> Result<String, CheckError> {
    let with_id =
        |entry: &&ReservedEntry| matches!(entry.key, ReservedKey::Acquire | ReservedKey::Release);
    let mut ids = reserved.iter().filter(with_id);
    let Some(first_id) = ids.next() else {
        return bad_id(
            first.descriptor,
            "the entry sluicegate.release with the request id is missing",
        );
    };
    if let Some(other) = ids.find(|other| other.value != first_id.value) {
        return bad_id(other.descriptor, "the request has several ids; send one request per id");
    }
    match validate_id(&first_id.value) {
        Ok(()) => Ok(first_id.value.clone()),
        Err(why) => bad_id(first_id.descriptor, why),
    }
}

/// Returns the request outcome and the latency, from the entries of a release.
///
/// | HTTP status | latency or duration | outcome |
/// |---|---|---|
/// | 100 to 599 | present | the rules of the limit decide |
/// | 100 to 599 | none: the response was incomplete | the same, but never a success |
/// | 0: the client disconnected before the response | any | [`RequestOutcome::Ignored`] |
/// | another number | any | [`RequestOutcome::Ignored`] |
/// | none | upstream latency | [`RequestOutcome::Success`] |
/// | none | duration only, or none | [`RequestOutcome::Ignored`] |
fn release_outcome(reserved: &[ReservedEntry]) -> (ReportedOutcome, Option<Nanos>) {
    let number = |key| reserved.iter().find(|entry| entry.key == key).map(|entry| entry.hits);
    let measured = |key, unit: u64| number(key).map(|n| Nanos(n.saturating_mul(unit)));
    let upstream = measured(ReservedKey::RttUs, 1_000);
    let latency = upstream.or_else(|| measured(ReservedKey::DurationMs, Nanos::MILLI.0));
    let outcome = match number(ReservedKey::Status) {
        Some(status @ 100..=599) => ReportedOutcome::Answered(UpstreamAnswer {
            http: u16::try_from(status).ok(),
            grpc: None,
            has_latency: latency.is_some(),
            retry_after: None,
        }),
        None if upstream.is_some() => RequestOutcome::Success.into(),
        _ => RequestOutcome::Ignored.into(),
    };
    (outcome, latency)
}

fn bad_id<T>(descriptor: usize, why: &'static str) -> Result<T, CheckError> {
    Err(CheckError::BadId { descriptor, why })
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::google::protobuf::UInt64Value;

    use super::*;
    use crate::kernel::concurrency::OverloadAnswers;

    const ID: &str = "0123456789abcdef";

    type Written<'w> = (&'w [(&'w str, &'w str)], Option<u64>);

    fn request(descriptors: &[Written<'_>]) -> RateLimitRequest {
        let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
        let descriptor = |(entries, hits): &Written<'_>| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            hits_addend: hits.map(|value| UInt64Value { value }),
            ..RateLimitDescriptor::default()
        };
        let descriptors = descriptors.iter().map(descriptor).collect();
        RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
    }

    fn refused_descriptor(descriptors: &[Written<'_>]) -> usize {
        match take_reserved(&mut request(descriptors)) {
            Err(CheckError::BadId { descriptor, .. }) => descriptor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reserved_key_before_the_last_entry_has_no_effect() {
        let mut asked =
            request(&[(&[("sluicegate.acquire", ID), ("k", "v")], None), (&[("k", "v")], None)]);
        let before = asked.clone();
        assert_eq!(take_reserved(&mut asked), Ok(ReservedCall::Plain));
        assert_eq!(asked, before);
    }

    #[test]
    fn acquire_entries_are_removed_and_apply_only_to_their_descriptors() {
        let mut asked = request(&[
            (&[("k", "v"), ("sluicegate.acquire", ID)], None),
            (&[("other", "v")], None),
            (&[("l", "v"), ("sluicegate.acquire", ID)], None),
        ]);
        let covered = vec![0, 2];
        assert_eq!(take_reserved(&mut asked), Ok(ReservedCall::Acquire { id: ID.into(), covered }));
        let wanted: [Written<'_>; 3] =
            [(&[("k", "v")], None), (&[("other", "v")], None), (&[("l", "v")], None)];
        assert_eq!(asked, request(&wanted));
    }

    #[test]
    fn a_releases_status_and_latency_determine_the_request_outcome() {
        let release = [("sluicegate.release", ID)];
        let (rtt, status) = ([("sluicegate.rtt_us", "-")], [("sluicegate.status", "-")]);
        let took = [("sluicegate.duration_ms", "-")];
        let ended = |rest: &[Written<'_>]| {
            let all: Vec<_> = [(&release[..], Some(7))].into_iter().chain(rest.to_vec()).collect();
            match take_reserved(&mut request(&all)) {
                Ok(ReservedCall::Release { outcome, rtt, .. }) => {
                    (OverloadAnswers::DEFAULT.classify(outcome), rtt)
                }
                other => panic!("{other:?}"),
            }
        };
        let micros = Some(Nanos(1_500_000));
        assert_eq!(ended(&[]), (RequestOutcome::Ignored, None));
        assert_eq!(ended(&[(&rtt, Some(1_500))]), (RequestOutcome::Success, micros));
        assert_eq!(
            ended(&[(&rtt, Some(1_500)), (&took, Some(9))]),
            (RequestOutcome::Success, micros)
        );
        assert_eq!(ended(&[(&took, Some(9))]), (RequestOutcome::Ignored, Some(Nanos(9_000_000))));
        // A status without a latency or duration means that the response was incomplete.
        for (code, with_a_time, alone) in [
            (0, RequestOutcome::Ignored, RequestOutcome::Ignored),
            (200, RequestOutcome::Success, RequestOutcome::Ignored),
            (404, RequestOutcome::Success, RequestOutcome::Ignored),
            (429, RequestOutcome::Dropped, RequestOutcome::Dropped),
            (499, RequestOutcome::Success, RequestOutcome::Ignored),
            (500, RequestOutcome::Dropped, RequestOutcome::Dropped),
            (503, RequestOutcome::Dropped, RequestOutcome::Dropped),
        ] {
            for time in [(&rtt[..], Some(9)), (&took[..], Some(9))] {
                assert_eq!(ended(&[(&status, Some(code)), time]).0, with_a_time, "{code}");
            }
            assert_eq!(ended(&[(&status, Some(code))]), (alone, None), "{code}");
        }
    }

    #[test]
    fn only_a_permit_release_may_name_an_owner() {
        let (release, owner) = ([("sluicegate.release", ID)], [("sluicegate.owner", "x")]);
        let named = |descriptors: &[Written<'_>]| match take_reserved(&mut request(descriptors)) {
            Ok(ReservedCall::Release { owner, .. }) => owner,
            other => panic!("{other:?}"),
        };
        assert_eq!(named(&[(&release, None)]), None);
        assert_eq!(named(&[(&owner, None), (&release, None)]), Some("x".into()));
        assert_eq!(refused_descriptor(&[(&owner, None)]), 0, "of nothing");
        let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
        assert_eq!(refused_descriptor(&[(&owner, None), (&acquire, None)]), 1);
    }

    #[test]
    fn malformed_request_ids_and_misplaced_reserved_keys_are_rejected() {
        let long = "x".repeat(129);
        for id in ["", "0123456789abcde", "0123456789abcde!", "0123456789abcdé", &long] {
            assert_eq!(refused_descriptor(&[(&[("k", "v"), ("sluicegate.acquire", id)], None)]), 0);
            assert_eq!(refused_descriptor(&[(&[("sluicegate.release", id)], None)]), 0);
        }
        let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
        let other = [("k", "v"), ("sluicegate.acquire", "another-0123456789")];
        let release = [("sluicegate.release", ID)];
        assert_eq!(refused_descriptor(&[(&acquire, None), (&other, None)]), 1);
        assert_eq!(refused_descriptor(&[(&acquire, None), (&release, None)]), 0);
        assert_eq!(refused_descriptor(&[(&[("k", "v")], None), (&release, None)]), 1);
        assert_eq!(refused_descriptor(&[(&[("sluicegate.acquire", ID)], None)]), 0);
        assert_eq!(refused_descriptor(&[(&[("sluicegate.status", "-")], Some(200))]), 0);
    }
}
