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
//!
//! Not covered:
//! - The fallback after a failed store call (see `fallback`).
//! - A charge that is paid partly from a balance and partly by the store under `all_or_nothing`.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::{KeyLease, LeaseKeyHash, LeaseManager, LeasedCounter, is_pending_for_other_limit};
use crate::engine::decide::stale_charges;
use crate::engine::decide::stale_charges::ChargeSubset;
use crate::kernel::decision::{Cost, Enforcement, Verdict, VoteGroup};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure};

/// The lease settings of each charge; `None` if its limit is not leased.
pub type ChargeTerms<'t> = SmallVec<[Option<&'t LeaseTerms>; 2]>;

impl LeaseManager {
    /// Decides a check if all its charges are leased and none needs a store
    /// call. Appends their outcomes to `outcomes`, which must be empty.
    ///
    /// Otherwise returns `None`. Then nothing was spent, and the contents of
    /// `outcomes` are meaningless. Must be called within a Tokio runtime.
    pub fn try_charge<'t>(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        mut terms: impl Iterator<Item = Option<&'t LeaseTerms>>,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let is_spent = may_spend(charges.mode);
        if let (true, [charge]) = (is_spent, &charges.list[..]) {
            let (leased, hits) = as_leased(charge, terms.next().flatten())?;
            return self.try_spend(now, leased, hits, outcomes);
        }
        let all: Option<SmallVec<[(LeasedCounter<'_>, Hits); 2]>> = charges
            .list
            .iter()
            .zip(terms)
            .map(|(charge, terms)| as_leased(charge, terms))
            .collect();
        let (all, mut taken) = (all?, TakenHits::new(self, charges));
        for (at, (leased, hits)) in all.iter().enumerate() {
            outcomes.push(taken.take(at, now, *leased, *hits)?);
        }
        for (leased, hits) in all.into_iter().filter(|_| is_spent) {
            self.record_check(now, leased, hits);
        }
        taken.settle(charges, outcomes);
        Some(())
    }

    /// Charges a check that [`try_charge`](Self::try_charge) does not decide.
    pub async fn charge(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&LeaseTerms>],
    ) -> Outcomes {
        match charges.mode {
            ChargeMode::Each => self.charge_each(now, charges, terms).await,
            // Also for a single charge: a lease call would count its denied hits in a fixed window.
            ChargeMode::AllOrNothing { .. } | ChargeMode::Preview => {
                self.charge_together(now, charges, terms).await
            }
        }
    }

    /// Forgets the remembered denials of counters that `charges` refund, for any leased limit. Must
    /// be called before the refunds are sent, and again after the reply.
    pub fn forget_denials(&self, charges: &Charges) {
        let refunds = charges.list.iter().filter(|charge| matches!(charge.cost, Cost::Refund(_)));
        for charge in refunds {
            let (now, place) = (self.clock.now(), self.hash_key(&charge.key));
            if let Some(lease) = self.lock_shard(place).get_mut(&place) {
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
        let leased = |at: usize| as_leased(charges.list.get(at)?, *terms.get(at)?);
        let plain = ChargeSubset::select(charges, |at| leased(at).is_none(), charges.mode);
        let leased_charges = (0..charges.list.len()).filter_map(|at| Some((at, leased(at)?)));
        let lease_calls = leased_charges.map(|(at, (leased, hits))| async move {
            (at, self.charge_leased(leased, hits).await)
        });
        let rest = async {
            if plain.charges.list.is_empty() {
                return Outcomes::new();
            }
            self.charge_store(now, &plain.charges).await
        };
        let mut outcomes = placeholders(charges);
        let (answered, leased_outcomes) = join(rest, join_all(lease_calls)).await;
        plain.copy_outcomes(answered, &mut outcomes);
        for (at, outcome) in leased_outcomes {
            outcomes[at] = outcome;
        }
        outcomes
    }

    /// Charges all or nothing: each leased limit from its balance if that
    /// covers the hits, and all other limits in one atomic store call.
    async fn charge_together(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&LeaseTerms>],
    ) -> Outcomes {
        let leased = |at: usize| as_leased(charges.list.get(at)?, *terms.get(at)?);
        let leased_charges = || (0..charges.list.len()).filter_map(|at| Some((at, leased(at)?)));
        if may_spend(charges.mode) {
            let now = self.clock.now();
            leased_charges().for_each(|(_, (leased, hits))| self.record_check(now, leased, hits));
        }
        let (mut taken_hits, mut outcomes) = (TakenHits::new(self, charges), placeholders(charges));
        let mut is_known: SmallVec<[bool; 2]> = SmallVec::from_elem(false, charges.list.len());
        for (at, (leased, hits)) in leased_charges() {
            if let Some(outcome) = taken_hits.take(at, self.clock.now(), leased, hits) {
                (outcomes[at], is_known[at]) = (outcome, true);
            }
        }
        let strict_charges = || leased_charges().filter(|(at, _)| !is_known[*at]);
        let before: SmallVec<[Hits; 2]> = strict_charges()
            .map(|(_, (leased, _))| self.balance_of(self.clock.now(), leased))
            .collect();
        let rule = remaining_mode(charges, &outcomes, &is_known);
        let missing = ChargeSubset::select(charges, |at| !is_known[at], rule);
        if !missing.charges.list.is_empty() {
            let answered = self.charge_store(now, &missing.charges).await;
            missing.copy_outcomes(answered, &mut outcomes);
        }
        for ((at, (leased, _)), before) in strict_charges().zip(before) {
            outcomes[at] = self.add_local_balance(leased, before, outcomes[at]);
        }
        if taken_hits.settle(charges, &mut outcomes) == Verdict::Allow {
            let now = self.clock.now();
            strict_charges()
                .for_each(|(_, (leased, hits))| self.refill_after_charge(now, leased, hits));
        }
        outcomes
    }

    pub(super) fn balance_of(&self, now: Nanos, leased: LeasedCounter<'_>) -> Hits {
        self.with_lease(leased, |held| held.balance(now)).unwrap_or_default()
    }

    fn record_check(self: &Arc<Self>, now: Nanos, leased: LeasedCounter<'_>, hits: Hits) {
        self.with_lease(leased, |held| held.record_check(now, hits));
    }

    /// Refills a lease in the background after the store charged a check without the lease. The
    /// first check of a key only creates the lease.
    fn refill_after_charge(self: &Arc<Self>, now: Nanos, leased: LeasedCounter<'_>, hits: Hits) {
        let place = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(place);
        if self.is_draining() || is_pending_for_other_limit(&shard, place, leased) {
            return;
        }
        if !shard.get(&place).is_some_and(|held| held.is_for(leased)) {
            let before = self.create_lease(&mut shard, place, leased, now);
            self.send_in_background(before);
            if let Some(lease) = shard.get_mut(&place) {
                lease.record_check(now, hits);
            }
        } else if let Some(lease) = shard.get_mut(&place)
            && lease.balance(now) < hits
            && let Some(borrow) = lease.borrow(now, self.next_number(), Hits(0))
        {
            self.send_in_batch(vec![(self.message(lease.leased(), borrow), None)]);
        }
    }

    pub(super) fn with_lease<T>(
        &self,
        leased: LeasedCounter<'_>,
        act: impl FnOnce(&mut KeyLease) -> T,
    ) -> Option<T> {
        let place = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(place);
        shard.get_mut(&place).filter(|held| held.is_for(leased)).map(act)
    }
}

/// The hits that a check took from balances. They are put back unless the check is allowed.
struct TakenHits<'l> {
    leases: &'l Arc<LeaseManager>,
    /// `false` if the check is denied in any case. Then its hits are put
    /// back at once, so that other checks can use them while this one waits.
    may_spend: bool,
    charges: SmallVec<[TakenCharge; 2]>,
}

