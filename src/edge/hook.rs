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

use super::ReplyOptions;
use super::grpc::convert;
use crate::config::hooks::{DescriptorEntries, Hooks, MetadataKey, RequestAttributes};
use crate::engine::{AdmissionOutcome, CheckError, Engine, RequestPermits, validate_id};
use crate::kernel::units::Nanos;
use crate::telemetry::event::EdgeOutcome;

/// The interval at which a draining process examines the queues for its permits.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The header with the request's id. The proxy creates
/// the id and overwrites a header of the client.
pub const ID: &str = "x-sluicegate-id";

/// The name of the replica that decided. The release must reach
/// this replica. Used as a header and as a key in dynamic metadata.
pub const OWNER_KEY: &str = "x-sluicegate-owner";

/// The reasons for which a hook's request gets no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// No descriptor is complete. The request is allowed.
    #[error("no descriptor can be made of this request")]
    NoDescriptors,
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
    Rejected(CheckError),
}

impl From<CheckError> for HookError {
    fn from(refusal: CheckError) -> Self {
        match refusal {
            CheckError::BadId { why, .. } => Self::BadId(why),
            other => Self::Rejected(other),
        }
    }
}

/// Decides `request` within `timeout`. Safe to cancel.
///
/// With an id, the concurrency limits apply too, and the permits belong
/// to `id` until its release. Without an id, only the rate limits apply.
///
/// If there is no check to decide, the id is recorded as one
/// without permits. Its release is then not an early release.
///
/// # Errors
/// The error in `request`, [`HookError::BadId`] or
/// [`HookError::Rejected`]. In these cases no permit is acquired.
pub async fn decide(
    engine: &Engine,
    reporting: &ReplyOptions,
    request: Result<&RateLimitRequest, &HookError>,
    id: Option<&str>,
    timeout: Option<Nanos>,
) -> Result<AdmissionOutcome, HookError> {
    let valid_request = request.map_err(HookError::clone);
    let question = valid_request.and_then(|request| Ok(convert::to_check(request, reporting)?));
    let question = question.inspect_err(|_| record_without_permits(engine, id))?;
    let Some(id) = id else {
        let answer = engine.decide_within(&question, timeout).await?;
        return Ok(AdmissionOutcome::Decided(answer, RequestPermits::default()));
    };
    validate_id(id).map_err(HookError::BadId)?;
    Ok(engine.acquire((id, 0), &question, &question, timeout).await?)
}

fn record_without_permits(engine: &Engine, id: Option<&str>) {
    if let Some(id) = id.filter(|id| validate_id(id).is_ok()) {
        engine.record_without_permits(id);
    }
}

/// Waits until the process drains and no request waits in a queue for `permits`. Until then this
/// process must watch for the end of the request, because nobody else would release the permits.
pub(in crate::edge) async fn wait_until_drained(
    draining: &mut watch::Receiver<bool>,
    permits: Option<&RequestPermits>,
) {
    // A dropped sender also means that the process ends.
    let _is_closed = draining.wait_for(|leaving| *leaving).await.is_err();
    while permits.is_some_and(RequestPermits::has_waiters) {
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
}

/// Builds the check of the hook `name`, or of the first hook if `name` is `None`.
///
/// # Errors
/// [`HookError::NoDescriptors`], [`HookError::NoHooks`] or [`HookError::UnknownHook`].
pub fn build_request<'a>(
    hooks: &'a Hooks,
    name: Option<&str>,
    attributes: &RequestAttributes<'a>,
) -> Result<RateLimitRequest, HookError> {
    let hook = hooks.find_or_first(name).ok_or_else(|| hook_not_found(hooks, name))?;
    let descriptors: Vec<_> =
        hook.build_descriptors(attributes).into_iter().map(to_descriptor).collect();
    if descriptors.is_empty() {
        return Err(HookError::NoDescriptors);
    }
    Ok(RateLimitRequest { domain: hook.domain.clone(), descriptors, hits_addend: 0 })
}

fn hook_not_found(hooks: &Hooks, name: Option<&str>) -> HookError {
    match name {
        Some(name) if !hooks.0.is_empty() => {
            let known: Vec<_> = hooks.0.iter().map(|hook| hook.name.as_str()).collect();
            HookError::UnknownHook { name: name.to_owned(), known: known.join(", ") }
        }
        _ => HookError::NoHooks,
    }
}

fn to_descriptor(entries: DescriptorEntries<'_>) -> RateLimitDescriptor {
    let entry = |(key, value): (&str, _)| Entry { key: key.to_owned(), value: String::from(value) };
    RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// Returns the string that the filter `filter` wrote at `key`.
pub(super) fn filter_string<'m>(
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
pub(super) fn metadata_string(metadata: Option<&Metadata>, key: &MetadataKey) -> Option<String> {
    let (last, path) = key.path.split_last()?;
    let mut current = metadata?.filter_metadata.get(&key.key)?;
    for segment in path {
        match current.fields.get(&segment.key)?.kind.as_ref()? {
            Kind::StructValue(inner) => current = inner,
            _ => return None,
        }
    }
    match current.fields.get(&last.key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) const fn admission_outcome(
    admitted: &Result<AdmissionOutcome, HookError>,
) -> EdgeOutcome {
    match admitted {
        Ok(AdmissionOutcome::Decided(answer, _)) => super::verdict_outcome(answer.verdict),
        Ok(AdmissionOutcome::Rejected(_)) => EdgeOutcome::Deny,
        Err(why) => hook_error_outcome(why),
    }
}

pub(super) const fn hook_error_outcome(why: &HookError) -> EdgeOutcome {
    match why {
        HookError::NoDescriptors => EdgeOutcome::NothingToCheck,
        HookError::NoHooks => EdgeOutcome::NoHooks,
        HookError::UnknownHook { .. } => EdgeOutcome::UnknownHook,
        HookError::BadId(_) => EdgeOutcome::BadId,
        HookError::Rejected(refusal) => super::check_error_outcome(refusal),
    }
}
