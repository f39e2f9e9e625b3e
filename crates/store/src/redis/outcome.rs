//! Converts replies of Redis to the outcomes of charges.
//!
//! Guarantees:
//! - A charge that certainly was not made fails with [`StoreFailure::Unreachable`].
//!
//! Not covered:
//! - Decoding the replies (see [`super::codec`]).

use smallvec::SmallVec;

use super::charge_call::CheckResults;
use super::codec::{self, ChargeResult, InvalidReply};
use crate::{ChargeOutcome, Charges, Outcomes, StoreFailure};

/// The outcomes of some charges of a check, each with the index of the charge in the check.
pub(super) type IndexedOutcomes = SmallVec<[(usize, ChargeOutcome); 2]>;

pub(super) fn decode_outcomes(
    charges: &Charges,
    results: &CheckResults,
) -> Result<Outcomes, StoreFailure> {
    let answers = codec::read(charges, results).map_err(|refused| log_invalid_reply(&refused))?;
    Ok(answers.into_iter().map(to_outcome).collect())
}

pub(super) const fn to_outcome(result: ChargeResult) -> ChargeOutcome {
    match result {
        ChargeResult::Outcome(outcome) => outcome,
        ChargeResult::Stale(store_now) => ChargeOutcome::Stale(store_now),
        ChargeResult::Unreadable => ChargeOutcome::Failed(StoreFailure::WrongType),
    }
}

pub(super) fn write_outcomes(answered: IndexedOutcomes, outcomes: &mut Outcomes) {
    for (place, outcome) in answered {
        outcomes[place] = outcome;
    }
}

pub(super) fn all_failed(charges: &Charges, cause: StoreFailure) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(cause)).collect()
}

pub(super) fn log_invalid_reply(refused: &InvalidReply) -> StoreFailure {
    tracing::error!(error = %refused, "redis returned an invalid script reply");
    StoreFailure::InvalidReply
}
