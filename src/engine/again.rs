//! Asking again for what was planned around another time than the store's.
//!
//! Guarantees: pure; a charge that was made is never made a second time.
//! Leaves out: planning for the store's time and the asking itself (`decide`).

use smallvec::SmallVec;

use crate::backend::{Cause, Charges, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::units::Nanos;

/// The store's time, if a charge was stale by it.
pub(super) fn store_now(outcomes: &[Outcome]) -> Option<Nanos> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Stale(store_now) => Some(*store_now),
        _ => None,
    })
}

/// What is stale still has failed.
pub(super) fn fail_stale(outcomes: &mut [Outcome]) {
    for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, Outcome::Stale(_))) {
        *outcome = Outcome::Failed(Cause::Stale);
    }
}

/// The charges that were not made, with their places in the question.
pub(super) struct Missing {
    pub(super) charges: Charges,
    places: SmallVec<[usize; 2]>,
}

impl Missing {
    /// Those of `charges` whose place `is_missing`.
    pub(super) fn of(charges: &Charges, is_missing: impl Fn(usize) -> bool, rule: Rule) -> Self {
        let places: SmallVec<[usize; 2]> =
            (0..charges.list.len()).filter(|&place| is_missing(place)).collect();
        let list = places.iter().map(|&place| charges.list[place].clone()).collect();
        Self { charges: Charges { list, rule }, places }
    }

    /// Whether the charge at `place` of the question is one of these.
    pub(super) fn has(&self, place: usize) -> bool {
        self.places.contains(&place)
    }

    /// Of what stands at each place of the question, what stands at these.
    pub(super) fn pick<T: Copy>(&self, all: &[T]) -> SmallVec<[T; 2]>
    where
        [T; 2]: smallvec::Array<Item = T>,
    {
        self.places.iter().filter_map(|&place| all.get(place).copied()).collect()
    }

    /// Puts the answers where they belong.
    pub(super) fn put(&self, answered: Outcomes, outcomes: &mut Outcomes) {
        for (&place, answer) in self.places.iter().zip(answered) {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = answer;
            }
        }
    }
}

/// What of `asked` was not charged because of a stale one, as `later` plans it.
///
/// Under `each` these are the stale ones. Under `all_or_nothing` a stale charge counts as a denial:
/// where it denied the question nothing was charged but refunds, and all else is asked again. What is
/// denied whatever becomes of its charges is so at the second asking as well: what is not stale was asked as it would be then.
pub(super) fn missing(asked: &Charges, outcomes: &[Outcome], later: &Charges) -> Missing {
    let spared = matches!(asked.rule, Rule::AllOrNothing { .. }) && denied(asked, outcomes);
    let is_missing = |place: usize| {
        let is_stale = matches!(outcomes.get(place), Some(Outcome::Stale(_)));
        let is_charge = matches!(asked.list.get(place).map(|c| c.cost), Some(Cost::Charge(_)));
        is_stale || spared && is_charge
    };
    let rule = match asked.rule {
        Rule::AllOrNothing { quota_for_all, rescued } if spared => {
            // A refund that was made passes, and is not there to say so.
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

/// Whether the store saw these outcomes as a denial of the whole question, of which nothing is charged then.
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
