//! What a hook without descriptors asks about a request: the message that Envoy's rate limit filter
//! would have sent.
//!
//! Guarantees: every such hook asks in the same way and so is answered by the same tables; a hook
//! that does not exist is refused in words; a request of which no descriptor can be made is not
//! asked about, as in Envoy.
//! Ceilings are asked where an id can tell of the request's end, and only there.
//! Leaves out: where a request's attributes come from, and how each protocol says what is here.

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

/// How often a process that goes looks whether anybody still waits in a queue.
const LOOK: Duration = Duration::from_millis(20);

/// The header that carries a request's id. The proxy mints it and overwrites what a client sent.
pub const ID: &str = "x-sluicegate-id";

/// The header, and the key of dynamic metadata, that names the replica which answered: its release goes there.
pub const OWNER: &str = "x-sluicegate-owner";

/// Why a request that a hook brings has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Every descriptor lacks a part. The request passes.
    #[error("no descriptor can be made of this request")]
    NothingToAsk,
    /// The setting is empty.
    #[error("no hooks are set, so that nothing says what to ask; see the setting `hooks`")]
    NoHooks,
    /// The request names another hook than those that are set.
    #[error("no hook is named {name:?}; the setting `hooks` has {known}")]
    UnknownHook {
        /// What was named.
        name: String,
        /// What could have been.
        known: String,
    },
    /// The id is none, or is in flight already.
    #[error("{ID}: {0}")]
    BadId(&'static str),
    /// Asked, and refused.
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

/// Asks `request`, within `patience`: under its ceilings, whose permits `id` holds until it is
/// released, or the rate limits alone where no id could give anything back. Safe to cancel. Of a request that is not
/// asked about the end comes all the same, and finds that nothing is held.
///
/// # Errors
/// What `request` says, [`Unanswered::BadId`] and [`Unanswered::Refused`]; nothing is held then.
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

/// Until the process goes, and nobody waits any longer for the place of a request whose end is seen here: once nobody looks,
/// it is not given back.
pub(in crate::edge) async fn may_go(
    leaving: &mut watch::Receiver<bool>,
    permits: Option<&Permits>,
) {
    // A sender that is gone means that the process is ending as well.
    let _gone = leaving.wait_for(|leaving| *leaving).await.is_err();
    while permits.is_some_and(Permits::are_waited_for) {
        tokio::time::sleep(LOOK).await;
    }
}

/// The question of the hook of that name, or of the first where none is named.
///
/// # Errors
/// [`Unanswered`] in all cases but the last.
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

/// The text at `key` of what the filter `filter` said.
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

/// The text in Envoy's dynamic metadata at `key`. Only a text: a number or a list is none, as for
/// Envoy's action.
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

/// What telemetry calls it.
pub(super) const fn counted(admitted: &Result<Admitted, Unanswered>) -> Outcome {
    match admitted {
        Ok(Admitted::Decided(answer, _)) => super::admitted(answer.verdict),
        Ok(Admitted::Rejected(_)) => Outcome::Deny,
        Err(why) => unanswered(why),
    }
}

/// What telemetry calls a request without an answer.
pub(super) const fn unanswered(why: &Unanswered) -> Outcome {
    match why {
        Unanswered::NothingToAsk => Outcome::NothingToAsk,
        Unanswered::NoHooks => Outcome::NoHooks,
        Unanswered::UnknownHook { .. } => Outcome::UnknownHook,
        Unanswered::BadId(_) => Outcome::BadId,
        Unanswered::Refused(refusal) => super::refused(refusal),
    }
}
