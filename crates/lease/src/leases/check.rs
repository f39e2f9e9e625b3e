//! Charges the limits of one check, some of which are leased.
//!
//! - [`ChargeMode::Each`]: every leased limit is charged separately, from its balance or with a
//!   lease call.
//! - [`ChargeMode::AllOrNothing`]: a leased limit is charged from its balance if the balance covers
//!   the hits. All other limits are charged in one atomic store call. A denial puts the hits back
//!   into the balances.
//!
//! Guarantees:
//! - A canceled check returns the hits that it took from balances.
//! - If the store call of a check fails, the hits that it took from balances stay spent.
//! - A check that is denied in any case spends no balance and borrows nothing.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::{KeyLease, LeaseKeyHash, LeaseManager, LeasedCounter, is_pending_for_other_limit};
use crate::beside_leases;
use crate::charge_subset;
use crate::charge_subset::{ChargeSubset, placeholders, remaining_mode};
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, Outcomes};

/// The lease terms of each charge, or `None` if its limit is not leased.
pub type ChargeTerms<'t> = SmallVec<[Option<&'t LeaseTerms>; 2]>;

impl LeaseManager {
    /// Decides a check if all its charges are leased and none needs a store call. Appends the
    /// outcomes to `outcomes`, which must be empty.
    ///
    /// Otherwise returns `None`, spends nothing and leaves `outcomes` undefined. Must be called
    /// within a Tokio runtime.
    pub fn try_charge<'t>(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        mut terms: impl Iterator<Item = Option<&'t LeaseTerms>>,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let may_spend = may_spend(charges.mode);
        if let (true, [charge]) = (may_spend, &charges.list[..]) {
            let (leased, hits) = as_leased(charge, terms.next().flatten())?;
            return self.try_spend(now, leased, hits, outcomes);
        }
        let leased_charges: Option<SmallVec<[(LeasedCounter<'_>, Hits); 2]>> = charges
            .list
            .iter()
            .zip(terms)
            .map(|(charge, terms)| as_leased(charge, terms))
            .collect();
        let (leased_charges, mut taken_hits) = (leased_charges?, TakenHits::new(self, charges));
        for (index, (leased, hits)) in leased_charges.iter().enumerate() {
            outcomes.push(taken_hits.take(index, now, *leased, *hits)?);
        }
        for (leased, hits) in leased_charges.into_iter().filter(|_| may_spend) {
            self.record_check(now, leased, hits);
        }
        taken_hits.settle(charges, outcomes);
        Some(())
    }

    /// Charges a check that [`try_charge`](Self::try_charge) did not decide. Returns one outcome
    /// for each charge.
    pub async fn charge(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&LeaseTerms>],
    ) -> Outcomes {
        match charges.mode {
            ChargeMode::Each => self.charge_each(now, charges, terms).await,
            // Also for one charge, because a lease call would count its denied hits in a fixed
            // window.
            ChargeMode::AllOrNothing { .. } | ChargeMode::Preview => {
                self.charge_together(now, charges, terms).await
            }
        }
    }

    /// Forgets the remembered denials of counters that `charges` refund. Must be called before the
    /// refunds are sent, and again after the reply.
    pub fn forget_denials(&self, charges: &Charges) {
        let refunds = charges.list.iter().filter(|charge| matches!(charge.cost, Cost::Refund(_)));
        for charge in refunds {
            let (now, key_hash) = (self.clock.now(), self.hash_key(&charge.key));
            if let Some(lease) = self.lock_shard(key_hash).get_mut(&key_hash) {
                lease.forget_denial(now);
            }
        }
    }

