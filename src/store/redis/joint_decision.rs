//! Joint decisions over several slots or stores, in two steps: query or reserve, then charge.
//!
//! Guarantees:
//! - Pure.
//! - A check that the first step denies charges nothing, except as [`SparedLimits::Others`] describes.
//!
//! Not covered:
//! - Making the calls.
//!
//! A charge is reserved in the first step if possible ([`super::reservations`]).
//! The second step only commits it. For all other charges another check may
//! come between the two steps, so the second step may deny.

use smallvec::SmallVec;

use crate::kernel::decision::{Cost, Verdict, VoteGroup, combine};
use crate::kernel::units::Hits;
use crate::store::{Charge, ChargeMode, ChargeOutcome, Outcomes};

/// The rules of a joint decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointDecision {
    /// Every limit is in the quota group.
    pub(super) quota_for_all: bool,
    /// A descriptor without a counter keeps the quota group from denying.
    pub(super) rescued: bool,
    pub(super) spared: SparedLimits,
}

/// The limits that a denied check does not charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SparedLimits {
    /// No limit is charged.
    All,
    /// The limits that deny are charged; the others are charged zero hits.
    Others,
}

impl JointDecision {
    /// Returns the joint decision that `rule` requires, if any.
    pub(super) const fn from_mode(rule: ChargeMode) -> Option<Self> {
        match rule {
            ChargeMode::Each | ChargeMode::Preview => None,
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny: rescued } => {
                Some(Self { quota_for_all, rescued, spared: SparedLimits::All })
            }
        }
    }

    /// Returns `true` if the charges at these positions deny
    /// the check. `outcomes` are those of the whole check.
    pub(super) fn denies(self, list: &[Charge], places: &[usize], outcomes: &Outcomes) -> bool {
        let votes = places.iter().map(|&at| {
            let standing = list[at].standing;
            (standing.group, standing.enforced_verdict(outcomes[at].is_denial()))
        });
        let passed = self.rescued.then_some((VoteGroup::Quota, Verdict::Allow));
        combine(votes.chain(passed), self.quota_for_all) == Verdict::Deny
    }

    /// Returns the independent charges of the second step, each with its position. Excludes:
    /// - refunds, which the first step has made,
    /// - charges that failed in the first step,
    /// - charges that are reserved.
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

/// Returns `true` if the charge at `at` can be reserved. A counter
/// that the check names twice cannot: only a query sums its charges.
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
    fn the_second_step_skips_timed_out_counters() {
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
