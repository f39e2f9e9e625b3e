//! Joint decisions: one decision from charges in several slots or stores, in two steps.
//!
//! Guarantees:
//! - If the first step denies the check, nothing is charged, except with
//!   [`DenialCharges::DenyingLimits`].
//!
//! The first step reserves a charge if possible ([`super::reservations`]), and the second step
//! commits it. Other charges are previewed first and made in the second step, which may deny them:
//! another check may have used their hits.

use smallvec::SmallVec;

use crate::kernel::decision::{Cost, Verdict, VoteGroup, combine};
use crate::kernel::units::Hits;
use crate::{Charge, ChargeMode, ChargeOutcome, Outcomes};

#[derive(Clone, Copy, Debug)]
pub(super) struct JointDecision {
    /// True if every limit is in the quota group.
    pub(super) quota_for_all: bool,
    /// True if a descriptor without a counter keeps the quota group from denying.
    pub(super) quota_cannot_deny: bool,
    pub(super) on_denial: DenialCharges,
}

/// The limits that a denied check charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenialCharges {
    Nothing,
    /// The limits that deny the check; other limits are charged zero hits.
    DenyingLimits,
}

impl JointDecision {
    /// Returns the joint decision of a charge mode; `None` if each charge is decided independently.
    pub(super) const fn from_mode(mode: ChargeMode) -> Option<Self> {
        match mode {
            ChargeMode::Each | ChargeMode::Preview => None,
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
                let on_denial = DenialCharges::Nothing;
                Some(Self { quota_for_all, quota_cannot_deny, on_denial })
            }
        }
    }

    /// Returns `true` if the charges at `indexes` deny the check. `list` and `outcomes` are those
    /// of the whole check.
    pub(super) fn denies(self, list: &[Charge], indexes: &[usize], outcomes: &Outcomes) -> bool {
        let votes = indexes.iter().map(|&index| {
            let standing = list[index].standing;
            (standing.group, standing.enforced_verdict(outcomes[index].is_denial()))
        });
        let quota_vote = self.quota_cannot_deny.then_some((VoteGroup::Quota, Verdict::Allow));
        combine(votes.chain(quota_vote), self.quota_for_all) == Verdict::Deny
    }

    /// Returns the charges to make in the second step, each with its index in the check. Excludes
    /// refunds (already made), failed charges, and reserved charges, which only need a commit.
    pub(super) fn second_step(
        self,
        list: &[Charge],
        indexes: &[usize],
        first_step: &Outcomes,
        reservable: &[usize],
    ) -> SmallVec<[(usize, Charge); 2]> {
        let is_denied = self.denies(list, indexes, first_step);
        let cost = |index: usize| match (list[index].cost, first_step[index]) {
            (Cost::Refund(_), _) | (_, ChargeOutcome::Failed(_)) => None,
            (_, outcome) if reservable.contains(&index) && !outcome.is_denial() => None,
            (cost, _) if !is_denied => Some(cost),
            _ if self.on_denial == DenialCharges::Nothing => None,
            (cost, outcome) if outcome.is_denial() => Some(cost),
            _ => Some(Cost::Charge(Hits(0))),
        };
        let to_charge =
            |&index: &usize| Some((index, Charge { cost: cost(index)?, ..list[index].clone() }));
        indexes.iter().filter_map(to_charge).collect()
    }
}

/// Returns `true` if the charge at `index` can be reserved. A reservation covers one charge, so a
/// counter with two charges in the check cannot be reserved.
pub(super) fn can_reserve(list: &[Charge], index: usize) -> bool {
    let Charge { key, placement, cost, .. } = &list[index];
    let same_counter = |charge: &&Charge| charge.key == *key && charge.placement == *placement;
    matches!(cost, Cost::Charge(_)) && list.iter().filter(same_counter).count() == 1
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::{DenialCharges, JointDecision};
    use crate::kernel::decision::{Cost, Enforcement};
    use crate::kernel::key::{CounterKey, KeyStrategy};
    use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
    use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
    use crate::kernel::units::{Hits, Nanos};
    use crate::{Charge, ChargeOutcome, Outcomes, Placement, StoreFailure};

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
        for on_denial in [DenialCharges::Nothing, DenialCharges::DenyingLimits] {
            let decision =
                JointDecision { quota_for_all: false, quota_cannot_deny: false, on_denial };
            let second = decision.second_step(&list, &[0, 1], &outcomes, &[]);
            let indexes: Vec<usize> = second.iter().map(|(index, _)| *index).collect();
            assert_eq!(indexes, [0], "{on_denial:?}");
        }
    }
}
