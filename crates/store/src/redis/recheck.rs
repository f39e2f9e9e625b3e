//! Rechecks a denial that an expired reservation may have caused. Such a reservation was made by a
//! replica that crashed or lost its connection.
//!
//! Guarantees:
//! - A recheck reserves its hits. Before a reservation, Redis refunds the hits of expired
//!   reservations.
//! - The check and its recheck share one deadline.
//! - If the recheck fails, the denial is final.
//!
//! Not covered:
//! - The number of rechecks (see [`super::recheck_limiter`]).
//! - Checks that refund hits or name a counter twice.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::joint_decision::{JointDecision, can_reserve};
use super::outcome::all_failed;
use super::reservations::Reservations;
use super::{RedisStore, StoreFailure};
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::Nanos;
use crate::{ChargeOutcome, Charges, Outcomes};

impl RedisStore {
    /// Decides a check whose charges are all in `slot`. Rechecks a denial if a recheck is due.
    pub(super) async fn charge_with_recheck(
        &self,
        now: Nanos,
        slot: u16,
        charges: &Charges,
        together: JointDecision,
    ) -> Outcomes {
        let first_timeout = self.call_timeout / 2;
        let mut asking = pin!(self.charge_slot(slot, charges));
        let Ok(outcomes) = timeout(first_timeout, &mut asking).await else { return asking.await };
        if !self.is_recheck_due(now, charges, together, &outcomes) {
            return outcomes;
        }
        self.recheck(charges, together, first_timeout / 2).await.unwrap_or(outcomes)
    }

    /// Returns `true` if the check was denied, and a recheck of a denying counter is due.
    fn is_recheck_due(
        &self,
        now: Nanos,
        charges: &Charges,
        together: JointDecision,
        outcomes: &Outcomes,
    ) -> bool {
        let (list, term) = (&charges.list, self.reservation_client.lifetime());
        let is_known = outcomes.iter().all(|outcome| matches!(outcome, ChargeOutcome::Decided(_)));
        if !is_known || !together.denies(list, &all_indexes(charges), outcomes) {
            return false;
        }
        let says_no = |outcome: &ChargeOutcome| {
            matches!(outcome, ChargeOutcome::Decided(CounterDecision::Deny { .. }))
        };
        let mut denied = list.iter().zip(outcomes).filter(|(_, outcome)| says_no(outcome));
        denied.any(|(charge, _)| self.recheck_limiter.try_claim(&charge.key, now, term))
            && (0..list.len()).all(|at| can_reserve(list, at))
    }

    /// Reserves all charges, then commits all or cancels all. Both steps have the same timeout.
    /// Returns `None` if the result of a reservation is unknown; its hits then do not stay charged.
    async fn recheck(
        &self,
        charges: &Charges,
        together: JointDecision,
        step_timeout: Duration,
    ) -> Option<Outcomes> {
        let (mut holding, mut outcomes) =
            (Reservations::default(), all_failed(charges, StoreFailure::TimedOut));
        for (at, charge) in charges.list.iter().enumerate() {
            holding.add(&self.reservation_client, at, charge);
        }
        holding.reserve_all(step_timeout, &mut outcomes).await;
        if outcomes.iter().any(|outcome| matches!(outcome, ChargeOutcome::Failed(_))) {
            return None;
        }
        if together.denies(&charges.list, &all_indexes(charges), &outcomes) {
            holding.cancel_all(step_timeout, &mut outcomes).await;
        } else {
            holding.commit_all(step_timeout, &mut outcomes).await;
        }
        Some(outcomes)
    }
}

fn all_indexes(charges: &Charges) -> Vec<usize> {
    (0..charges.list.len()).collect()
}
