//! The fallback: decides the charges without a reply from the store.
//!
//! Guarantees:
//! - The `on_backend_failure` of each limit decides its own charge.
//! - `error` on an unanswered limit refuses the whole check, before any local charge.
//! - A forced denial takes precedence over `error`.
//!
//! Not covered:
//! - The reason of the store failure.
//! - Local counters: see [`super::local`].

use smallvec::SmallVec;

use super::Refusal;
use super::local::{Local, NOTHING, Unanswered};
use super::plan::{Part, Plan};
use crate::backend::Outcome;
use crate::config::OnBackendFailure;
use crate::kernel::decision::{Cause, Cost, Reason, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::event::BackendFailed;

/// The outcome of a charge, with its source.
#[derive(Clone, Copy, Debug)]
pub(super) enum Settled {
    Answered(Outcome),
    /// `on_backend_failure: allow` or `deny`.
    Ruled(Verdict, Reason),
    /// This replica's local share.
    Local(Outcome),
    /// Not charged: another limit is known to deny the check.
    NotAsked,
}

/// Returns `true` if the store failed to reply to a charge.
pub(super) fn is_needed(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| cause(*outcome).is_some())
}

/// Decides every charge of `plan`.
///
/// # Errors
/// [`Refusal::BackendDown`] if an unanswered charge has `on_backend_failure:
/// error`. Not if the check is denied anyway, unless the charge is a refund.
#[cold]
pub(super) fn settle(
    plan: &Plan<'_>,
    outcomes: &[Outcome],
    local: Option<&Local>,
    now: Nanos,
    quota_for_all: bool,
) -> Result<SmallVec<[Settled; 2]>, Refusal> {
    let rules = || plan.parts.iter().filter_map(Part::on_failure);
    for cause in outcomes.iter().filter_map(|outcome| cause(*outcome)) {
        BackendFailed { cause, charges: 1 }.emit();
    }
    let refuses = |rule| match rule {
        OnBackendFailure::Error => true,
        OnBackendFailure::Local => local.is_none(),
        OnBackendFailure::Allow | OnBackendFailure::Deny => false,
    };
    let asked = plan.charges.list.iter().zip(rules().zip(outcomes));
    let mut refusing = asked.filter_map(|(charge, (rule, outcome))| {
        cause(*outcome).filter(|_| refuses(rule)).map(|cause| (charge.cost, cause))
    });
    // A lost refund is a loss for the caller, even if the check is denied.
    let refusing = if plan.is_denied(quota_for_all) {
        refusing.find(|(cost, _)| matches!(cost, Cost::Refund(_)))
    } else {
        refusing.next()
    };
    if let Some((_, cause)) = refusing {
        return Err(Refusal::BackendDown(cause));
    }
    let counts = |(charge, (rule, outcome)): (_, (_, &Outcome))| {
        cause(*outcome).filter(|_| rule == OnBackendFailure::Local).map(|cause| (charge, cause))
    };
    let charges = plan.charges.list.iter().zip(rules().zip(outcomes));
    let ours: SmallVec<[Unanswered<'_>; 2]> = charges.filter_map(counts).collect();
    let counted = local.filter(|_| !ours.is_empty());
    let counted = counted.map(|local| local.charge(&ours, plan.charges.rule, now));
    let counted = counted.unwrap_or_default();
    let mut counted = counted.into_iter();
    let settled = rules().zip(outcomes).map(|(rule, outcome)| match (cause(*outcome), rule) {
        (None, _) => Settled::Answered(*outcome),
        (_, OnBackendFailure::Allow) => Settled::Ruled(Verdict::Admit, Reason::BackendDownAllowed),
        (_, OnBackendFailure::Deny) => Settled::Ruled(Verdict::Deny, Reason::BackendDownDenied),
        (_, OnBackendFailure::Error) => Settled::NotAsked,
        (_, OnBackendFailure::Local) if local.is_none() => Settled::NotAsked,
        (_, OnBackendFailure::Local) => Settled::Local(counted.next().unwrap_or(NOTHING)),
    });
    Ok(settled.collect())
}

const fn cause(outcome: Outcome) -> Option<Cause> {
    match outcome {
        Outcome::Failed(cause) => Some(cause),
        Outcome::Stale(_) => Some(Cause::Stale),
        Outcome::Stepped(_) | Outcome::Counted(..) | Outcome::Refunded(_) | Outcome::Full(_) => {
            None
        }
    }
}
