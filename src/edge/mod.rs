//! Protocols in, protocols out; no decisions.
//!
//! Guarantees: every protocol asks the same [`Engine`](crate::engine::Engine) and shows its answer
//! by the same two tables ([`grpc::convert`] for fields, [`headers`] for headers); what cannot be
//! read is refused with that protocol's own error and moves no counter.
//! Leaves out: what the answer is, and where the listeners' sockets come from ([`crate::cli`]).

pub mod grpc;
pub mod headers;
pub mod health;
pub mod http;

use crate::engine::{Answer, Refusal};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::Outcome;

/// What answers show beyond the verdict, resolved once from the settings.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    /// Headers for the downstream client.
    pub headers: headers::Headers,
    /// Whether answers carry `dynamic_metadata`.
    pub dynamic_metadata: bool,
    /// Whether `is_negative_hits` gives hits back; refused otherwise.
    pub negative_hits: bool,
}

/// What telemetry calls the outcome of a question.
fn outcome(answer: &Result<Answer, Refusal>) -> Outcome {
    match answer {
        Ok(Answer { verdict: Verdict::Admit, .. }) => Outcome::Admit,
        Ok(Answer { verdict: Verdict::Deny, .. }) => Outcome::Deny,
        Err(Refusal::EmptyDomain) => Outcome::EmptyDomain,
        Err(Refusal::NoDescriptors) => Outcome::NoDescriptors,
        Err(Refusal::NoConfig) => Outcome::NoConfig,
        Err(Refusal::TooManyDescriptors { .. }) => Outcome::TooManyDescriptors,
        Err(Refusal::EntryTooLong { .. }) => Outcome::EntryTooLong,
        Err(Refusal::HitsTooLarge { .. }) => Outcome::HitsTooLarge,
        Err(Refusal::UnknownUnit { .. }) => Outcome::UnknownUnit,
        Err(Refusal::RefundsAreOff { .. }) => Outcome::RefundsAreOff,
        Err(Refusal::BadId { .. }) => Outcome::BadId,
        Err(Refusal::BackendDown(_)) => Outcome::BackendDown,
    }
}
