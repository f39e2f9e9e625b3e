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

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;

pub use super::headers::OWNER_KEY;
use crate::config::hooks::{DescriptorEntries, Hooks, MetadataKey, RequestAttributes};
use crate::engine::{AdmissionOutcome, CheckError};
use crate::kernel::units::Nanos;
use crate::permits::{Holder, Permits, outcome_of_admission};
use crate::telemetry::event::EdgeOutcome;

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

/// Decides the check of a hook within `timeout`, counts and times the call, and returns the reply. Can
/// be canceled at any time.
///
/// `reply` converts the result. An error is the one in `request`, [`HookError::BadId`] or
/// [`HookError::Rejected`], and the request then has no permits.
pub(crate) async fn decide<T>(
    permits: Permits<'_>,
    request: Result<&RateLimitRequest, &HookError>,
    (holder, timeout): (Holder<'_>, Option<Nanos>),
    reply: impl FnOnce(Result<AdmissionOutcome, HookError>) -> T,
) -> T {
    // Boxed, so that the connection's future, which contains this one several times, stays small.
    let decided = Box::pin(async {
        let result = match request {
            Ok(request) => permits.acquire(request, holder, timeout).await.map_err(HookError::from),
            Err(error) => {
                permits.record_without_permits(holder);
                Err(error.clone())
            }
        };
        (outcome_of(&result), reply(result))
    });
    permits.answer(decided).await
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

fn outcome_of(result: &Result<AdmissionOutcome, HookError>) -> EdgeOutcome {
    match result {
        Ok(admitted) => outcome_of_admission(admitted),
        Err(HookError::NoDescriptors) => EdgeOutcome::NothingToCheck,
        Err(HookError::NoHooks) => EdgeOutcome::NoHooks,
        Err(HookError::UnknownHook { .. }) => EdgeOutcome::UnknownHook,
        Err(HookError::BadId(_)) => EdgeOutcome::BadId,
        Err(HookError::Rejected(check_error)) => super::check_error_outcome(check_error),
    }
}