    async fn charge_each(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&LeaseTerms>],
    ) -> Outcomes {
        let leased = |index: usize| as_leased(charges.list.get(index)?, *terms.get(index)?);
        let strict = ChargeSubset::select(charges, |index| leased(index).is_none(), charges.mode);
        let leased_charges =
            (0..charges.list.len()).filter_map(|index| Some((index, leased(index)?)));
        let lease_calls = leased_charges.map(|(index, (leased, hits))| async move {
            (index, self.charge_leased(leased, hits).await)
        });
        let strict_call = async {
            if strict.charges.list.is_empty() {
                return Outcomes::new();
            }
            self.charge_store(now, &strict.charges).await
        };
        let mut outcomes = placeholders(charges);
        let (strict_outcomes, leased_outcomes) = join(strict_call, join_all(lease_calls)).await;
        strict.copy_outcomes(strict_outcomes, &mut outcomes);
        for (index, outcome) in leased_outcomes {
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Charges all or nothing: leased limits from balances that cover the hits, all other limits in
    /// one atomic store call.
    async fn charge_together(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&LeaseTerms>],
    ) -> Outcomes {
        let leased = |index: usize| as_leased(charges.list.get(index)?, *terms.get(index)?);
        let leased_charges =
            || (0..charges.list.len()).filter_map(|index| Some((index, leased(index)?)));
        if may_spend(charges.mode) {
            let now = self.clock.now();
            leased_charges().for_each(|(_, (leased, hits))| self.record_check(now, leased, hits));
        }
        let (mut taken_hits, mut outcomes) = (TakenHits::new(self, charges), placeholders(charges));
        let mut is_decided: SmallVec<[bool; 2]> = SmallVec::from_elem(false, charges.list.len());
        for (index, (leased, hits)) in leased_charges() {
            if let Some(outcome) = taken_hits.take(index, self.clock.now(), leased, hits) {
                (outcomes[index], is_decided[index]) = (outcome, true);
            }
        }
        let strict_charges = || leased_charges().filter(|(index, _)| !is_decided[*index]);
        let balances_before: SmallVec<[Hits; 2]> = strict_charges()
            .map(|(_, (leased, _))| self.balance_of(self.clock.now(), leased))
            .collect();
        let mode = remaining_mode(charges, &outcomes, &is_decided);
        let to_send = ChargeSubset::select(charges, |index| !is_decided[index], mode);
        if !to_send.charges.list.is_empty() {
            let (store, terms) = (&*self.store, to_send.select_from(terms));
            let store_outcomes = beside_leases::charge(store, now, &to_send.charges, &terms).await;
            to_send.copy_outcomes(store_outcomes, &mut outcomes);
        }
        for ((index, (leased, _)), balance_before) in strict_charges().zip(balances_before) {
            outcomes[index] = self.add_local_balance(leased, balance_before, outcomes[index]);
        }
        if taken_hits.settle(charges, &mut outcomes) == Verdict::Allow {
            let now = self.clock.now();
            strict_charges()
                .for_each(|(_, (leased, hits))| self.refill_after_charge(now, leased, hits));
        }
        outcomes
    }

    pub(super) fn balance_of(&self, now: Nanos, leased: LeasedCounter<'_>) -> Hits {
        self.with_lease(leased, |lease| lease.balance(now)).unwrap_or_default()
    }

    fn record_check(self: &Arc<Self>, now: Nanos, leased: LeasedCounter<'_>, hits: Hits) {
        self.with_lease(leased, |lease| lease.record_check(now, hits));
    }

    /// Refills a lease in the background after the store made a charge without it. The first check
    /// of a key only creates the lease.
    fn refill_after_charge(self: &Arc<Self>, now: Nanos, leased: LeasedCounter<'_>, hits: Hits) {
        let key_hash = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(key_hash);
        if self.is_draining() || is_pending_for_other_limit(&shard, key_hash, leased) {
            return;
        }
        if !shard.get(&key_hash).is_some_and(|lease| lease.is_for(leased)) {
            let replaced = self.create_lease(&mut shard, key_hash, leased, now);
            self.send_in_background(replaced);
            if let Some(lease) = shard.get_mut(&key_hash) {
                lease.record_check(now, hits);
            }
        } else if let Some(lease) = shard.get_mut(&key_hash)
            && lease.balance(now) < hits
            && let Some(borrow) = lease.borrow(now, self.next_number(), Hits(0))
        {
            self.send_in_batch(vec![(self.message(lease.leased(), borrow), None)]);
        }
    }

    pub(super) fn with_lease<T>(
        &self,
        leased: LeasedCounter<'_>,
        action: impl FnOnce(&mut KeyLease) -> T,
    ) -> Option<T> {
        let key_hash = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(key_hash);
        shard.get_mut(&key_hash).filter(|lease| lease.is_for(leased)).map(action)
    }
}

