//! Joint decisions: one decision from charges in several slots or stores. The first step queries or
//! reserves, the second charges or commits.
//!
//! Guarantees:
//! - The functions are pure: no I/O and no clock.
//! - If the first step denies the check, nothing is charged, except with [`SparedLimits::Others`].
//!
//! Not covered:
//! - Making the store calls.
//!
//! The first step reserves a charge if possible ([`super::reservations`]), and the second step only
//! commits it. All other charges are only queried in the first step. Another check may use their
//! hits before the second step, which may then deny them.

use smallvec::SmallVec;

use crate::kernel::decision::{Cost, Verdict, VoteGroup, combine};
use crate::kernel::units::Hits;
use crate::store::{Charge, ChargeMode, ChargeOutcome, Outcomes};

/// The settings of a joint decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointDecision {
    /// True if every limit is in the quota group.
    pub(super) quota_for_all: bool,
    /// True if a descriptor without a counter keeps the quota group from denying.
    pub(super) rescued: bool,
    pub(super) spared: SparedLimits,
}

/// The limits that a denied check does not charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SparedLimits {
    /// A denied check charges no limit.
    All,
    /// A denied check charges the limits that deny it, and charges zero hits to the others.
    Others,
}

impl JointDecision {
    /// Returns the joint decision that a charge mode requires; `None` if each charge is decided
    /// independently.
    pub(super) const fn from_mode(mode: ChargeMode) -> Option<Self> {
        match mode {
            ChargeMode::Each | ChargeMode::Preview => None,
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny: rescued } => {
                Some(Self { quota_for_all, rescued, spared: SparedLimits::All })
            }
        }
    }

    /// Returns `true` if the charges with the given indices deny the check. The charges and the
    /// outcomes are those of the whole check.
    pub(super) fn denies(self, list: &[Charge], indexes: &[usize], outcomes: &Outcomes) -> bool {
        let votes = indexes.iter().map(|&at| {
            let standing = list[at].standing;
            (standing.group, standing.enforced_verdict(outcomes[at].is_denial()))
        });
        let passed = self.rescued.then_some((VoteGroup::Quota, Verdict::Allow));
        combine(votes.chain(passed), self.quota_for_all) == Verdict::Deny
    }

    /// Returns the charges to make in the second step, each with its index in the check. Excludes:
    /// - refunds, which the first step made,
    /// - charges that failed in the first step,
    /// - charges that are reserved, which only need a commit.
    pub(super) fn second_step(
        self,
        list: &[Charge],
        places: &[usize],
        asked: &Outcomes,
        tried: &[usize],
    ) -> SmallVec<[(usize, Charge); 2]> {
        let denied = self.denies(list, places, asked);
        let cost = |at: usize| match (list[at].cost, asked[at]) {
            (Cost::Refund(_), _) | (_, ChargeOutcome::Failed(_)) => None,
            (_, asked) if tried.contains(&at) && !asked.is_denial() => None,
            (cost, _) if !denied => Some(cost),
            _ if self.spared == SparedLimits::All => None,
            (cost, asked) if asked.is_denial() => Some(cost),
            _ => Some(Cost::Charge(Hits(0))),
        };
        let charged = |&at: &usize| Some((at, Charge { cost: cost(at)?, ..list[at].clone() }));
        places.iter().filter_map(charged).collect()
    }
}

/// Returns `true` if the charge with this index can be reserved. A reservation covers a single
/// charge, so a counter with two charges in the check cannot be reserved.
pub(super) fn can_reserve(list: &[Charge], at: usize) -> bool {
    let its = &list[at];
    let same =
        list.iter().filter(|charge| charge.key == its.key && charge.placement == its.placement);
    matches!(its.cost, Cost::Charge(_)) && same.count() == 1
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::{JointDecision, SparedLimits};
    use crate::kernel::decision::{Cost, Enforcement};
    use crate::kernel::key::{CounterKey, KeyStrategy};
    use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
    use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
    use crate::kernel::units::{Hits, Nanos};
    use crate::store::{Charge, ChargeOutcome, Outcomes, Placement, StoreFailure};

    #[test]
    fn joint_decisions_charge_no_counter_that_timed_out() {
        let day = Nanos::from_secs(86_400);
        let key = |value| {
            CounterKey::unique("d", [("k", value)].into_iter(), KeyStrategy::FixedWindow(day))
        };
        let charge = |value| Charge {
            key: key(value),
            placement: Placement::ByKey,
            strategy: Strategy::FixedWindow(FixedWindow::new(9, Windows::Every(day)).unwrap()),
            cost: Cost::Charge(Hits(1)),
            standing: Enforcement::default(),
            per_second: false,
        };
        let list = [charge("a"), charge("b")];
        let admitted = ChargeOutcome::Decided(CounterDecision::Allow(Headroom::default()));
        let outcomes: Outcomes = smallvec![admitted, ChargeOutcome::Failed(StoreFailure::TimedOut)];
        for spared in [SparedLimits::All, SparedLimits::Others] {
            let together = JointDecision { quota_for_all: false, rescued: false, spared };
            let second = together.second_step(&list, &[0, 1], &outcomes, &[]);
            let places: Vec<usize> = second.iter().map(|(at, _)| *at).collect();
            assert_eq!(places, [0], "{spared:?}");
        }
    }
}
