//! Converts requests of all wire protocols to checks, and decisions to replies.
//!
//! Guarantees:
//! - Every protocol calls the same [`Engine`](crate::engine::Engine).
//! - All protocols share the conversion of checks ([`grpc::convert`])
//!   and of rate limit headers ([`headers`]).
//! - An invalid request gets an error in the format of its protocol, and changes no counter.
//!
//! Not covered:
//! - Decisions (see [`crate::engine`]).
//! - Creating the listening sockets (see [`crate::cli`]).

pub mod grpc;
pub mod headers;
pub mod health;
pub mod hook;
pub mod http;
pub mod syslog;

use crate::engine::{CheckError, Decision, Engine};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::EdgeOutcome;
use crate::telemetry::stats::StatCounter;

/// The optional contents of the reply to a check, according to the settings.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// The rate limit headers that the downstream client receives.
    pub headers: headers::RateLimitHeaders,
    /// The names of the three rate limit headers of envoyproxy/ratelimit that the upstream
    /// receives. `None` means that it receives none.
    pub upstream_names: Option<headers::CompatHeaderNames>,
    /// Adds Envoy's `dynamic_metadata` to replies.
    pub dynamic_metadata: bool,
    /// Allows refunds (`is_negative_hits`). If false, a check with a refund is an error.
    pub allow_negative_hits: bool,
}

fn check_outcome(result: &Result<Decision, CheckError>) -> EdgeOutcome {
    match result {
        Ok(answer) => verdict_outcome(answer.verdict),
        Err(refusal) => check_error_outcome(refusal),
    }
}

/// Counts a failed check in the statistics that have the names of envoyproxy/ratelimit.
fn count_check_error(engine: &Engine, refusal: &CheckError) {
    let Some(stats) = engine.stats() else { return };
    if let CheckError::RefundsDisabled { .. } = refusal {
        // Not counted: for envoyproxy/ratelimit, a refund is a message that it cannot parse.
        return;
    }
    let is_store_error = matches!(refusal, CheckError::StoreUnavailable(_));
    stats.add(if is_store_error { StatCounter::RedisError } else { StatCounter::ServiceError }, 1);
}

const fn verdict_outcome(verdict: Verdict) -> EdgeOutcome {
    match verdict {
        Verdict::Allow => EdgeOutcome::Allow,
        Verdict::Deny => EdgeOutcome::Deny,
    }
}

const fn check_error_outcome(refusal: &CheckError) -> EdgeOutcome {
    match refusal {
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