/// The hits that a check took from balances. Dropping this puts them back, unless the check was
/// allowed.
struct TakenHits<'l> {
    leases: &'l Arc<LeaseManager>,
    /// `false` if the check is denied in any case. Its hits are then put back at once, for other
    /// checks.
    may_spend: bool,
    charges: SmallVec<[TakenCharge; 2]>,
}

struct TakenCharge {
    index: usize,
    key_hash: LeaseKeyHash,
    hits: Hits,
    epoch: u64,
}

impl<'l> TakenHits<'l> {
    fn new(leases: &'l Arc<LeaseManager>, charges: &Charges) -> Self {
        Self { leases, may_spend: may_spend(charges.mode), charges: SmallVec::new() }
    }

    /// Returns the outcome of charge `index` if its lease can decide. Takes the hits if they are
    /// allowed.
    fn take(
        &mut self,
        index: usize,
        now: Nanos,
        leased: LeasedCounter<'_>,
        hits: Hits,
    ) -> Option<ChargeOutcome> {
        let key_hash = self.leases.hash_key(&leased.charge.key);
        let mut shard = self.leases.lock_shard(key_hash);
        let lease = shard.get_mut(&key_hash).filter(|lease| lease.is_for(leased))?;
        let outcome = lease.take(now, hits)?;
        if outcome.is_denial() {
            return Some(outcome);
        }
        if self.may_spend {
            self.charges.push(TakenCharge { index, key_hash, hits, epoch: lease.epoch() });
            return Some(outcome);
        }
        lease.put_back(now, hits, lease.epoch());
        Some(ChargeOutcome::Decided(CounterDecision::Allow(lease.headroom(now))))
    }

    /// Marks the taken hits as spent, or puts them back if `outcomes` deny the check. Updates the
    /// headroom in the outcomes of hits that were put back.
    fn settle(mut self, charges: &Charges, outcomes: &mut Outcomes) -> Verdict {
        let now = self.leases.clock.now();
        if charge_subset::is_check_denied(charges, outcomes) {
            for taken in std::mem::take(&mut self.charges) {
                if let Some(room) = taken.put_back(self.leases, now) {
                    outcomes[taken.index] = ChargeOutcome::Decided(CounterDecision::Allow(room));
                }
            }
            return Verdict::Deny;
        }
        for taken in std::mem::take(&mut self.charges) {
            if let Some(lease) = self.leases.lock_shard(taken.key_hash).get_mut(&taken.key_hash) {
                lease.mark_spent(taken.hits, taken.epoch);
                self.leases.refill_if_due(lease, now);
            }
        }
        Verdict::Allow
    }
}

impl Drop for TakenHits<'_> {
    fn drop(&mut self) {
        let now = self.leases.clock.now();
        for taken in &self.charges {
            taken.put_back(self.leases, now);
        }
    }
}

impl TakenCharge {
    fn put_back(&self, leases: &LeaseManager, now: Nanos) -> Option<Headroom> {
        let mut shard = leases.lock_shard(self.key_hash);
        let lease = shard.get_mut(&self.key_hash)?;
        lease.put_back(now, self.hits, self.epoch);
        Some(lease.headroom(now))
    }
}

/// Returns `true` if the check may spend balances. A preview may not, because it is denied in any
/// case.
const fn may_spend(mode: ChargeMode) -> bool {
    match mode {
        ChargeMode::Each | ChargeMode::AllOrNothing { .. } => true,
        ChargeMode::Preview => false,
    }
}

fn as_leased<'c>(
    charge: &'c Charge,
    terms: Option<&LeaseTerms>,
) -> Option<(LeasedCounter<'c>, Hits)> {
    match (charge.cost, terms) {
        (Cost::Charge(hits), Some(terms)) => Some((LeasedCounter { charge, terms: *terms }, hits)),
        _ => None,
    }
}
