//! Protocols in, protocols out; no decisions.
//!
//! Guarantees: every protocol asks the same [`Engine`](crate::engine::Engine) and shows its answer
//! by the same two tables ([`grpc::convert`] for fields, [`headers`] for headers); what cannot be
//! read is refused with that protocol's own error and moves no counter.
//! Leaves out: what the answer is, and where the listeners' sockets come from ([`crate::cli`]).

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

/// What answers show beyond the verdict, resolved once from the settings.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    /// Headers for the downstream client.
    pub headers: headers::Headers,
    /// The reference's three headers for the upstream, under these names.
    pub upstream: Option<headers::Names>,
    /// Whether answers carry `dynamic_metadata`.
    pub dynamic_metadata: bool,
    /// Whether `is_negative_hits` gives hits back; refused otherwise.
    pub negative_hits: bool,
}

/// What telemetry calls the outcome of a question.
fn outcome(answer: &Result<Answer, Refusal>) -> Outcome {
    match answer {
        Ok(answer) => admitted(answer.verdict),
        Err(refusal) => refused(refusal),
    }
}

/// Tells the reference's statistics of a question that was refused.
fn tell(engine: &Engine, refusal: &Refusal) {
    let Some(stats) = engine.stats() else { return };
    if let Refusal::RefundsAreOff { .. } = refusal {
        // To the reference this is a message that cannot be read.
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
