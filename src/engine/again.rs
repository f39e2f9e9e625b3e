//! Selects the charges to repeat after a plan for another calendar window than the store's.
//!
//! Guarantees:
//! - A charge that the store made is never repeated.
//! - Pure: no I/O and no clock.
//!
//! Not covered:
//! - The second plan and the second store call (see [`super::path`]).

use smallvec::SmallVec;

use crate::backend::{Cause, Charges, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::units::Nanos;

/// Returns the store's time if a charge was planned for calendar windows that are not open then.
pub(super) fn store_now(outcomes: &[Outcome]) -> Option<Nanos> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Stale(store_now) => Some(*store_now),
        _ => None,
    })
}

/// Marks charges as failed that are stale after the second call too.
pub(super) fn fail_stale(outcomes: &mut [Outcome]) {
    for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, Outcome::Stale(_))) {
        *outcome = Outcome::Failed(Cause::Stale);
    }
}

/// A subset of a check's charges, with their indexes in the check.
pub(super) struct Missing {
    pub(super) charges: Charges,
    places: SmallVec<[usize; 2]>,
}

impl Missing {
    pub(super) fn of(charges: &Charges, is_missing: impl Fn(usize) -> bool, rule: Rule) -> Self {
        let places: SmallVec<[usize; 2]> =
            (0..charges.list.len()).filter(|&place| is_missing(place)).collect();
        let list = places.iter().map(|&place| charges.list[place].clone()).collect();
        Self { charges: Charges { list, rule }, places }
    }

    pub(super) fn has(&self, place: usize) -> bool {
        self.places.contains(&place)
    }

    /// Returns the elements of `all` at the indexes of these charges.
    pub(super) fn pick<T: Copy>(&self, all: &[T]) -> SmallVec<[T; 2]>
    where
        [T; 2]: smallvec::Array<Item = T>,
    {
        self.places.iter().filter_map(|&place| all.get(place).copied()).collect()
    }

    /// Copies the store's outcomes to their indexes in `outcomes`.
    pub(super) fn put(&self, answered: Outcomes, outcomes: &mut Outcomes) {
        for (&place, answer) in self.places.iter().zip(answered) {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = answer;
            }
        }
    }
}

/// Returns the charges of the second plan `later` to send, after `asked` met a stale charge.
///
/// - `charge: each`: the stale ones.
/// - `charge: all_or_nothing`: a stale charge counts as a denial. If it denied the
///   check, the store charged nothing except refunds. Then all charges are sent again.
/// - [`Rule::Ask`]: the stale ones. The check is denied
///   in any case, so the other outcomes stay valid.
pub(super) fn missing(asked: &Charges, outcomes: &[Outcome], later: &Charges) -> Missing {
    let spared = matches!(asked.rule, Rule::AllOrNothing { .. }) && denied(asked, outcomes);
    let is_missing = |place: usize| {
        let is_stale = matches!(outcomes.get(place), Some(Outcome::Stale(_)));
        let is_charge = matches!(asked.list.get(place).map(|c| c.cost), Some(Cost::Charge(_)));
        is_stale || spared && is_charge
    };
    let rule = match asked.rule {
        Rule::AllOrNothing { quota_for_all, rescued } if spared => {
            // A refund is not repeated, but its vote for the quota group still counts.
            let passes = |place: usize| match asked.list.get(place).map(|c| c.standing.group) {
                Some(Group::Quota) => true,
                Some(Group::Enforced) => quota_for_all,
                Some(Group::Aside) | None => false,
            };
            let made = (0..asked.list.len()).any(|place| !is_missing(place) && passes(place));
            Rule::AllOrNothing { quota_for_all, rescued: rescued || made }
        }
        Rule::Ask => Rule::Ask,
        Rule::Each | Rule::AllOrNothing { .. } => Rule::Each,
    };
    Missing::of(later, is_missing, rule)
}

/// Returns `true` if the store denied the whole check, and thus charged nothing except refunds.
pub(super) fn denied(asked: &Charges, outcomes: &[Outcome]) -> bool {
    let (quota_for_all, rescued) = match asked.rule {
        Rule::Each => return false,
        Rule::Ask => return true,
        Rule::AllOrNothing { quota_for_all, rescued } => (quota_for_all, rescued),
    };
    let votes = asked.list.iter().zip(outcomes).map(|(charge, outcome)| {
        (charge.standing.group, charge.standing.verdict(outcome.denies()))
    });
    let passed = rescued.then_some((Group::Quota, Verdict::Admit));
    combine(votes.chain(passed), quota_for_all) == Verdict::Deny
}
