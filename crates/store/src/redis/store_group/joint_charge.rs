//! Makes one decision for charges in several stores or key formats, in two steps.
//!
//! Guarantees:
//! - All steps have one common deadline.
//! - A denied all-or-nothing check leaves no hits charged.

use std::time::Duration;

use futures_util::future::join;
use smallvec::SmallVec;

use super::{StoreGroup, TargetPart};
use crate::kernel::decision::Cost;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Hits, Nanos};
use crate::redis::joint_decision::{DenialCharges, JointDecision, can_reserve};
use crate::redis::outcome::{IndexedOutcomes, all_failed, as_uncharged, write_outcomes};
use crate::redis::reference::{CompatCounters, DecidingStep};
use crate::redis::reservations::Reservations;
use crate::{Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, Outcomes, StoreFailure};

type ChargeIndexes = SmallVec<[usize; 2]>;

impl StoreGroup {
    /// Makes one decision for all given parts. First reserves or previews each charge. Then makes
    /// the previewed charges, and commits the reservations unless a limit denied meanwhile.
    pub(super) async fn decide_jointly(
        &self,
        now: Nanos,
        charges: &Charges,
        parts: &[TargetPart],
    ) -> IndexedOutcomes {
        let indexes: ChargeIndexes =
            parts.iter().flat_map(|part| part.indexes.iter().copied()).collect();
        if indexes.is_empty() {
            return IndexedOutcomes::new();
        }
        let (list, decision) = (&charges.list, self.joint_decision(charges.mode));
        let has_reference = parts.iter().any(|part| part.target.is_ratelimit_key);
        let (deadline, steps) = (self.main.call_timeout, if has_reference { 3 } else { 2 });
        let step_timeout = deadline / steps;
        let mut outcomes = all_failed(charges, StoreFailure::TimedOut);
        let (mut reservations, reservable) = self.plan_reservations(list, &indexes);
        let others = indexes.iter().filter(|&index| !reservable.contains(index));
        let others = others.map(|&index| (index, &list[index]));
        let others = self.split_by_target(others, ChargeMode::Preview);
        let previews = self.call_parts(now, &others, DecidingStep::ThisCall, Some(step_timeout));
        let (previews, ()) =
            join(previews, reservations.reserve_all(step_timeout, &mut outcomes)).await;
        write_outcomes(
            previews.into_iter().map(|(index, preview)| (index, as_uncharged(preview))).collect(),
            &mut outcomes,
        );
        let previews = outcomes.clone();
        let second = decision.second_step(list, &indexes, &previews, &reservable);
        // Divide the remaining time between the charges of the second step and the commit.
        let remaining = deadline.saturating_sub(step_timeout);
        let step_timeout =
            if second.is_empty() { remaining.min(step_timeout) } else { remaining / 2 };
        let parts = self.split_by_target(
            second.iter().map(|(index, charge)| (*index, charge)),
            ChargeMode::Each,
        );
        write_outcomes(
            self.call_parts(now, &parts, DecidingStep::EarlierCall, Some(step_timeout)).await,
            &mut outcomes,
        );
        if decision.on_denial == DenialCharges::Nothing
            && decision.denies(list, &indexes, &outcomes)
        {
            let mut canceled = outcomes.clone();
            let refunds = self.refund_ratelimit_keys(now, &second, &outcomes, step_timeout);
            let (refunds, ()) =
                join(refunds, reservations.cancel_all(step_timeout, &mut canceled)).await;
            outcomes = canceled;
            for (index, refund) in refunds {
                // A limit that denied keeps its denial; others get the outcome before the charge.
                if matches!(refund, ChargeOutcome::Refunded(_)) && !outcomes[index].is_denial() {
                    outcomes[index] = previews[index];
                }
            }
        } else {
            reservations.commit_all(step_timeout, &mut outcomes).await;
        }
        indexes.iter().map(|&index| (index, outcomes[index])).collect()
    }

    fn joint_decision(&self, mode: ChargeMode) -> JointDecision {
        JointDecision::from_mode(mode).unwrap_or_else(|| JointDecision {
            quota_for_all: self.reference.as_ref().is_some_and(CompatCounters::quota_for_all),
            quota_cannot_deny: false,
            on_denial: DenialCharges::DenyingLimits,
        })
    }

    /// Plans reservations for the charges at `indexes`; also returns the indices that can be
    /// reserved.
    fn plan_reservations(
        &self,
        list: &[Charge],
        indexes: &[usize],
    ) -> (Reservations, ChargeIndexes) {
        let mut reservations = Reservations::default();
        let is_own_key = |index: usize| !self.target_of(&list[index]).is_ratelimit_key;
        let can = |&&index: &&usize| is_own_key(index) && can_reserve(list, index);
        let reservable: ChargeIndexes = indexes.iter().filter(can).copied().collect();
        for &index in &reservable {
            let store = self.store_of(self.target_of(&list[index]));
            reservations.add(&store.reservation_client, index, &list[index]);
        }
        (reservations, reservable)
    }

    /// Refunds the hits that were charged under the keys of envoyproxy/ratelimit, also denied hits,
    /// which a fixed window counts.
    async fn refund_ratelimit_keys(
        &self,
        now: Nanos,
        charged: &[(usize, Charge)],
        outcomes: &Outcomes,
        step_timeout: Duration,
    ) -> IndexedOutcomes {
        let refunds = charged.iter().filter_map(|(index, charge)| {
            let Cost::Charge(hits @ Hits(1..)) = charge.cost else { return None };
            let cost = Cost::Refund(hits);
            let is_refundable =
                has_counted_hits(outcomes[*index]) && self.target_of(charge).is_ratelimit_key;
            is_refundable.then(|| (*index, Charge { cost, ..charge.clone() }))
        });
        let refunds: SmallVec<[(usize, Charge); 2]> = refunds.collect();
        let refunds = refunds.iter().map(|(index, charge)| (*index, charge));
        let parts = self.split_by_target(refunds, ChargeMode::Each);
        self.call_parts(now, &parts, DecidingStep::EarlierCall, Some(step_timeout)).await
    }
}

/// Returns `true` if a counter under envoyproxy/ratelimit's keys counted the hits, allowed or
/// denied. It counts neither hits that the deny cache denied, nor hits that overflow it.
const fn has_counted_hits(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Counted(_, CounterHits { hits, is_cached_denial: false }) if hits != EXACT_BOUND)
}
