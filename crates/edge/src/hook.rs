//! Builds and decides the checks of hooks: calls from proxies without descriptors.
//!
//! The setting `hooks` says how to build the descriptors from the request's attributes. The result
//! is the message that Envoy's rate limit filter would have sent.
//!
//! Guarantees:
//! - All protocols build the check of a hook in the same way.
//! - An unknown hook name is an error that lists the configured names.
//! - A request from which no descriptor can be built is allowed, as in Envoy.
//! - Concurrency limits apply only to requests with an id, because the release needs it.

use std::borrow::Cow;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use tokio::sync::watch;

use super::ReplyOptions;
use super::grpc::convert;
pub use super::headers::OWNER_KEY;
use crate::config::hooks::{DescriptorEntries, Hooks, MetadataKey, RequestAttributes};
use crate::engine::{AdmissionOutcome, CheckError, Engine, RequestPermits, validate_id};
use crate::kernel::units::Nanos;
use crate::telemetry::event::EdgeOutcome;

/// The interval at which a draining process checks whether its queues are empty.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The request header with the request id. The proxy must create the id and overwrite an id that
/// the client sent.
pub const ID: &str = "x-sluicegate-id";

/// The reasons why a call of a hook gets no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The request lacks the attributes for every descriptor of the hook. Such a request is
    /// allowed.
    #[error("the request has no attributes for any descriptor of the hook")]
    NoDescriptors,
    /// The setting `hooks` is empty.
    #[error("no hooks are configured; see the setting `hooks`")]
    NoHooks,
    /// The setting `hooks` has no hook with the name in the request.
    #[error("unknown hook {name:?}; the setting `hooks` has {known}")]
    UnknownHook {
        /// The hook name in the request.
        name: String,
        /// The hook names in the setting `hooks`, comma-separated.
        known: String,
    },
    /// The request id is malformed, or another request in flight has it.
    #[error("{ID}: {0}")]
    BadId(&'static str),
    /// The engine returned an error for the check.
    #[error(transparent)]
    Rejected(CheckError),
}

impl From<CheckError> for HookError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::BadId { why, .. } => Self::BadId(why),
            other => Self::Rejected(other),
        }
    }
}

/// Decides the check `request` of a hook within `timeout`. Can be canceled at any time.
///
/// - With a request `id`, rate and concurrency limits apply, and the engine stores the permits
///   under the id until their release.
/// - Without an id, only the rate limits apply.
///
/// If `request` is an error, the engine records that the id has no permits, so that its release
/// does not count as early.
///
/// # Errors
/// The error in `request`, [`HookError::BadId`] or [`HookError::Rejected`]. The request then has no
/// permits.
pub async fn decide(
    engine: &Engine,
    options: &ReplyOptions,
    request: Result<&RateLimitRequest, &HookError>,
    id: Option<&str>,
    timeout: Option<Nanos>,
) -> Result<AdmissionOutcome, HookError> {
    let valid_request = request.map_err(HookError::clone);
    let check = valid_request.and_then(|request| {
        let check = convert::to_check(request, options);
        Ok(check.inspect_err(|error| engine.log_refusal(&request.domain, error))?)
    });
    let check = check.inspect_err(|_| record_without_permits(engine, id))?;
    let Some(id) = id else {
        let decision = engine.decide_within(&check, timeout).await?;
        return Ok(AdmissionOutcome::Decided(decision, RequestPermits::default()));
    };
    validate_id(id).map_err(HookError::BadId)?;
    Ok(engine.acquire((id, 0), &check, &check, timeout).await?)
}

fn record_without_permits(engine: &Engine, id: Option<&str>) {
    if let Some(id) = id.filter(|id| validate_id(id).is_ok()) {
        engine.record_without_permits(id);
    }
}

/// Waits until this process drains and no request waits for the limits of `permits`. Until then the
/// caller must detect the request's end, because its release lets queued requests proceed.
pub(crate) async fn wait_until_drained(
    draining: &mut watch::Receiver<bool>,
    permits: Option<&RequestPermits>,
) {
    // `wait_for` fails if the channel is closed, because the process ends.
    let _is_closed = draining.wait_for(|is_draining| *is_draining).await.is_err();
    while permits.is_some_and(RequestPermits::has_waiters) {
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
}

/// Builds the check of the hook `name`, or of the first configured hook without a name.
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

/// Returns the text at `key` in the dynamic metadata of the Envoy filter `filter`.
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

/// Returns the text at `key` in Envoy's dynamic metadata. A value of another type counts as
/// missing, as in Envoy's rate limit action `metadata`.
pub(super) fn metadata_string<'m>(
    metadata: Option<&'m Metadata>,
    key: &MetadataKey,
) -> Option<Cow<'m, str>> {
    let (last, path) = key.path.split_last()?;
    let mut current = metadata?.filter_metadata.get(&key.key)?;
    for segment in path {
        match current.fields.get(&segment.key)?.kind.as_ref()? {
            Kind::StructValue(inner) => current = inner,
            _ => return None,
        }
    }
    match current.fields.get(&last.key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(Cow::Borrowed(text)),
        _ => None,
    }
}

/// Parses the seconds of a `Retry-After` header. A date is not supported, because the clocks of two
/// machines differ.
pub(super) fn parse_retry_after(value: &str) -> Option<Nanos> {
    let seconds: u32 = value.trim().parse().ok()?;
    Some(Nanos::from_secs(seconds.into()))
}

pub(super) const fn admission_outcome(result: &Result<AdmissionOutcome, HookError>) -> EdgeOutcome {
    match result {
        Ok(AdmissionOutcome::Decided(decision, _)) => super::verdict_outcome(decision.verdict),
        Ok(AdmissionOutcome::Rejected(_)) => EdgeOutcome::Deny,
        Err(error) => hook_error_outcome(error),
    }
}

pub(super) const fn hook_error_outcome(error: &HookError) -> EdgeOutcome {
    match error {
        HookError::NoDescriptors => EdgeOutcome::NothingToCheck,
        HookError::NoHooks => EdgeOutcome::NoHooks,
        HookError::UnknownHook { .. } => EdgeOutcome::UnknownHook,
        HookError::BadId(_) => EdgeOutcome::BadId,
        HookError::Rejected(check_error) => super::check_error_outcome(check_error),
    }
}
