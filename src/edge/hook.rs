//! Builds the check for hooks: calls from proxies that send no descriptors.
//!
//! The check is the message that Envoy's rate limit filter would have sent.
//!
//! Guarantees:
//! - All hooks build the check in the same way.
//! - An unknown hook name is an error that lists the known names.
//! - A request without any descriptor is allowed without a check, as in Envoy.
//! - Concurrency limits apply only if the request has an id to release it by.
//!
//! Not covered:
//! - Reading the attributes and writing the reply (see each protocol).

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use tokio::sync::watch;

use super::Reporting;
use super::grpc::convert;
use crate::config::hooks::{Attributes, Entries, Hooks, MetadataKey};
use crate::engine::{Admitted, Engine, Permits, Refusal, check_id};
use crate::kernel::units::Nanos;
use crate::telemetry::event::Outcome;

/// The interval at which a draining process examines the queues for its permits.
const LOOK: Duration = Duration::from_millis(20);

/// The header with the request's id. The proxy creates
/// the id and overwrites a header of the client.
pub const ID: &str = "x-sluicegate-id";

/// The name of the replica that decided. The release must reach
/// this replica. Used as a header and as a key in dynamic metadata.
pub const OWNER: &str = "x-sluicegate-owner";

/// The reasons for which a hook's request gets no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// No descriptor is complete. The request is allowed.
    #[error("no descriptor can be made of this request")]
    NothingToAsk,
    /// The setting `hooks` is empty.
    #[error("no hooks are set, so that nothing says what to ask; see the setting `hooks`")]
    NoHooks,
    /// The request names an unknown hook.
    #[error("no hook is named {name:?}; the setting `hooks` has {known}")]
    UnknownHook {
        /// The unknown name.
        name: String,
        /// The names in the setting `hooks`.
        known: String,
    },
    /// The id is invalid or already in flight.
    #[error("{ID}: {0}")]
    BadId(&'static str),
    /// The engine rejected the check.
    #[error(transparent)]
    Refused(Refusal),
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BadId { why, .. } => Self::BadId(why),
            other => Self::Refused(other),
        }
    }
}

/// Decides `request` within `patience`. Safe to cancel.
///
/// With an id, the concurrency limits apply too, and the permits belong
/// to `id` until its release. Without an id, only the rate limits apply.
///
/// If there is no check to decide, the id is recorded as one
/// without permits. Its release is then not an early release.
///
/// # Errors
/// The error in `request`, [`Unanswered::BadId`] or
/// [`Unanswered::Refused`]. In these cases no permit is acquired.
pub async fn ask(
    engine: &Engine,
    reporting: &Reporting,
    request: Result<&RateLimitRequest, &Unanswered>,
    id: Option<&str>,
    patience: Option<Nanos>,
) -> Result<Admitted, Unanswered> {
    let asked = request.map_err(Unanswered::clone);
    let question = asked.and_then(|request| Ok(convert::question(request, reporting)?));
    let question = question.inspect_err(|_| pass_by(engine, id))?;
    let Some(id) = id else {
        let answer = engine.decide_within(&question, patience).await?;
        return Ok(Admitted::Decided(answer, Permits::default()));
    };
    check_id(id).map_err(Unanswered::BadId)?;
    Ok(engine.acquire((id, 0), &question, &question, patience).await?)
}

fn pass_by(engine: &Engine, id: Option<&str>) {
    if let Some(id) = id.filter(|id| check_id(id).is_ok()) {
        engine.pass_by(id);
    }
}

/// Waits until the process drains and no request waits in a queue for `permits`. Until then this
/// process must watch for the end of the request, because nobody else would release the permits.
pub(in crate::edge) async fn may_go(
    leaving: &mut watch::Receiver<bool>,
    permits: Option<&Permits>,
) {
    // A dropped sender also means that the process ends.
    let _gone = leaving.wait_for(|leaving| *leaving).await.is_err();
    while permits.is_some_and(Permits::are_waited_for) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Builds the check of the hook `name`, or of the first hook if `name` is `None`.
///
/// # Errors
/// [`Unanswered::NothingToAsk`], [`Unanswered::NoHooks`] or [`Unanswered::UnknownHook`].
pub fn request<'a>(
    hooks: &'a Hooks,
    name: Option<&str>,
    attributes: &Attributes<'a>,
) -> Result<RateLimitRequest, Unanswered> {
    let hook = hooks.named(name).ok_or_else(|| missing(hooks, name))?;
    let descriptors: Vec<_> = hook.descriptors(attributes).into_iter().map(descriptor).collect();
    if descriptors.is_empty() {
        return Err(Unanswered::NothingToAsk);
    }
    Ok(RateLimitRequest { domain: hook.domain.clone(), descriptors, hits_addend: 0 })
}

fn missing(hooks: &Hooks, name: Option<&str>) -> Unanswered {
    match name {
        Some(name) if !hooks.0.is_empty() => {
            let known: Vec<_> = hooks.0.iter().map(|hook| hook.name.as_str()).collect();
            Unanswered::UnknownHook { name: name.to_owned(), known: known.join(", ") }
        }
        _ => Unanswered::NoHooks,
    }
}

fn descriptor(entries: Entries<'_>) -> RateLimitDescriptor {
    let entry = |(key, value): (&str, _)| Entry { key: key.to_owned(), value: String::from(value) };
    RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// Returns the string that the filter `filter` wrote at `key`.
pub(super) fn said_by<'m>(
    filter: &str,
    key: &str,
    metadata: Option<&'m Metadata>,
) -> Option<&'m str> {
    match metadata?.filter_metadata.get(filter)?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Returns the string at `key` in Envoy's dynamic metadata.
/// Other types count as missing, as in Envoy's action.
pub(super) fn text_at(metadata: Option<&Metadata>, key: &MetadataKey) -> Option<String> {
    let (last, path) = key.path.split_last()?;
    let mut below = metadata?.filter_metadata.get(&key.key)?;
    for segment in path {
        match below.fields.get(&segment.key)?.kind.as_ref()? {
            Kind::StructValue(inner) => below = inner,
            _ => return None,
        }
    }
    match below.fields.get(&last.key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) const fn counted(admitted: &Result<Admitted, Unanswered>) -> Outcome {
    match admitted {
        Ok(Admitted::Decided(answer, _)) => super::admitted(answer.verdict),
        Ok(Admitted::Rejected(_)) => Outcome::Deny,
        Err(why) => unanswered(why),
    }
}

pub(super) const fn unanswered(why: &Unanswered) -> Outcome {
    match why {
        Unanswered::NothingToAsk => Outcome::NothingToAsk,
        Unanswered::NoHooks => Outcome::NoHooks,
        Unanswered::UnknownHook { .. } => Outcome::UnknownHook,
        Unanswered::BadId(_) => Outcome::BadId,
        Unanswered::Refused(refusal) => super::refused(refusal),
    }
}
