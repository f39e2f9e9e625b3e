//! Joint decisions over several slots or stores, in two steps: query or reserve, then charge.
//!
//! Guarantees:
//! - Pure.
//! - A check that the first step denies charges nothing, except as [`Spared::Others`] describes.
//!
//! Not covered:
//! - Making the calls.
//!
//! A charge is reserved in the first step if possible ([`super::holding`]).
//! The second step only commits it. For all other charges another check may
//! come between the two steps, so the second step may deny.

use smallvec::SmallVec;

use crate::backend::{Charge, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::units::Hits;

/// The rules of a joint decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    /// Every limit is in the quota group.
    pub(super) quota_for_all: bool,
    /// A descriptor without a counter keeps the quota group from denying.
    pub(super) rescued: bool,
    pub(super) spared: Spared,
}

/// The limits that a denied check does not charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spared {
    /// No limit is charged.
    All,
    /// The limits that deny are charged; the others are charged zero hits.
    Others,
}

impl Together {
    /// Returns the joint decision that `rule` requires, if any.
    pub(super) const fn of(rule: Rule) -> Option<Self> {
        match rule {
            Rule::Each | Rule::Ask => None,
            Rule::AllOrNothing { quota_for_all, rescued } => {
                Some(Self { quota_for_all, rescued, spared: Spared::All })
            }
        }
    }

    /// Returns `true` if the charges at these positions deny
    /// the check. `outcomes` are those of the whole check.
    pub(super) fn deny(self, list: &[Charge], places: &[usize], outcomes: &Outcomes) -> bool {
        let votes = places.iter().map(|&at| {
            let standing = list[at].standing;
            (standing.group, standing.verdict(outcomes[at].denies()))
        });
        let passed = self.rescued.then_some((Group::Quota, Verdict::Admit));
        combine(votes.chain(passed), self.quota_for_all) == Verdict::Deny
    }

    /// Returns the independent charges of the second step, each with its position. Excludes:
    /// - refunds, which the first step has made,
    /// - charges that failed in the first step,
    /// - charges that are reserved.
    pub(super) fn second(
        self,
        list: &[Charge],
        places: &[usize],
        asked: &Outcomes,
        tried: &[usize],
    ) -> SmallVec<[(usize, Charge); 2]> {
        let denied = self.deny(list, places, asked);
        let cost = |at: usize| match (list[at].cost, asked[at]) {
            (Cost::Refund(_), _) | (_, Outcome::Failed(_)) => None,
            (_, asked) if tried.contains(&at) && !asked.denies() => None,
            (cost, _) if !denied => Some(cost),
            _ if self.spared == Spared::All => None,
            (cost, asked) if asked.denies() => Some(cost),
            _ => Some(Cost::Charge(Hits(0))),
        };
        let charged = |&at: &usize| Some((at, Charge { cost: cost(at)?, ..list[at].clone() }));
        places.iter().filter_map(charged).collect()
    }
}

/// Returns `true` if the charge at `at` can be reserved. A counter
/// that the check names twice cannot: only a query sums its charges.
pub(super) fn can_be_held(list: &[Charge], at: usize) -> bool {
    let its = &list[at];
    let same = list.iter().filter(|charge| charge.key == its.key && charge.home == its.home);
    matches!(its.cost, Cost::Charge(_)) && same.count() == 1
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::{Spared, Together};
    use crate::backend::{Cause, Charge, Home, Outcome, Outcomes};
    use crate::kernel::decision::{Cost, Standing};
    use crate::kernel::key::{CounterKey, Counting};
    use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
    use crate::kernel::rate::{Room, Step, Strategy};
    use crate::kernel::units::{Hits, Nanos};

    #[test]
    fn the_second_step_skips_timed_out_counters() {
        let day = Nanos::from_secs(86_400);
        let key = |value| {
            CounterKey::injective("d", [("k", value)].into_iter(), Counting::FixedWindow(day))
        };
        let charge = |value| Charge {
            key: key(value),
            home: Home::Itself,
            strategy: Strategy::FixedWindow(FixedWindow::new(9, Windows::Every(day)).unwrap()),
            cost: Cost::Charge(Hits(1)),
            standing: Standing::default(),
            per_second: false,
        };
        let list = [charge("a"), charge("b")];
        let admitted = Outcome::Stepped(Step::Admit(Room::default()));
        let outcomes: Outcomes = smallvec![admitted, Outcome::Failed(Cause::Late)];
        for spared in [Spared::All, Spared::Others] {
            let together = Together { quota_for_all: false, rescued: false, spared };
            let second = together.second(&list, &[0, 1], &outcomes, &[]);
            let places: Vec<usize> = second.iter().map(|(at, _)| *at).collect();
            assert_eq!(places, [0], "{spared:?}");
        }
    }
}
