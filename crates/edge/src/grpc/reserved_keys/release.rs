//! The release in the entries of a request's end.

use super::entry::{ReservedEntry, ReservedKey};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::units::Nanos;

/// A release of the permits of one request id.
#[derive(Debug, PartialEq, Eq)]
pub struct ReleaseCall {
    /// The replica that owns the permits, if the request names it.
    pub owner: Option<String>,
    /// The request outcome.
    pub outcome: ReportedOutcome,
    /// The upstream's latency, or the duration of the request if the proxy sent only that.
    pub rtt: Option<Nanos>,
}

pub(super) fn release_call(reserved: &[ReservedEntry]) -> ReleaseCall {
    let owner = reserved.iter().find(|entry| entry.key == ReservedKey::Owner);
    let owner = owner.map(|entry| entry.value.clone());
    let (outcome, rtt) = release_outcome(reserved);
    ReleaseCall { owner, outcome, rtt }
}

/// Returns the `hits_addend` beside a key; 0 if its descriptor has none.
pub(super) fn number(reserved: &[ReservedEntry], key: ReservedKey) -> Option<u64> {
    reserved.iter().find(|entry| entry.key == key).map(|entry| entry.hits.unwrap_or(0))
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
    let measured = |key, unit: u64| number(reserved, key).map(|n| Nanos(n.saturating_mul(unit)));
    let upstream = measured(ReservedKey::RttUs, 1_000);
    let latency = upstream.or_else(|| measured(ReservedKey::DurationMs, Nanos::MILLI.0));
    let outcome = match number(reserved, ReservedKey::Status) {
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
