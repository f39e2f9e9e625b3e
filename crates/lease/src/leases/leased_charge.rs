//! Decides a check of a leased limit that the balance alone does not decide.
//!
//! Guarantees:
//! - A check waits for the lease calls of other checks at most twice.
//! - After the first wait, a check makes at most two store calls of its own.
//! - All waits and store calls of a check have one common deadline.
//!
//! Not covered:
//! - Charges without a lease (see `strict_charge`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::call::LeaseCall;
use super::{LeaseManager, LeaseStep, LeasedCounter};
use crate::kernel::lease::{BorrowReply, BorrowRequest};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::LeaseOutcome;
use crate::store::{ChargeMode, ChargeOutcome, StoreFailure};

impl LeaseManager {
    /// Decides a check in one of three ways:
    ///
    /// - From the balance or a remembered denial.
    /// - With a store call that charges the hits of the check and borrows more.
    /// - After the reply to another check, whose lease call for the key is already in flight.
    pub async fn charge_leased(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
    ) -> ChargeOutcome {
        let deadline = self.new_deadline();
        // The store enforces the deadline of a first call, so that it can count the timeout as its
        // own failure.
        match self.next_step(leased, hits) {
            LeaseStep::Decided(outcome) => outcome,
            LeaseStep::ChargeStrictly => {
                let outcome = self.charge_single(leased, hits, ChargeMode::Each).await;
                self.reconsider_denial(leased, hits, outcome, deadline).await
            }
            LeaseStep::Send(borrow) => {
                let lent = self.start_call(leased, borrow).await;
                self.finish_charge(leased, hits, lent, deadline).await
            }
            LeaseStep::Wait(settled) => {
                self.charge_after_wait(settled, leased, hits, deadline).await
            }
        }
    }

    /// Waits for the reply to another check's message, then charges the hits if the balance does
    /// not cover them.
    async fn charge_after_wait(
        self: &Arc<Self>,
        mut settled: watch::Receiver<Option<StoreFailure>>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        let waited = self.run_until(deadline, settled.changed()).await;
        let failed = match waited {
            None => Some(StoreFailure::Unsent),
            Some(Ok(())) => *settled.borrow(),
            // The lease was evicted, so there is no reply to wait for.
            Some(Err(_)) => None,
        };
        match (self.try_decide(leased, hits), failed) {
            (Some(outcome), _) => outcome,
            // The store failed to reply once, so this check does not wait for another lease call.
            (None, Some(cause)) => ChargeOutcome::Failed(failure_for_waiters(cause)),
            (None, None) => self.charge_again(leased, hits, deadline).await,
        }
    }

    /// Returns the outcome after the reply to the check's own message.
    async fn finish_charge(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcome: LeaseOutcome,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        match outcome {
            LeaseOutcome::Applied(answer) => outcome_of_reply(leased, &answer),
            LeaseOutcome::Superseded => self.charge_strictly(leased, hits, deadline).await,
            LeaseOutcome::StoreFull(verdict) => ChargeOutcome::StoreFull(verdict),
            LeaseOutcome::Stale(now) => ChargeOutcome::Stale(now),
            LeaseOutcome::Failed(cause) => ChargeOutcome::Failed(cause),
        }
    }

    /// Charges a check that waited, because the balance after the reply does not cover its hits.
    async fn charge_again(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if self.is_past(deadline) {
            return ChargeOutcome::Failed(StoreFailure::Unsent);
        }
        match self.retry_step(leased, hits) {
            LeaseStep::Decided(outcome) => outcome,
            LeaseStep::Send(borrow) => {
                let lent = self.send_until(deadline, leased, borrow).await;
                self.finish_charge(leased, hits, lent, deadline).await
            }
            LeaseStep::Wait(_) | LeaseStep::ChargeStrictly => {
                self.charge_strictly(leased, hits, deadline).await
            }
        }
    }

    /// Returns the result of `act`, or `None` at `deadline`, an instant of the steady clock.
    pub(super) async fn run_until<T>(
        &self,
        deadline: Option<Nanos>,
        act: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(deadline) = deadline else { return Some(act.await) };
        let left = Duration::from_nanos(deadline.since(self.clock.steady()).0);
        timeout(left, act).await.ok()
    }

    /// Returns the deadline of a check that arrives now, as an instant of the steady clock.
    fn new_deadline(&self) -> Option<Nanos> {
        self.store.max_wait().map(|deadline| self.clock.steady().plus(deadline))
    }

    pub(super) fn is_past(&self, deadline: Option<Nanos>) -> bool {
        deadline.is_some_and(|end| end <= self.clock.steady())
    }

    /// Sends the message of a check. The call continues after the check is
    /// canceled, because otherwise its grant would be charged and never spent.
    fn start_call(self: &Arc<Self>, leased: LeasedCounter<'_>, borrow: BorrowRequest) -> LeaseCall {
        let (all, message) = (Arc::clone(self), self.message(leased, borrow));
        LeaseCall::new(async move { all.send(&message).await })
    }

    /// Sends the message of a check, and waits for the reply until `deadline`.
    pub(super) async fn send_until(
        self: &Arc<Self>,
        deadline: Option<Nanos>,
        leased: LeasedCounter<'_>,
        borrow: BorrowRequest,
    ) -> LeaseOutcome {
        let lent = self.run_until(deadline, self.start_call(leased, borrow)).await;
        lent.unwrap_or(LeaseOutcome::Failed(StoreFailure::TimedOut))
    }
}

/// Returns the outcome after a reply, with the headroom as this replica sees it.
pub(super) fn outcome_of_reply(leased: LeasedCounter<'_>, answer: &BorrowReply) -> ChargeOutcome {
    ChargeOutcome::Decided(answer.local_decision(max_at_once(leased)))
}

pub(super) fn max_at_once(leased: LeasedCounter<'_>) -> Hits {
    Hits(leased.charge.strategy.max_at_once().into())
}

/// Returns the failure for a check that waited for another check's message, which failed with
/// `cause`. Its own hits were not in that message, so they were never sent.
const fn failure_for_waiters(cause: StoreFailure) -> StoreFailure {
    match cause {
        StoreFailure::ConnectionLost | StoreFailure::TimedOut | StoreFailure::InvalidReply => {
            StoreFailure::Unsent
        }
        cause => cause,
    }
}
