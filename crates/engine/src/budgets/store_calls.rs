//! Calls the store for planned budgets.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::plan::{BudgetPlan, PlannedBudget};
use super::{HeldBudgets, retries};
use crate::active_config::ActiveConfig;
use crate::config::budget::BudgetWindow;
use crate::kernel::budget::{Amount, BudgetView, Ended, EndedHold, HoldId, Reserved};
use crate::kernel::decision::RuleVerdict;
use crate::kernel::units::Nanos;
use crate::store::StoreFailure;
use crate::store::budgets::{BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply};
use crate::telemetry::event::{BudgetEvent, Event as _};
use crate::{CheckError, Engine};

/// A store call for planned budgets.
pub(super) struct PlannedCall<'p, 'c> {
    pub(super) plan: &'p BudgetPlan<'c>,
    pub(super) id: HoldId,
    pub(super) action: BudgetAction,
    pub(super) amounts: SmallVec<[Amount; 2]>,
}

impl Engine {
    /// Makes a call that no request waits for, and counts its result.
    pub(super) async fn call_planned(
        &self,
        config: &ActiveConfig,
        call: &PlannedCall<'_, '_>,
        timeout: Option<Nanos>,
    ) -> Result<BudgetReply, CheckError> {
        let deadline = timeout.map(|timeout| self.clock.now().plus(timeout));
        let (reply, _) = self
            .call_with_current_periods(call, deadline)
            .await
            .inspect_err(|_| BudgetEvent::StoreFailed.emit())
            .map_err(CheckError::StoreUnavailable)?;
        if let BudgetOutcome::Ended(ended) = &reply.outcome {
            count_ended(call.action, ended);
            self.publish_budgets(config, call.plan, &reply);
            for (budget, ended) in call.plan.budgets.iter().zip(ended) {
                // Proxies also settle denied requests, which have no hold and no usage.
                if call.action == BudgetAction::Settle || ended.ended != Ended::Unknown {
                    self.settle_watch.ended(&budget.rule.path, ended.ended);
                }
            }
        }
        Ok(reply)
    }

    /// Calls the store, and once more if its clock is outside the planned calendar windows.
    pub(super) async fn call_with_current_periods(
        &self,
        call: &PlannedCall<'_, '_>,
        deadline: Option<Nanos>,
    ) -> Result<(BudgetReply, Option<HeldBudgets>), StoreFailure> {
        let now = self.clock.now();
        let (reply, held) = self.call_budgets(self.store_call(call, now), now, deadline).await?;
        let is_outside = |(view, budget): (&BudgetView, &PlannedBudget<'_>)| {
            view.end.is_none() && budget.rule.window != BudgetWindow::Prepaid
        };
        if !reply.views.iter().zip(&call.plan.budgets).any(is_outside) {
            return Ok((reply, held));
        }
        self.call_budgets(self.store_call(call, reply.now), now, deadline).await
    }

    fn store_call(&self, call: &PlannedCall<'_, '_>, periods_at: Nanos) -> BudgetCall {
        let amounts = call.amounts.iter().copied();
        let budgets: SmallVec<[BudgetPart; 2]> =
            call.plan.parts(amounts, self.is_shadow(), periods_at);
        BudgetCall { id: call.id, action: call.action, budgets }
    }

    /// Sends a call. Dropping the future does not stop it, and cancels the holds that it makes.
    async fn call_budgets(
        &self,
        call: BudgetCall,
        now: Nanos,
        deadline: Option<Nanos>,
    ) -> Result<(BudgetReply, Option<HeldBudgets>), StoreFailure> {
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let with_holds = move |store, call: &BudgetCall, reply: BudgetReply| {
            let is_held = reply.outcome == BudgetOutcome::Reserved(Reserved::Held);
            let held = is_held.then(|| HeldBudgets::new(store, clock, call));
            (reply, held)
        };
        if store.is_synchronous() {
            let reply = self.store.call_budgets(now, &call).wait().await;
            return reply.map(|reply| with_holds(store, &call, reply));
        }
        let (answer, answered) = oneshot::channel();
        let (own_clock, slots) = (Arc::clone(&self.clock), self.retries.slots());
        tokio::spawn(async move {
            let reply = store.call_budgets(now, &call).wait().await;
            let failure = reply.as_ref().err().copied();
            // If nobody waits any more, dropping the holds cancels them.
            let held_store = Arc::clone(&store);
            drop(answer.send(reply.map(|reply| with_holds(held_store, &call, reply))));
            if let Some(cause) = failure {
                retries::repeat((store, own_clock, slots), &call, cause).await;
            }
        });
        let answered = match deadline {
            None => answered.await,
            Some(deadline) => {
                let time_left = Duration::from_nanos(deadline.since(self.clock.now()).0);
                let in_time = tokio::time::timeout(time_left, answered).await;
                in_time.map_err(|_| StoreFailure::TimedOut)?
            }
        };
        answered.unwrap_or(Err(StoreFailure::Other))
    }

    /// Counts the decision of each budget: whether it would have denied without shadow mode. Records
    /// its used part, and sends events.
    pub(super) fn publish_budgets(
        &self,
        config: &ActiveConfig,
        plan: &BudgetPlan<'_>,
        reply: &BudgetReply,
    ) {
        for (budget, view) in plan.budgets.iter().zip(&reply.views) {
            let (rule, total) = (budget.rule, total(budget, view));
            let is_shadow = rule.shadow || self.is_shadow();
            let used = view.usage.settled.0.saturating_add(view.held.0);
            let is_over = is_shadow && total.0 < used;
            let verdict = if is_over { RuleVerdict::ShadowDeny } else { RuleVerdict::Allow };
            config.counters.count(rule.number, verdict);
            if let Some(counter) = config.counters.counter(rule.number) {
                counter.record_used(used, total.0);
            }
            if let Some(events) = self.events.as_ref().filter(|_| !rule.warn_at.is_empty()) {
                events.offer_budget_event((rule, &budget.key), (total, view), reply.now);
            }
        }
    }
}

/// Returns the amount of a period, or the sum of the top-ups.
pub(super) fn total(budget: &PlannedBudget<'_>, view: &BudgetView) -> Amount {
    match budget.rule.window {
        BudgetWindow::Prepaid => view.credit,
        BudgetWindow::Each(_) => budget.amount,
    }
}

fn count_ended(action: BudgetAction, ended: &[EndedHold]) {
    // All budgets of a request end in the same way, unless it reserved other ones.
    let Some(first) = ended.first() else { return };
    BudgetEvent::of_end(action == BudgetAction::Cancel, first.ended).emit();
}
