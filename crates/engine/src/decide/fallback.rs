//! The fallback: decides the charges without a reply from the store.
//!
//! Guarantees:
//! - The `on_store_failure` of each limit decides its own charge.
//! - If a charge without a reply has `error`, the whole check fails, before any local charge.
//! - A denial by a forced decision takes precedence over `error`.

use smallvec::SmallVec;

use crate::CheckError;
use crate::config::FallbackMode;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::local_fallback::{FailedCharge, LocalFallback, NO_SHARE_OUTCOME};
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{Cost, Reason, StoreFailure, Verdict};
use crate::kernel::units::Nanos;
use crate::store::ChargeOutcome;
use crate::telemetry::event::{ChargesFailed, Event as _};

/// Returns `true` if any charge has no reply from the store.
pub(crate) fn is_needed(outcomes: &[ChargeOutcome]) -> bool {
    outcomes.iter().any(|outcome| failure_of(*outcome).is_some())
}

/// Decides every charge of `plan`: with the store's outcome, or with the limit's fallback if there
/// is none.
///
/// # Errors
/// [`CheckError::StoreUnavailable`] if a charge without a reply has `on_store_failure: error`. If
/// forced decisions deny the check, only a refund without a reply causes this error.
#[cold]
pub(crate) fn apply_fallback(
    plan: &CheckPlan<'_>,
    outcomes: &[ChargeOutcome],
    local: Option<&LocalFallback>,
    now: Nanos,
    quota_for_all: bool,
) -> Result<SmallVec<[ChargeDecision; 2]>, CheckError> {
    let fallback_modes = || plan.limits.iter().filter_map(LimitPlan::fallback);
    for cause in outcomes.iter().filter_map(|outcome| failure_of(*outcome)) {
        ChargesFailed { cause, charges: 1 }.emit();
    }
    let returns_error = |fallback_mode| match fallback_mode {
        FallbackMode::Error => true,
        FallbackMode::Local => local.is_none(),
        FallbackMode::Allow | FallbackMode::Deny => false,
    };
    let charges_with_fallback = plan.charges.list.iter().zip(fallback_modes().zip(outcomes));
    let mut errors = charges_with_fallback.filter_map(|(charge, (fallback_mode, outcome))| {
        failure_of(*outcome)
            .filter(|_| returns_error(fallback_mode))
            .map(|cause| (charge.cost, cause))
    });
    // The caller must know of a lost refund, even if the check is denied.
    let error = if plan.has_forced_denial(quota_for_all) {
        errors.find(|(cost, _)| matches!(cost, Cost::Refund(_)))
    } else {
        errors.next()
    };
    if let Some((_, cause)) = error {
        return Err(CheckError::StoreUnavailable(cause));
    }
    let local_charge = |(charge, (fallback_mode, outcome)): (_, (_, &ChargeOutcome))| {
        failure_of(*outcome)
            .filter(|_| fallback_mode == FallbackMode::Local)
            .map(|cause| (charge, cause))
    };
    let charges = plan.charges.list.iter().zip(fallback_modes().zip(outcomes));
    let local_charges: SmallVec<[FailedCharge<'_>; 2]> = charges.filter_map(local_charge).collect();
    let local_outcomes = local.filter(|_| !local_charges.is_empty());
    let local_outcomes =
        local_outcomes.map(|local| local.charge(&local_charges, plan.charges.mode, now));
    let local_outcomes = local_outcomes.unwrap_or_default();
    let mut local_outcomes = local_outcomes.into_iter();
    let charge_decisions = fallback_modes().zip(outcomes).map(|(fallback_mode, outcome)| {
        match (failure_of(*outcome), fallback_mode) {
            (None, _) => ChargeDecision::Store(*outcome),
            (_, FallbackMode::Allow) => {
                ChargeDecision::Fallback(Verdict::Allow, Reason::StoreDownAllowed)
            }
            (_, FallbackMode::Deny) => {
                ChargeDecision::Fallback(Verdict::Deny, Reason::StoreDownDenied)
            }
            (_, FallbackMode::Error) => ChargeDecision::NotCharged,
            (_, FallbackMode::Local) if local.is_none() => ChargeDecision::NotCharged,
            (_, FallbackMode::Local) => {
                ChargeDecision::Local(local_outcomes.next().unwrap_or(NO_SHARE_OUTCOME))
            }
        }
    });
    Ok(charge_decisions.collect())
}

const fn failure_of(outcome: ChargeOutcome) -> Option<StoreFailure> {
    match outcome {
        ChargeOutcome::Failed(cause) => Some(cause),
        ChargeOutcome::Stale(_) => Some(StoreFailure::OutsideWindows),
        ChargeOutcome::Decided(_)
        | ChargeOutcome::Counted(..)
        | ChargeOutcome::Refunded(_)
        | ChargeOutcome::StoreFull(_) => None,
    }
}
