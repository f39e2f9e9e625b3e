//! Converts requests of all wire protocols to checks, and decisions to replies.
//!
//! Guarantees:
//! - Every protocol calls the same [`Engine`].
//! - Checks ([`grpc::convert`]) and rate limit headers ([`headers`]) are the same in all protocols.
//! - An invalid request gets an error in the format of its protocol, and changes no counter.

mod accept_errors;
pub mod body_memory;
pub mod brief_connections;
pub mod connection_gate;
mod failed_connections;
mod first_bytes;
pub mod grpc;
pub mod headers;
pub mod health;
pub mod hook;
pub mod http;
pub mod mirror;
mod permits;
pub mod syslog;

use sluicegate_config as config;
use sluicegate_engine::{self as engine, recording};
use sluicegate_kernel as kernel;
use sluicegate_lease::clock;
use sluicegate_telemetry::{self as telemetry, pem};

use crate::engine::{CheckError, Engine};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::EdgeOutcome;
use crate::telemetry::stats::StatCounter;

/// The optional parts of the reply to a check, as configured by the settings.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// The rate limit headers for the client of the proxy.
    pub headers: headers::RateLimitHeaders,
    /// The names of the rate limit headers of envoyproxy/ratelimit for the upstream. `None` sends
    /// none.
    pub upstream_names: Option<headers::CompatHeaderNames>,
    /// Adds Envoy's `dynamic_metadata` to replies.
    pub dynamic_metadata: bool,
    /// Adds the path of the rule that denied to `dynamic_metadata`.
    pub denied_by_metadata: bool,
    /// Allows refunds (`is_negative_hits`). If `false`, a check with a refund is an error.
    pub allow_negative_hits: bool,
}

/// Counts a failed check in the statistics that are named as in envoyproxy/ratelimit.
fn count_check_error(engine: &Engine, error: &CheckError) {
    let Some(stats) = engine.stats() else { return };
    if let CheckError::RefundsDisabled { .. } = error {
        // envoyproxy/ratelimit cannot parse a refund, so it does not count one.
        return;
    }
    let is_store_error = matches!(error, CheckError::StoreUnavailable(_));
    stats.add(if is_store_error { StatCounter::RedisError } else { StatCounter::ServiceError }, 1);
}

const fn verdict_outcome(verdict: Verdict) -> EdgeOutcome {
    match verdict {
        Verdict::Allow => EdgeOutcome::Allow,
        Verdict::Deny => EdgeOutcome::Deny,
    }
}

const fn check_error_outcome(error: &CheckError) -> EdgeOutcome {
    match error {
        CheckError::EmptyDomain => EdgeOutcome::EmptyDomain,
        CheckError::NoDescriptors => EdgeOutcome::NoDescriptors,
        CheckError::NoConfig => EdgeOutcome::NoConfig,
        CheckError::TooManyDescriptors { .. } => EdgeOutcome::TooManyDescriptors,
        CheckError::TooManyEntries { .. } => EdgeOutcome::TooManyEntries,
        CheckError::EntryTooLong { .. } => EdgeOutcome::EntryTooLong,
        CheckError::HitsTooLarge { .. } => EdgeOutcome::HitsTooLarge,
        CheckError::UnknownUnit { .. } => EdgeOutcome::UnknownUnit,
        CheckError::RefundsDisabled { .. } => EdgeOutcome::RefundsDisabled,
        CheckError::BadId { .. } => EdgeOutcome::BadId,
        CheckError::StoreUnavailable(_) => EdgeOutcome::StoreUnavailable,
    }
}
