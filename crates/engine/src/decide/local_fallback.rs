//! Decides charges from this replica's memory during a store outage (`on_store_failure: local`).
//!
//! Guarantees:
//! - Allowed hits are within this replica's local share.
//! - Allowed hits become fallback debt, unless the store may have counted them already.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decide::excess::{first_step, is_always_charged, needs_two_steps, second_step};
use crate::decide::fallback_debt::{FallbackDebt, FallbackDebts};
use crate::decide::local_share::{FleetDivision, local_share, rank};
use crate::fleet::membership::Membership;
use crate::kernel::decision::{Cost, StoreFailure, Verdict, VoteGroup, combine};
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::memory::MemoryStore;
use crate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore as _, Outcomes, StoreReply,
};
use sluicegate_lease::charge_subset::is_check_denied;
use sluicegate_lease::charge_subset::placeholders;

/// The local counters and the fallback debt of this replica.
#[derive(Debug)]
pub struct LocalFallback {
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) debts: FallbackDebts,
}

pub(crate) type FailedCharge<'p> = (&'p Charge, StoreFailure);

/// The outcome of a charge if this replica's local share is zero hits.
pub(crate) const NO_SHARE_OUTCOME: ChargeOutcome =
    ChargeOutcome::Decided(CounterDecision::ExceedsLimit(Headroom {
        remaining: Hits(0),
        reset_after: Nanos(0),
    }));

impl LocalFallback {
    /// Creates a fallback that counts in `memory`. The size of `membership` determines the local
    /// shares.
    #[must_use]
    pub fn new(memory: Arc<MemoryStore>, membership: Arc<Membership>) -> Self {
        Self { memory, membership, debts: FallbackDebts::default() }
    }

