//! Reserved keys of a rate limit request:
//! `sluicegate.acquire`, `sluicegate.release` and its details.
//!
//! Guarantees:
//! - Reserved entries never match a rule.
//! - A request has one id, of 16 to 128 characters of `[0-9A-Za-z._-]`.
//! - A release is refused if the request also has ordinary descriptors.
//!
//! Not covered:
//! - Acquiring and releasing, which the engine does.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::engine::{Refusal, check_id};
use crate::kernel::concurrency::Outcome;
use crate::kernel::units::Nanos;

/// The purpose of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Call {
    /// A check of rate limits only.
    Plain,
    /// An acquire: permits for the descriptors `covered`, and a check of all rate limits.
    Acquire {
        /// The request's id.
        id: String,
        /// The indexes of the descriptors that need permits, from 0, ascending.
        covered: Vec<usize>,
    },
    /// A release of the permits of `id`.
    Release {
        /// The request's id.
        id: String,
        /// The replica that owns the permits, if the request names it.
        owner: Option<String>,
        /// The outcome of the request.
        outcome: Outcome,
        /// The upstream's latency, or the request's duration if the proxy measured only that.
        rtt: Option<Nanos>,
    },
}

/// A reserved key, which is valid in the last entry of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Acquire,
    Release,
    Owner,
    RttUs,
    Status,
    DurationMs,
}

/// A reserved entry; `number` is the descriptor's `hits_addend`.
struct Found {
    descriptor: usize,
    word: Word,
    value: String,
    number: u64,
}

