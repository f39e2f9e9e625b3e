//! What is charged as one and lives in several places: all are asked first, and charged then.
//!
//! Guarantees: pure; nothing stays charged of a question that is denied when it is asked, but for what
//! [`Spared::Others`] says.
//! Leaves out: asking and charging. What can be is held when it is asked ([`super::holding`]), and
//! only stays charged then. For all else another question may come between the two: then a place may
//! deny the second step.

use smallvec::SmallVec;

use crate::backend::{Charge, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::units::Hits;

/// How the places decide together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    /// Every limit is in the quota group.
    pub(super) quota_for_all: bool,
    /// Something keeps the quota group from denying.
    pub(super) rescued: bool,
    /// What a denied question does not charge.
    pub(super) spared: Spared,
}

/// What a denied question does not charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spared {
    /// Nothing is charged.
    All,
    /// Those limits are charged that deny it, and the others no hits.
    Others,
}

impl Together {
    /// What `rule` asks for, if it asks for a common decision.
    pub(super) const fn of(rule: Rule) -> Option<Self> {
        match rule {
            Rule::Each | Rule::Ask => None,
            Rule::AllOrNothing { quota_for_all, rescued } => {
                Some(Self { quota_for_all, rescued, spared: Spared::All })
            }
        }
    }

    /// Whether those at `places` deny the question, whose `outcomes` these are.
    pub(super) fn deny(self, list: &[Charge], places: &[usize], outcomes: &Outcomes) -> bool {
        let votes = places.iter().map(|&at| {
            let standing = list[at].standing;
            (standing.group, standing.verdict(outcomes[at].denies()))
        });
        let passed = self.rescued.then_some((Group::Quota, Verdict::Admit));
        combine(votes.chain(passed), self.quota_for_all) == Verdict::Deny
    }

    /// What is charged at `places`, each for itself, now that all of them were `asked`; with the place of
    /// each. Refunds were made by asking, and who did not answer is not asked again. Of those `tried`,
    /// which were to be held, what did not deny is.
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

/// Whether the charge at `at` can be held: of a counter that the question names several times the
/// script that asks knows what all of them come to.
pub(super) fn can_be_held(list: &[Charge], at: usize) -> bool {
    let its = &list[at];
    let same = list.iter().filter(|charge| charge.key == its.key && charge.home == its.home);
    matches!(its.cost, Cost::Charge(_)) && same.count() == 1
}
