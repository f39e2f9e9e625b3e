//! Makes one decision for charges in several stores or key formats, in two steps.
//!
//! Guarantees:
//! - All steps have one common deadline.
//! - A denied all-or-nothing check leaves no hits charged, unless a refund gets no reply.

use std::time::Duration;

use futures_util::future::join;
use smallvec::SmallVec;

use super::{StoreGroup, TargetPart};
use crate::kernel::decision::Cost;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Hits, Nanos};
use crate::redis::joint_decision::{DenialCharges, JointDecision, can_reserve};
use crate::redis::outcome::{
    IndexedCharges, IndexedOutcomes, all_failed, as_uncharged, write_outcomes,
};
use crate::redis::reference::{CompatCounters, DecidingStep};
use crate::redis::reservations::Reservations;
use crate::{Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, Outcomes, StoreFailure};

type ChargeIndexes = SmallVec<[usize; 2]>;

/// The charges of one check that are decided together.
struct JointCharge<'g> {
    group: &'g StoreGroup,
    now: Nanos,
    list: &'g [Charge],
    indexes: ChargeIndexes,
    decision: JointDecision,
    reservations: Reservations,
    /// The charges that are reserved. The others are previewed, then made.
    reservable: ChargeIndexes,
    outcomes: Outcomes,
}

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
        let has_reference = parts.iter().any(|part| part.target.is_ratelimit_key);
        let (deadline, steps) = (self.main.call_timeout, if has_reference { 3 } else { 2 });
        let step_timeout = deadline / steps;
        let mut joint = self.plan_joint_charge(now, charges, indexes);
        joint.reserve_or_preview(step_timeout).await;
        let previews = joint.outcomes.clone();
        let second = joint.second_step();
        // Divide the remaining time between the charges of the second step and the commit.
        let remaining = deadline.saturating_sub(step_timeout);
        let step_timeout =
            if second.is_empty() { remaining.min(step_timeout) } else { remaining / 2 };
        joint.charge(&second, step_timeout).await;
        if joint.must_undo() {
            joint.undo(&second, &previews, step_timeout).await;
        } else {
            joint.reservations.commit_all(step_timeout, &mut joint.outcomes).await;
        }
        joint.indexes.iter().map(|&index| (index, joint.outcomes[index])).collect()
    }

    fn plan_joint_charge<'g>(
        &'g self,
        now: Nanos,
        charges: &'g Charges,
        indexes: ChargeIndexes,
    ) -> JointCharge<'g> {
        let list = &charges.list;
        let (reservations, reservable) = self.plan_reservations(list, &indexes);
        JointCharge {
            group: self,
            now,
            list,
            indexes,
            decision: self.joint_decision(charges.mode),
            reservations,
            reservable,
            outcomes: all_failed(charges, StoreFailure::TimedOut),
        }
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
}

impl JointCharge<'_> {
    async fn reserve_or_preview(&mut self, step_timeout: Duration) {
        let others = self.indexes.iter().filter(|&index| !self.reservable.contains(index));
        let others = others.map(|&index| (index, &self.list[index]));
        let others = self.group.split_by_target(others, ChargeMode::Preview);
        let step = DecidingStep::ThisCall;
        let previews = self.group.call_parts(self.now, &others, step, Some(step_timeout));
        let reserved = self.reservations.reserve_all(step_timeout, &mut self.outcomes);
        let (previews, ()) = join(previews, reserved).await;
        let uncharged = |(index, preview)| (index, as_uncharged(preview));
        write_outcomes(previews.into_iter().map(uncharged).collect(), &mut self.outcomes);
    }

    /// Returns the charges to make after the previews.
    fn second_step(&self) -> IndexedCharges {
        self.decision.second_step(self.list, &self.indexes, &self.outcomes, &self.reservable)
    }

    async fn charge(&mut self, second: &[(usize, Charge)], step_timeout: Duration) {
        let outcomes = self.call_second_step(second, step_timeout).await;
        write_outcomes(outcomes, &mut self.outcomes);
    }

    async fn call_second_step(
        &self,
        charges: &[(usize, Charge)],
        step_timeout: Duration,
    ) -> IndexedOutcomes {
        let charges = charges.iter().map(|(index, charge)| (*index, charge));
        let parts = self.group.split_by_target(charges, ChargeMode::Each);
        let step = DecidingStep::EarlierCall;
        self.group.call_parts(self.now, &parts, step, Some(step_timeout)).await
    }

    fn must_undo(&self) -> bool {
        self.decision.on_denial == DenialCharges::Nothing
            && self.decision.denies(self.list, &self.indexes, &self.outcomes)
    }

    /// Cancels the reservations, and refunds the charges of the second step.
    async fn undo(
        &mut self,
        second: &[(usize, Charge)],
        previews: &Outcomes,
        step_timeout: Duration,
    ) {
        let mut canceled = self.outcomes.clone();
        let mut reservations = std::mem::take(&mut self.reservations);
        let refunds = self.refund_ratelimit_keys(second, step_timeout);
        let (refunds, ()) =
            join(refunds, reservations.cancel_all(step_timeout, &mut canceled)).await;
        self.outcomes = canceled;
        for (index, refund) in refunds {
            // A limit that denied keeps its denial; others get the outcome before the charge.
            if matches!(refund, ChargeOutcome::Refunded(_)) && !self.outcomes[index].is_denial() {
                self.outcomes[index] = previews[index];
            }
        }
    }

    /// Refunds the hits that were charged under the keys of envoyproxy/ratelimit, also denied hits,
    /// which a fixed window counts.
    async fn refund_ratelimit_keys(
        &self,
        charged: &[(usize, Charge)],
        step_timeout: Duration,
    ) -> IndexedOutcomes {
        let refunds = charged.iter().filter_map(|(index, charge)| {
            let Cost::Charge(hits @ Hits(1..)) = charge.cost else { return None };
            let cost = Cost::Refund(hits);
            let is_refundable = has_counted_hits(self.outcomes[*index])
                && self.group.target_of(charge).is_ratelimit_key;
            is_refundable.then(|| (*index, Charge { cost, ..charge.clone() }))
        });
        let refunds: IndexedCharges = refunds.collect();
        self.call_second_step(&refunds, step_timeout).await
    }
}

/// Returns `true` if a counter under envoyproxy/ratelimit's keys counted the hits, allowed or
/// denied. It counts neither hits that the deny cache denied, nor hits that overflow it.
const fn has_counted_hits(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Counted(_, CounterHits { hits, is_cached_denial: false }) if hits != EXACT_BOUND)
}