impl Word {
    fn named(key: &str) -> Option<Self> {
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

/// Removes the reserved entries from `request` and returns its purpose.
///
/// # Errors
/// [`Refusal::BadId`]. The rest of `request` must not be checked then.
pub fn take_off(request: &mut RateLimitRequest) -> Result<Call, Refusal> {
    let found = found(request);
    let Some(first) = found.first() else { return Ok(Call::Plain) };
    let id = id(&found, first)?;
    if found.iter().all(|found| found.word == Word::Acquire) {
        let covered: Vec<_> = found.iter().map(|found| found.descriptor).collect();
        for &descriptor in &covered {
            let Some(of) = request.descriptors.get_mut(descriptor) else { continue };
            of.entries.pop();
            if of.entries.is_empty() {
                return refuse(descriptor, "nothing stands before sluicegate.acquire");
            }
        }
        return Ok(Call::Acquire { id, covered });
    }
    if let Some(acquire) = found.iter().find(|found| found.word == Word::Acquire) {
        return refuse(acquire.descriptor, "sluicegate.acquire beside a release");
    }
    if found.len() < request.descriptors.len() {
        return refuse(first.descriptor, "a release beside descriptors of another kind");
    }
    let owner = found.iter().find(|found| found.word == Word::Owner);
    let owner = owner.map(|found| found.value.clone());
    let (outcome, rtt) = ended_as(&found);
    Ok(Call::Release { id, owner, outcome, rtt })
}

fn found(request: &RateLimitRequest) -> Vec<Found> {
    let one = |(descriptor, of): (usize, &RateLimitDescriptor)| {
        let last = of.entries.last()?;
        let word = Word::named(&last.key)?;
        let number = of.hits_addend.as_ref().map_or(0, |hits| hits.value);
        Some(Found { descriptor, word, value: last.value.clone(), number })
    };
    request.descriptors.iter().enumerate().filter_map(one).collect()
}

/// Returns the id, which all acquires and releases of the request must share.
fn id(found: &[Found], first: &Found) -> Result<String, Refusal> {
    let with_id = |found: &&Found| matches!(found.word, Word::Acquire | Word::Release);
    let mut ids = found.iter().filter(with_id);
    let Some(one) = ids.next() else {
        return refuse(first.descriptor, "tells of a request, and no sluicegate.release names it");
    };
    if let Some(other) = ids.find(|other| other.value != one.value) {
        return refuse(other.descriptor, "a second id: one question is about one request");
    }
    match check_id(&one.value) {
        Ok(()) => Ok(one.value.clone()),
        Err(why) => refuse(one.descriptor, why),
    }
}

/// Returns the request's outcome for its upstream, and its latency.
///
/// - A status of 500 or more is [`Outcome::Dropped`].
/// - A status from 100 to 499 with a duration is [`Outcome::Success`].
/// - An upstream latency without a status is a success: the upstream answered.
/// - Status 0 is [`Outcome::Ignored`]: the client disconnected before the response.
/// - A status below 500 without a duration is ignored too.
///
/// The status arrives with the response's headers. If the body is cut off, Envoy sends
/// no upstream latency, and the time until then would look like a fast response.
fn ended_as(found: &[Found]) -> (Outcome, Option<Nanos>) {
    let number = |word| found.iter().find(|found| found.word == word).map(|found| found.number);
    let measured = |word, unit: u64| number(word).map(|n| Nanos(n.saturating_mul(unit)));
    let upstream = measured(Word::RttUs, 1_000);
    let took = upstream.or_else(|| measured(Word::DurationMs, Nanos::MILLI.0));
    let outcome = match number(Word::Status) {
        Some(500..) => Outcome::Dropped,
        Some(100..) if took.is_some() => Outcome::Success,
        None if upstream.is_some() => Outcome::Success,
        _ => Outcome::Ignored,
    };
    (outcome, took)
}

fn refuse<T>(descriptor: usize, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal::BadId { descriptor, why })
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::google::protobuf::UInt64Value;

    use super::*;

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

    fn refused(descriptors: &[Written<'_>]) -> usize {
        match take_off(&mut request(descriptors)) {
            Err(Refusal::BadId { descriptor, .. }) => descriptor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_without_a_trailing_reserved_key_are_unchanged() {
        let mut asked =
            request(&[(&[("sluicegate.acquire", ID), ("k", "v")], None), (&[("k", "v")], None)]);
        let before = asked.clone();
        assert_eq!(take_off(&mut asked), Ok(Call::Plain));
        assert_eq!(asked, before);
    }

    #[test]
    fn acquire_entries_are_removed_and_cover_only_their_descriptors() {
        let mut asked = request(&[
            (&[("k", "v"), ("sluicegate.acquire", ID)], None),
            (&[("other", "v")], None),
            (&[("l", "v"), ("sluicegate.acquire", ID)], None),
        ]);
        let covered = vec![0, 2];
        assert_eq!(take_off(&mut asked), Ok(Call::Acquire { id: ID.into(), covered }));
        let wanted: [Written<'_>; 3] =
            [(&[("k", "v")], None), (&[("other", "v")], None), (&[("l", "v")], None)];
        assert_eq!(asked, request(&wanted));
    }

    #[test]
    fn status_and_latency_entries_determine_the_release_outcome() {
        let release = [("sluicegate.release", ID)];
        let (rtt, status) = ([("sluicegate.rtt_us", "-")], [("sluicegate.status", "-")]);
        let took = [("sluicegate.duration_ms", "-")];
        let ended = |rest: &[Written<'_>]| {
            let all: Vec<_> = [(&release[..], Some(7))].into_iter().chain(rest.to_vec()).collect();
            match take_off(&mut request(&all)) {
                Ok(Call::Release { outcome, rtt, .. }) => (outcome, rtt),
                other => panic!("{other:?}"),
            }
        };
        let micros = Some(Nanos(1_500_000));
        assert_eq!(ended(&[]), (Outcome::Ignored, None));
        assert_eq!(ended(&[(&rtt, Some(1_500))]), (Outcome::Success, micros));
        assert_eq!(ended(&[(&rtt, Some(1_500)), (&took, Some(9))]), (Outcome::Success, micros));
        assert_eq!(ended(&[(&took, Some(9))]), (Outcome::Ignored, Some(Nanos(9_000_000))));
        // Without a duration the response was incomplete.
        for (code, with_a_time, alone) in [
            (0, Outcome::Ignored, Outcome::Ignored),
            (200, Outcome::Success, Outcome::Ignored),
            (499, Outcome::Success, Outcome::Ignored),
            (500, Outcome::Dropped, Outcome::Dropped),
            (503, Outcome::Dropped, Outcome::Dropped),
        ] {
            for time in [(&rtt[..], Some(9)), (&took[..], Some(9))] {
                assert_eq!(ended(&[(&status, Some(code)), time]).0, with_a_time, "{code}");
            }
            assert_eq!(ended(&[(&status, Some(code))]), (alone, None), "{code}");
        }
    }

    #[test]
    fn only_a_release_may_name_an_owner() {
        let (release, owner) = ([("sluicegate.release", ID)], [("sluicegate.owner", "x")]);
        let named = |descriptors: &[Written<'_>]| match take_off(&mut request(descriptors)) {
            Ok(Call::Release { owner, .. }) => owner,
            other => panic!("{other:?}"),
        };
        assert_eq!(named(&[(&release, None)]), None);
        assert_eq!(named(&[(&owner, None), (&release, None)]), Some("x".into()));
        assert_eq!(refused(&[(&owner, None)]), 0, "of nothing");
        let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
        assert_eq!(refused(&[(&owner, None), (&acquire, None)]), 1);
    }

    #[test]
    fn malformed_ids_and_misplaced_reserved_keys_are_rejected() {
        let long = "x".repeat(129);
        for id in ["", "0123456789abcde", "0123456789abcde!", "0123456789abcdé", &long] {
            assert_eq!(refused(&[(&[("k", "v"), ("sluicegate.acquire", id)], None)]), 0);
            assert_eq!(refused(&[(&[("sluicegate.release", id)], None)]), 0);
        }
        let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
        let other = [("k", "v"), ("sluicegate.acquire", "another-0123456789")];
        let release = [("sluicegate.release", ID)];
        assert_eq!(refused(&[(&acquire, None), (&other, None)]), 1);
        assert_eq!(refused(&[(&acquire, None), (&release, None)]), 0);
        assert_eq!(refused(&[(&[("k", "v")], None), (&release, None)]), 1);
        assert_eq!(refused(&[(&[("sluicegate.acquire", ID)], None)]), 0);
        assert_eq!(refused(&[(&[("sluicegate.status", "-")], Some(200))]), 0);
    }
}
