//! Charges counters without a lease while other processes may have occupying leases of them.
//!
//! The outstanding hits of [occupying leases](Overshoot::Occupying) are not in the counter. So a charge
//! must go through the counter's lease table: as a lease message with number 0.
//!
//! Guarantees:
//! - A check with [`ChargeMode::AllOrNothing`] charges its counters with occupying leases first. If it
//!   is then denied, these charges are refunded.
//!
//! Not covered:
//! - Atomicity of such a check: until the refund, other checks see its charges, and may remember a
//!   denial that they cause. A check that is canceled in between keeps them. A refund takes the newest
//!   hits, also if the window of the charge has ended meanwhile.
//! - One deadline for its calls: each has that of the store.
//! - [`ChargeMode::Preview`], which charges nothing and does not see the outstanding hits.

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::charge_subset::{ChargeSubset, is_check_denied, placeholders, remaining_mode};
use crate::kernel::decision::Cost;
use crate::kernel::lease::{BorrowRequest, LeaseTerms, Overshoot, ReplicaIncarnation};
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes, StoreFailure,
};

/// Returns the lease terms of all charges, if one of them must use [`charge`].
pub fn occupying_terms<'t, I: Iterator<Item = Option<&'t LeaseTerms>>>(
    terms: impl Fn() -> I,
) -> Option<SmallVec<[Option<&'t LeaseTerms>; 2]>> {
    terms().flatten().any(is_occupying).then(|| terms().collect())
}

/// Makes `charges`, whose lease terms are `terms`. Returns one outcome for each charge. Needs one
/// store call for each counter with occupying leases, all at once, then at most one for the other
/// charges and one for refunds.
pub async fn charge(
    store: &dyn CounterStore,
    now: Nanos,
    charges: &Charges,
    terms: &[Option<&LeaseTerms>],
) -> Outcomes {
    let occupies: SmallVec<[bool; 2]> = charges
        .list
        .iter()
        .zip(terms)
        .map(|(charge, terms)| leased_charge(charge, *terms).is_some())
        .collect();
    if matches!(charges.mode, ChargeMode::Preview) || !occupies.contains(&true) {
        return store.charge(now, charges).wait().await;
    }
    let mut outcomes = placeholders(charges);
    let calls =
        charges.list.iter().zip(terms).enumerate().filter_map(|(index, (charge, terms))| {
            let (hits, terms) = leased_charge(charge, *terms)?;
            Some(async move { (index, charge_one(store, now, charge, hits, terms).await) })
        });
    for (index, outcome) in join_all(calls).await {
        outcomes[index] = outcome;
    }
    let mode = remaining_mode(charges, &outcomes, &occupies);
    let rest = ChargeSubset::select(charges, |index| !occupies[index], mode);
    if !rest.charges.list.is_empty() {
        rest.copy_outcomes(store.charge(now, &rest.charges).wait().await, &mut outcomes);
    }
    if is_check_denied(charges, &outcomes) {
        let is_charged = |index: usize| {
            let is_allowed =
                matches!(outcomes[index], ChargeOutcome::Decided(CounterDecision::Allow(_)));
            occupies[index] && is_allowed
        };
        refund(store, now, ChargeSubset::select(charges, is_charged, ChargeMode::Each)).await;
    }
    outcomes
}

async fn charge_one(
    store: &dyn CounterStore,
    now: Nanos,
    charge: &Charge,
    hits: Hits,
    terms: &LeaseTerms,
) -> ChargeOutcome {
    let Charge { ref key, placement, strategy, per_second, .. } = *charge;
    let (key, terms, sender) = (key.clone(), *terms, ReplicaIncarnation(0));
    let borrow = BorrowRequest::without_lease(hits);
    let message = LeaseMessage { key, placement, per_second, strategy, terms, sender, borrow };
    match store.exchange_lease_message(now, &message).wait().await {
        LeaseOutcome::Applied(reply) => ChargeOutcome::Decided(reply.decision),
        LeaseOutcome::Superseded => ChargeOutcome::Failed(StoreFailure::InvalidReply),
        LeaseOutcome::StoreFull(verdict) => ChargeOutcome::StoreFull(verdict),
        LeaseOutcome::Stale(store_now) => ChargeOutcome::Stale(store_now),
        LeaseOutcome::Failed(cause) => ChargeOutcome::Failed(cause),
    }
}

async fn refund(store: &dyn CounterStore, now: Nanos, charged: ChargeSubset) {
    let ChargeSubset { mut charges, .. } = charged;
    for charge in &mut charges.list {
        if let Cost::Charge(hits) = charge.cost {
            charge.cost = Cost::Refund(hits);
        }
    }
    if !charges.list.is_empty() {
        store.charge(now, &charges).wait().await;
    }
}

const fn is_occupying(terms: &LeaseTerms) -> bool {
    matches!(terms.overshoot, Overshoot::Occupying(_))
}

/// Returns the hits and the lease terms of a charge whose leases occupy its limit.
fn leased_charge<'t>(
    charge: &Charge,
    terms: Option<&'t LeaseTerms>,
) -> Option<(Hits, &'t LeaseTerms)> {
    match (charge.cost, terms) {
        (Cost::Charge(hits), Some(terms)) if is_occupying(terms) => Some((hits, terms)),
        _ => None,
    }
}
