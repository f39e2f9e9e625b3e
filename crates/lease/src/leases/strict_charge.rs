//! Charges in the store without a lease.
//!
//! Guarantees:
//! - A denial is reconsidered once if this process has hits of the counter.

use std::sync::Arc;

use smallvec::smallvec;
use tokio::sync::watch;

use super::key_lease::{KeyLease, LeasedCounter};
use super::leased_charge::{max_at_once, outcome_of_reply};
use super::{LeaseManager, LeaseStep};
use crate::beside_leases;
use crate::kernel::decision::Cost;
use crate::kernel::lease::add_local_hits;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::LeaseOutcome;
use crate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure, StoreReply,
};

impl LeaseManager {
    pub(super) async fn charge_strictly(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if self.is_past(deadline) {
            return ChargeOutcome::Failed(StoreFailure::Unsent);
        }
        let outcome =
            self.run_until(deadline, self.charge_single(leased, hits, ChargeMode::Each)).await;
        let outcome = outcome.unwrap_or(ChargeOutcome::Failed(StoreFailure::TimedOut));
        self.reconsider_denial(leased, hits, outcome, deadline).await
    }

    /// Reconsiders the denial of a charge that was made without the lease. The missing hits may be
    /// in this replica's balance, or in a reply on its way. Then the balance decides, or is
    /// returned together with a second charge.
    pub(super) async fn reconsider_denial(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcome: ChargeOutcome,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if !matches!(outcome, ChargeOutcome::Decided(CounterDecision::Deny { .. })) {
            return outcome;
        }
        if let Some(mut settled) = self.pending_reply(leased)
            && self.run_until(deadline, settled.changed()).await.is_none()
        {
            return outcome;
        }
        // A fixed window counts denied hits, so after the denial it has no hits left.
        let can_retry = self.balance(&leased.charge.key) != Hits(0)
            && !self.is_past(deadline)
            && !matches!(leased.charge.strategy, Strategy::FixedWindow(_));
        let step = if can_retry {
            self.retry_step(leased, hits)
        } else {
            self.try_decide(leased, hits).map_or(LeaseStep::ChargeStrictly, LeaseStep::Decided)
        };
        match step {
            LeaseStep::Decided(allowed @ ChargeOutcome::Decided(CounterDecision::Allow(_))) => {
                allowed
            }
            LeaseStep::Send(borrow) => match self.send_until(deadline, leased, borrow).await {
                LeaseOutcome::Applied(answer) => outcome_of_reply(leased, &answer),
                _ => outcome,
            },
            LeaseStep::Decided(_) | LeaseStep::Wait(_) | LeaseStep::ChargeStrictly => outcome,
        }
    }

    /// Returns the next step of a check that is already recorded as demand.
    ///
    /// One lock covers the decision from the balance and the new message. The message returns the
    /// whole balance, which another reply may have refilled meanwhile.
    pub(super) fn retry_step(&self, leased: LeasedCounter<'_>, hits: Hits) -> LeaseStep {
        let (now, place) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(place);
        let Some(lease) = shard.get_mut(&place).filter(|held| held.is_for(leased)) else {
            return LeaseStep::ChargeStrictly;
        };
        if let Some(outcome) = lease.decide(now, hits) {
            return LeaseStep::Decided(outcome);
        }
        lease
            .borrow(now, self.next_number(), hits)
            .map_or(LeaseStep::ChargeStrictly, LeaseStep::Send)
    }

    fn pending_reply(
        &self,
        leased: LeasedCounter<'_>,
    ) -> Option<watch::Receiver<Option<StoreFailure>>> {
        let place = self.hash_key(&leased.charge.key);
        let shard = self.lock_shard(place);
        shard
            .get(&place)
            .filter(|held| held.is_for(leased) && held.has_pending())
            .map(KeyLease::subscribe)
    }

    pub(super) async fn charge_single(
        &self,
        leased: LeasedCounter<'_>,
        hits: Hits,
        rule: ChargeMode,
    ) -> ChargeOutcome {
        let charge = Charge { cost: Cost::Charge(hits), ..leased.charge.clone() };
        let charges = Charges { list: smallvec![charge], mode: rule };
        let before = self.balance_of(self.clock.now(), leased);
        let (store, now) = (&*self.store, self.clock.now());
        let outcomes = beside_leases::charge(store, now, &charges, &[Some(&leased.terms)]).await;
        let outcome =
            outcomes.first().copied().unwrap_or(ChargeOutcome::Failed(StoreFailure::InvalidReply));
        self.add_local_balance(leased, before, outcome)
    }

    /// Adds the local balance to the headroom in `outcome`. Only hits that were also in the balance
    /// `before` the store call are added: the store's headroom may include hits that were granted
    /// later.
    pub(super) fn add_local_balance(
        &self,
        leased: LeasedCounter<'_>,
        before: Hits,
        outcome: ChargeOutcome,
    ) -> ChargeOutcome {
        let ChargeOutcome::Decided(step) = outcome else { return outcome };
        let local_hits = before.min(self.balance_of(self.clock.now(), leased));
        ChargeOutcome::Decided(add_local_hits(step, local_hits, max_at_once(leased)))
    }

    pub(super) async fn charge_store(&self, now: Nanos, charges: &Charges) -> Outcomes {
        match self.store.charge(now, charges) {
            StoreReply::Ready(outcomes) => outcomes,
            StoreReply::Pending(later) => later.await,
        }
    }
}