    /// Decides `charges` from the local counters by one mode. Returns one outcome for each charge,
    /// in order.
    pub(crate) fn charge_together(
        &self,
        charges: &[FailedCharge<'_>],
        mode: ChargeMode,
        now: Nanos,
    ) -> Outcomes {
        let local_shares: SmallVec<[Option<Strategy>; 2]> =
            charges.iter().map(|(charge, _)| self.local_share_of(charge)).collect();
        let (charges_to_make, is_peek) = local_charges(charges, &local_shares, mode);
        let outcomes = match self.memory.charge(now, &charges_to_make) {
            StoreReply::Ready(outcomes) => outcomes,
            // The memory store always replies at once.
            StoreReply::Pending(_) => Outcomes::new(),
        };
        let is_allowed = !is_peek && !is_check_denied(&charges_to_make, &outcomes);
        let mut outcomes = outcomes.into_iter();
        let outcome = |((charge, cause), local_share): (&FailedCharge<'_>, &Option<Strategy>)| {
            let Some(local_share) = local_share else { return outcome_without_share(charge) };
            let outcome = outcomes.next().unwrap_or(NO_SHARE_OUTCOME);
            let is_charged = is_allowed || matches!(charge.cost, Cost::Refund(_));
            let becomes_debt = is_charged && !cause.is_unsafe_to_repeat();
            if becomes_debt && (is_always_charged(charge) || is_allowed_or_refunded(outcome)) {
                self.debts.record(charge, *local_share);
            }
            outcome
        };
        let charge_outcomes = charges.iter().zip(&local_shares).map(outcome).collect();
        self.debts.wake();
        charge_outcomes
    }

    /// Returns this replica's local share of the charge's limit, or `None` if that is zero hits.
    pub(crate) fn local_share_of(&self, charge: &Charge) -> Option<Strategy> {
        let replicas = self.membership.replicas();
        let mut division = FleetDivision { replicas, rank: None };
        if !charge.strategy.max_at_once().is_multiple_of(replicas.get()) {
            let own_name = self.membership.replica_name();
            division.rank = self.membership.snapshot().as_deref().map(|snapshot| {
                rank(&charge.key, own_name, snapshot.replicas.iter().map(|replica| &*replica.node))
            });
        }
        local_share(&charge.strategy, division)
    }

    /// Returns the part of `debt` that the local counter still counts. All of it if the counter may
    /// have excess hits, whose number is unknown.
    pub(crate) fn remaining_debt(&self, debt: &FallbackDebt, now: Nanos) -> Hits {
        let FallbackDebt { local_strategy, hits, .. } = debt;
        let peek = Charge { strategy: *local_strategy, ..debt.charge_of(Hits(0)) };
        let peek = Charges { list: [peek].into_iter().collect(), mode: ChargeMode::Each };
        let StoreReply::Ready(outcomes) = self.memory.charge(now, &peek) else { return Hits(0) };
        let Some(ChargeOutcome::Decided(
            CounterDecision::Allow(room)
            | CounterDecision::Deny { headroom: room, .. }
            | CounterDecision::ExceedsLimit(room),
        )) = outcomes.first()
        else {
            return Hits(0);
        };
        if local_strategy.on_excess().is_charge() && room.remaining == Hits(0) {
            return *hits;
        }
        Hits(local_strategy.max_at_once().into()).less(room.remaining).min(*hits)
    }
}

/// Returns the charges for the local counters. If a limit without a local share denies the whole
/// check, they become charges of 0 hits and the second value is `true`.
fn local_charges(
    charges: &[FailedCharge<'_>],
    local_shares: &[Option<Strategy>],
    mode: ChargeMode,
) -> (Charges, bool) {
    let votes = charges.iter().zip(local_shares).map(|((charge, _), local_share)| {
        let denies = local_share.is_none() && outcome_without_share(charge).is_denial();
        (charge.standing.group, charge.standing.enforced_verdict(denies))
    });
    let is_denied = match mode {
        ChargeMode::Each | ChargeMode::Preview => false,
        ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
            let quota_allow = quota_cannot_deny.then_some((VoteGroup::Quota, Verdict::Allow));
            combine(votes.chain(quota_allow), quota_for_all) == Verdict::Deny
        }
    };
    let list = charges.iter().zip(local_shares).filter_map(|((charge, _), local_share)| {
        let cost = match charge.cost {
            Cost::Charge(_) if is_denied => Cost::Charge(Hits(0)),
            cost => cost,
        };
        local_share.map(|strategy| Charge { strategy, cost, ..(*charge).clone() })
    });
    (Charges { list: list.collect(), mode }, is_denied)
}

const fn is_allowed_or_refunded(outcome: ChargeOutcome) -> bool {
    matches!(
        outcome,
        ChargeOutcome::Decided(CounterDecision::Allow(_)) | ChargeOutcome::Refunded(_)
    )
}

const fn outcome_without_share(charge: &Charge) -> ChargeOutcome {
    const NO_ROOM: CounterDecision =
        CounterDecision::Allow(Headroom { remaining: Hits(0), reset_after: Nanos(0) });
    match charge.cost {
        Cost::Charge(hits) if charge.strategy.on_excess().needed(hits).0 == 0 => {
            ChargeOutcome::Decided(NO_ROOM)
        }
        Cost::Charge(_) => NO_SHARE_OUTCOME,
        Cost::Refund(_) => ChargeOutcome::Refunded(NO_ROOM),
    }
}

impl LocalFallback {
    /// Decides `failed` from the local counters, in two steps if needed. Returns one outcome for
    /// each charge, in order.
    pub(crate) fn charge(
        &self,
        failed: &[FailedCharge<'_>],
        mode: ChargeMode,
        now: Nanos,
    ) -> Outcomes {
        let list = failed.iter().map(|(charge, _)| (*charge).clone()).collect();
        let charges = Charges { list, mode };
        if !needs_two_steps(&charges) {
            return self.charge_together(failed, mode, now);
        }
        let mut outcomes = placeholders(&charges);
        let first = first_step(&charges);
        let step = self.charge_together(&first.select_from(failed), ChargeMode::Each, now);
        first.copy_outcomes(step, &mut outcomes);
        let second = second_step(&charges, &outcomes);
        let step = self.charge_together(&second.select_from(failed), second.charges.mode, now);
        second.copy_outcomes(step, &mut outcomes);
        outcomes
    }
}