struct TakenCharge {
    at: usize,
    key_hash: LeaseKeyHash,
    hits: Hits,
    epoch: u64,
}

impl<'l> TakenHits<'l> {
    fn new(leases: &'l Arc<LeaseManager>, charges: &Charges) -> Self {
        Self { leases, may_spend: may_spend(charges.mode), charges: SmallVec::new() }
    }

    /// Returns the outcome of charge `at`, if its lease
    /// can decide. Takes the hits if they are allowed.
    fn take(
        &mut self,
        at: usize,
        now: Nanos,
        leased: LeasedCounter<'_>,
        hits: Hits,
    ) -> Option<ChargeOutcome> {
        let place = self.leases.hash_key(&leased.charge.key);
        let mut shard = self.leases.lock_shard(place);
        let lease = shard.get_mut(&place).filter(|held| held.is_for(leased))?;
        let outcome = lease.take(now, hits)?;
        if outcome.is_denial() {
            return Some(outcome);
        }
        if self.may_spend {
            self.charges.push(TakenCharge { at, key_hash: place, hits, epoch: lease.epoch() });
            return Some(outcome);
        }
        lease.put_back(now, hits, lease.epoch());
        Some(ChargeOutcome::Decided(CounterDecision::Allow(lease.headroom(now))))
    }

    /// Marks the taken hits as spent, or puts them back if `outcomes` deny the check. The outcomes
    /// of hits that were put back show the headroom without the check.
    fn settle(mut self, charges: &Charges, outcomes: &mut Outcomes) -> Verdict {
        let now = self.leases.clock.now();
        if stale_charges::is_check_denied(charges, outcomes) {
            for part in std::mem::take(&mut self.charges) {
                if let Some(room) = part.put_back(self.leases, now) {
                    outcomes[part.at] = ChargeOutcome::Decided(CounterDecision::Allow(room));
                }
            }
            return Verdict::Deny;
        }
        for part in std::mem::take(&mut self.charges) {
            if let Some(lease) = self.leases.lock_shard(part.key_hash).get_mut(&part.key_hash) {
                lease.mark_spent(part.hits, part.epoch);
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

/// Returns `false` for a preview: the check is denied in any case.
const fn may_spend(rule: ChargeMode) -> bool {
    match rule {
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

/// Returns the charge mode for the charges without an outcome. If the known outcomes deny the
/// check, the other charges must not be made.
fn remaining_mode(charges: &Charges, outcomes: &Outcomes, is_known: &[bool]) -> ChargeMode {
    let ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny: rescued } = charges.mode
    else {
        return charges.mode;
    };
    if stale_charges::is_check_denied(charges, outcomes) {
        return ChargeMode::Preview;
    }
    let allows_quota_group = |at: usize| {
        let Enforcement { group, shadow } = charges.list[at].standing;
        let in_quota = group == VoteGroup::Quota || quota_for_all && group == VoteGroup::Enforced;
        in_quota && (shadow || !outcomes[at].is_denial())
    };
    let rescued = rescued || (0..is_known.len()).any(|at| is_known[at] && allows_quota_group(at));
    ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny: rescued }
}

/// Returns a placeholder outcome for each charge; it is not a denial.
fn placeholders(charges: &Charges) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(StoreFailure::InvalidReply)).collect()
}
