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

use crate::engine::{Answer, Engine, Refusal};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::Outcome;
use crate::telemetry::stats::Stat;

/// The parts of a reply beside the verdict, resolved once from the settings.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    /// The headers for the downstream client.
    pub headers: headers::Headers,
    /// The names of envoyproxy/ratelimit's three headers for the upstream. `None` sends none.
    pub upstream: Option<headers::Names>,
    /// Adds `dynamic_metadata` to replies.
    pub dynamic_metadata: bool,
    /// Lets `is_negative_hits` return hits to a counter. Otherwise such a check is an error.
    pub negative_hits: bool,
}

fn outcome(answer: &Result<Answer, Refusal>) -> Outcome {
    match answer {
        Ok(answer) => admitted(answer.verdict),
        Err(refusal) => refused(refusal),
    }
}

/// Counts a failed check in the statistics of envoyproxy/ratelimit.
fn tell(engine: &Engine, refusal: &Refusal) {
    let Some(stats) = engine.stats() else { return };
    if let Refusal::RefundsAreOff { .. } = refusal {
        // envoyproxy/ratelimit counts this as a message that it cannot parse.
        return;
    }
    let is_stores = matches!(refusal, Refusal::BackendDown(_));
    stats.add(if is_stores { Stat::RedisError } else { Stat::ServiceError }, 1);
}

const fn admitted(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Admit => Outcome::Admit,
        Verdict::Deny => Outcome::Deny,
    }
}

const fn refused(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::EmptyDomain => Outcome::EmptyDomain,
        Refusal::NoDescriptors => Outcome::NoDescriptors,
        Refusal::NoConfig => Outcome::NoConfig,
        Refusal::TooManyDescriptors { .. } => Outcome::TooManyDescriptors,
        Refusal::TooManyEntries { .. } => Outcome::TooManyEntries,
        Refusal::EntryTooLong { .. } => Outcome::EntryTooLong,
        Refusal::HitsTooLarge { .. } => Outcome::HitsTooLarge,
        Refusal::UnknownUnit { .. } => Outcome::UnknownUnit,
        Refusal::RefundsAreOff { .. } => Outcome::RefundsAreOff,
        Refusal::BadId { .. } => Outcome::BadId,
        Refusal::BackendDown(_) => Outcome::BackendDown,
    }
}
