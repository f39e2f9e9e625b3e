//! Rechecks denials that an expired reservation may have
//! caused. Its owner has crashed or lost its connection.
//!
//! Guarantees:
//! - A recheck reserves, and the store first returns the hits of expired reservations.
//! - The check and its recheck share one deadline.
//! - If the recheck fails, the denial is final.
//! - One reservation lifetime has at most [`PLACES`] rechecks, and one per counter.
//!
//! Not covered:
//! - Fairness. Counters with the same hash share rechecks
//!   at random, so one may wait several lifetimes.
//! - Checks that refund hits or name a counter twice.

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::timeout;

use super::holding::Holding;
use super::steps::{Together, can_be_held};
use super::{Cause, Redis, failed};
use crate::backend::{Charges, Outcome, Outcomes};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::Step;
use crate::kernel::units::Nanos;

/// The most rechecks in one reservation lifetime. They cost a few milliseconds of the store's time.
const PLACES: usize = 256;

/// The time of the last recheck, by the hash of the counter.
#[derive(Debug)]
pub(super) struct Overdue {
    looked: [AtomicU64; PLACES],
    random: RandomState,
}

impl Default for Overdue {
    fn default() -> Self {
        Self { looked: [const { AtomicU64::new(0) }; PLACES], random: RandomState::new() }
    }
}

impl Overdue {
    /// Returns `true` if a recheck of `key` is due at `now`, and counts it as done.
    pub(super) fn is_due(&self, key: &CounterKey, now: Nanos, term: Nanos) -> bool {
        let place = self.random.hash_one(key.as_bytes()) % PLACES as u64;
        let looked = &self.looked[usize::try_from(place).unwrap_or(0)];
        let last = looked.load(Relaxed);
        let is_due = last == 0 || term <= now.since(Nanos(last));
        is_due && looked.compare_exchange(last, now.0.max(1), Relaxed, Relaxed).is_ok()
    }
}

impl Redis {
    /// Makes a joint decision in one slot. Rechecks a denial if a recheck is due.
    pub(super) async fn ask_and_look(
        &self,
        now: Nanos,
        slot: u16,
        charges: &Charges,
        together: Together,
    ) -> Outcomes {
        let patience = self.deadline / 2;
        let mut asking = pin!(self.ask(slot, charges));
        let Ok(outcomes) = timeout(patience, &mut asking).await else { return asking.await };
        if !self.is_overdue(now, charges, together, &outcomes) {
            return outcomes;
        }
        self.look(charges, together, patience / 2).await.unwrap_or(outcomes)
    }

    /// Returns `true` if the check was denied, and a recheck of a denying counter is due.
    fn is_overdue(
        &self,
        now: Nanos,
        charges: &Charges,
        together: Together,
        outcomes: &Outcomes,
    ) -> bool {
        let (list, term) = (&charges.list, self.holder.term());
        let is_known = outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stepped(_)));
        if !is_known || !together.deny(list, &places(charges), outcomes) {
            return false;
        }
        let says_no = |outcome: &Outcome| matches!(outcome, Outcome::Stepped(Step::Deny { .. }));
        let mut denied = list.iter().zip(outcomes).filter(|(_, outcome)| says_no(outcome));
        denied.any(|(charge, _)| self.overdue.is_due(&charge.key, now, term))
            && (0..list.len()).all(|at| can_be_held(list, at))
    }

    /// Reserves all charges, then commits or cancels them. Each step has its own
    /// timeout. Returns `None` if a result is unknown; then nothing stays charged.
    async fn look(
        &self,
        charges: &Charges,
        together: Together,
        patience: Duration,
    ) -> Option<Outcomes> {
        let (mut holding, mut outcomes) = (Holding::default(), failed(charges, Cause::Late));
        for (at, charge) in charges.list.iter().enumerate() {
            holding.add(&self.holder, at, charge);
        }
        holding.hold(patience, &mut outcomes).await;
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_))) {
            return None;
        }
        if together.deny(&charges.list, &places(charges), &outcomes) {
            holding.give_back(patience, &mut outcomes).await;
        } else {
            holding.keep(patience, &mut outcomes).await;
        }
        Some(outcomes)
    }
}

fn places(charges: &Charges) -> Vec<usize> {
    (0..charges.list.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Overdue, PLACES};
    use crate::kernel::key::{CounterKey, Counting};
    use crate::kernel::units::Nanos;

    fn key(name: &str) -> CounterKey {
        CounterKey::injective("d", [("k", name)].into_iter(), Counting::Gcra)
    }

    #[test]
    fn a_counter_is_due_once_per_interval() {
        let (overdue, term) = (Overdue::default(), Nanos(10));
        let due = |now| overdue.is_due(&key("a"), Nanos(now), term);
        assert_eq!([0, 1, 10, 11, 20, 21].map(due), [true, false, false, true, false, true]);
    }

    #[test]
    fn table_size_limits_the_counters_due_per_interval() {
        let overdue = Overdue::default();
        let due = |name: &u32| overdue.is_due(&key(&name.to_string()), Nanos(1), Nanos(10));
        let looks = (0..100_000).filter(due).count();
        assert_eq!(looks, PLACES, "of so many each place has some");
    }
}
