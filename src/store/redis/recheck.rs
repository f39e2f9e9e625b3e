//! Rechecks a denial that an expired reservation of a crashed or disconnected replica may cause.
//!
//! Guarantees:
//! - A recheck reserves its hits; before that, Redis refunds expired reservations.
//! - The check and its recheck share one deadline.
//! - If the recheck fails, the denial is final.
//! - In one reservation lifetime, a counter has at most one recheck, a replica [`MAX_RECHECKS`].
//!
//! Not covered:
//! - Fairness: counters with the same hash share one recheck, so a counter may wait for long.
//! - Checks that refund hits or name a counter twice.

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::timeout;

use super::joint_decision::{JointDecision, can_reserve};
use super::reservations::Reservations;
use super::{RedisStore, StoreFailure, all_failed};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::Nanos;
use crate::store::{ChargeOutcome, Charges, Outcomes};

/// The most rechecks of this process in one reservation lifetime. They take a few milliseconds of
/// Redis' time.
const MAX_RECHECKS: usize = 256;

/// The time of the last recheck, by the hash of the counter.
#[derive(Debug)]
pub(super) struct RecheckLimiter {
    last_rechecks: [AtomicU64; MAX_RECHECKS],
    random: RandomState,
}

impl Default for RecheckLimiter {
    fn default() -> Self {
        Self {
            last_rechecks: [const { AtomicU64::new(0) }; MAX_RECHECKS],
            random: RandomState::new(),
        }
    }
}

impl RecheckLimiter {
    /// Returns `true` if a recheck of `key` is due at `now`, once in each reservation `lifetime`,
    /// and then records it as done.
    pub(super) fn try_claim(&self, key: &CounterKey, now: Nanos, lifetime: Nanos) -> bool {
        let index = self.random.hash_one(key.as_bytes()) % MAX_RECHECKS as u64;
        let last_recheck = &self.last_rechecks[usize::try_from(index).unwrap_or(0)];
        let last = last_recheck.load(Relaxed);
        let is_due = last == 0 || lifetime <= now.since(Nanos(last));
        is_due && last_recheck.compare_exchange(last, now.0.max(1), Relaxed, Relaxed).is_ok()
    }
}

impl RedisStore {
    /// Decides a check whose charges are all in `slot`; rechecks a denial if a recheck is due.
    pub(super) async fn charge_with_recheck(
        &self,
        now: Nanos,
        slot: u16,
        charges: &Charges,
        decision: JointDecision,
    ) -> Outcomes {
        let first_timeout = self.call_timeout / 2;
        let mut call = pin!(self.charge_slot(slot, charges));
        let Ok(outcomes) = timeout(first_timeout, &mut call).await else { return call.await };
        if !self.is_recheck_due(now, charges, decision, &outcomes) {
            return outcomes;
        }
        self.recheck(charges, decision, first_timeout / 2).await.unwrap_or(outcomes)
    }

    /// Returns `true` if the check was denied and a recheck of a denying counter is due.
    fn is_recheck_due(
        &self,
        now: Nanos,
        charges: &Charges,
        decision: JointDecision,
        outcomes: &Outcomes,
    ) -> bool {
        let (list, lifetime) = (&charges.list, self.reservation_client.lifetime());
        let is_known = outcomes.iter().all(|outcome| matches!(outcome, ChargeOutcome::Decided(_)));
        if !is_known || !decision.denies(list, &all_indexes(charges), outcomes) {
            return false;
        }
        let is_denied = |outcome: &ChargeOutcome| {
            matches!(outcome, ChargeOutcome::Decided(CounterDecision::Deny { .. }))
        };
        let mut denied = list.iter().zip(outcomes).filter(|(_, outcome)| is_denied(outcome));
        denied.any(|(charge, _)| self.recheck_limiter.try_claim(&charge.key, now, lifetime))
            && (0..list.len()).all(|index| can_reserve(list, index))
    }

    /// Reserves all charges, then commits all or cancels all, both within `step_timeout`. `None` if
    /// the result of a reservation is unknown; its hits then do not stay charged.
    async fn recheck(
        &self,
        charges: &Charges,
        decision: JointDecision,
        step_timeout: Duration,
    ) -> Option<Outcomes> {
        let (mut reservations, mut outcomes) =
            (Reservations::default(), all_failed(charges, StoreFailure::TimedOut));
        for (index, charge) in charges.list.iter().enumerate() {
            reservations.add(&self.reservation_client, index, charge);
        }
        reservations.reserve_all(step_timeout, &mut outcomes).await;
        if outcomes.iter().any(|outcome| matches!(outcome, ChargeOutcome::Failed(_))) {
            return None;
        }
        if decision.denies(&charges.list, &all_indexes(charges), &outcomes) {
            reservations.cancel_all(step_timeout, &mut outcomes).await;
        } else {
            reservations.commit_all(step_timeout, &mut outcomes).await;
        }
        Some(outcomes)
    }
}

fn all_indexes(charges: &Charges) -> Vec<usize> {
    (0..charges.list.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_RECHECKS, RecheckLimiter};
    use crate::kernel::key::{CounterKey, KeyStrategy};
    use crate::kernel::units::Nanos;

    fn key(name: &str) -> CounterKey {
        CounterKey::unique("d", [("k", name)].into_iter(), KeyStrategy::Gcra)
    }

    #[test]
    fn a_counter_is_rechecked_once_per_reservation_lifetime() {
        let (limiter, lifetime) = (RecheckLimiter::default(), Nanos(10));
        let due = |now| limiter.try_claim(&key("a"), Nanos(now), lifetime);
        assert_eq!([0, 1, 10, 11, 20, 21].map(due), [true, false, false, true, false, true]);
    }

    #[test]
    fn rechecks_per_reservation_lifetime_are_bounded() {
        let limiter = RecheckLimiter::default();
        let due = |name: &u32| limiter.try_claim(&key(&name.to_string()), Nanos(1), Nanos(10));
        let rechecks = (0..100_000).filter(due).count();
        assert_eq!(rechecks, MAX_RECHECKS, "every slot allows one");
    }
}
