//! Converts between wire protocols and the engine: requests in, decisions out.
//!
//! Guarantees:
//! - Every protocol calls the same [`Engine`](crate::engine::Engine).
//! - All protocols share one table for fields
//!   ([`grpc::convert`]) and one for headers ([`headers`]).
//! - An invalid request gets an error of its own protocol and changes no counter.
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

/// The parts of a reply beside the verdict, resolved once from the settings.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// The headers for the downstream client.
    pub headers: headers::RateLimitHeaders,
    /// The names of envoyproxy/ratelimit's three headers for the upstream. `None` sends none.
    pub upstream_names: Option<headers::CompatHeaderNames>,
    /// Adds `dynamic_metadata` to replies.
    pub dynamic_metadata: bool,
    /// Lets `is_negative_hits` return hits to a counter. Otherwise such a check is an error.
    pub allow_negative_hits: bool,
}

fn check_outcome(answer: &Result<Decision, CheckError>) -> EdgeOutcome {
    match answer {
        Ok(answer) => verdict_outcome(answer.verdict),
        Err(refusal) => check_error_outcome(refusal),
    }
}

/// Counts a failed check in the statistics of envoyproxy/ratelimit.
fn count_check_error(engine: &Engine, refusal: &CheckError) {
    let Some(stats) = engine.stats() else { return };
    if let CheckError::RefundsDisabled { .. } = refusal {
        // envoyproxy/ratelimit counts this as a message that it cannot parse.
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
