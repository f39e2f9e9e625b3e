//! Settles, renews, tops up and reads budgets.

use std::cmp::Reverse;
use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::plan::{BudgetPlan, PlannedBudget, model_of};
use super::store_calls::{PlannedCall, total};
use super::{BudgetStatus, RequestUsage, SettleFinding, hold_id, top_up_id};
use crate::active_config::ActiveConfig;
use crate::config::budget::{BudgetRule, BudgetUnit, BudgetWindow};
use crate::kernel::budget::{Amount, BudgetView, HoldId};
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Hits, Nanos};
use crate::recording::RecordedBudgets;
use crate::store::budgets::{BudgetAction, BudgetOutcome, BudgetReply};
use crate::telemetry::event::{BudgetEvent, Event as _};
use crate::{CheckError, Engine};

/// The most store calls of a list that run at once.
const READS_AT_ONCE: usize = 32;

impl Engine {
    /// Ends the holds of a request. Returns the budgets that it met.
    ///
    /// # Errors
    /// [`CheckError::StoreUnavailable`] if the store did not reply. The holds then expire.
    pub async fn settle(
        &self,
        check: &Check<'_>,
        id: &str,
        usage: RequestUsage,
        timeout: Option<Nanos>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let settle = self.settle_holds(check, id, usage, timeout);
        if self.recorder.is_on() {
            let budgets = RecordedBudgets::Settle(id, usage);
            return Box::pin(self.end_recorded(settle, (check, budgets))).await;
        }
        settle.await
    }

    async fn settle_holds(
        &self,
        check: &Check<'_>,
        id: &str,
        usage: RequestUsage,
        timeout: Option<Nanos>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let Some(plan) = BudgetPlan::new(&config, check, self.clock.now()) else {
            BudgetEvent::NoBudget.emit();
            return Ok(Vec::new());
        };
        let RequestUsage::Tokens(tokens) = usage else {
            let is_unknown = usage == RequestUsage::Unknown;
            let action = if is_unknown { BudgetAction::SettleHeld } else { BudgetAction::Cancel };
            let ids = (check.domain, id);
            let ended =
                self.end_holds(&config, (check, &plan), (ids, action), zeros(&plan), timeout);
            return Box::pin(ended).await;
        };
        // A budget of money without a price keeps its estimate. The others charge the tokens.
        let cost = |budget: &PlannedBudget<'_>| plan.cost(budget.rule, &tokens).ok();
        let (priced, unpriced) = plan.split(|budget| cost(budget).is_some());
        let mut all = Vec::new();
        for (part, action) in [(priced, BudgetAction::Settle), (unpriced, BudgetAction::SettleHeld)]
        {
            if part.budgets.is_empty() {
                continue;
            }
            let amounts = part.budgets.iter().map(|budget| cost(budget).unwrap_or_default());
            let (amounts, ids) = (amounts.collect(), (check.domain, id));
            let ended = self.end_holds(&config, (check, &part), (ids, action), amounts, timeout);
            all.extend(Box::pin(ended).await?);
        }
        Ok(all)
    }

    async fn end_holds(
        &self,
        config: &ActiveConfig,
        (check, plan): (&Check<'_>, &BudgetPlan<'_>),
        ((domain, id), action): ((&str, &str), BudgetAction),
        amounts: SmallVec<[Amount; 2]>,
        timeout: Option<Nanos>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let call = PlannedCall { plan, id: hold_id(domain, id), action, amounts };
        let reply = self.call_planned(config, &call, timeout).await?;
        if action == BudgetAction::Settle {
            self.learn(&call, model_of(plan.usage, check), &reply);
        }
        Ok(statuses(plan, &reply))
    }

    /// Extends the holds of a request. Returns `false` if none was open.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn renew_budgets(
        &self,
        check: &Check<'_>,
        id: &str,
        timeout: Option<Nanos>,
    ) -> Result<bool, CheckError> {
        let renew = self.renew_holds(check, id, timeout);
        if self.recorder.is_on() {
            let budgets = RecordedBudgets::Renew(id);
            return Box::pin(self.end_recorded(renew, (check, budgets))).await;
        }
        renew.await
    }

    async fn renew_holds(
        &self,
        check: &Check<'_>,
        id: &str,
        timeout: Option<Nanos>,
    ) -> Result<bool, CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let Some(plan) = BudgetPlan::new(&config, check, self.clock.now()) else {
            return Ok(false);
        };
        let (id, action) = (hold_id(check.domain, id), BudgetAction::Renew);
        let call = PlannedCall { plan: &plan, id, action, amounts: zeros(&plan) };
        let reply = self.call_planned(&config, &call, timeout).await?;
        Ok(matches!(&reply.outcome, BudgetOutcome::Changed(open) if open.contains(&true)))
    }

    /// Returns the budgets whose requests are likely not settled as intended, by path.
    #[must_use]
    pub fn settle_findings(&self) -> Vec<(Arc<str>, SettleFinding)> {
        self.settle_watch.findings()
    }

    /// Returns how often the holds of a check must be renewed; `None` if it meets no budget.
    #[must_use]
    pub fn renewal_interval_of_holds(&self, check: &Check<'_>) -> Option<Nanos> {
        let config = self.active.load_full().filter(|config| config.has_budgets)?;
        let plan = BudgetPlan::new(&config, check, self.clock.now())?;
        Some(Nanos(plan.usage.time_limit.0 / 2))
    }

    /// Adds an amount to the prepaid budgets of a check that count this unit. Returns the budgets, and
    /// the amount of the first top-up if one with this id was made before.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn top_up(
        &self,
        check: &Check<'_>,
        id: &str,
        (amount, unit): (Amount, BudgetUnit),
        timeout: Option<Nanos>,
    ) -> Result<(Vec<BudgetStatus>, Option<Amount>), CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let Some(mut plan) = BudgetPlan::new(&config, check, self.clock.now()) else {
            return Ok((Vec::new(), None));
        };
        let is_meant =
            |rule: &BudgetRule| rule.window == BudgetWindow::Prepaid && rule.unit == unit;
        plan.budgets.retain(|budget| is_meant(budget.rule));
        if plan.budgets.is_empty() {
            return Ok((Vec::new(), None));
        }
        let amounts = plan.budgets.iter().map(|_| amount).collect();
        let (id, action) = (top_up_id(check.domain, id), BudgetAction::TopUp);
        let call = PlannedCall { plan: &plan, id, action, amounts };
        let reply = self.call_planned(&config, &call, timeout).await?;
        // If it is new in one budget, it added something.
        let known = match &reply.outcome {
            BudgetOutcome::ToppedUp(known) => known.iter().copied().min().flatten(),
            _ => None,
        };
        Ok((statuses(&plan, &reply), known))
    }

    /// Returns the budgets that a check meets, with the usage of their last periods.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn read_budgets(
        &self,
        check: &Check<'_>,
        timeout: Option<Nanos>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let Some(plan) = BudgetPlan::new(&config, check, self.clock.now()) else {
            return Ok(Vec::new());
        };
        self.read_planned(&config, &plan, timeout).await
    }

    /// Returns the budgets that the last requests of this replica met, of one domain or of all, with
    /// the usage of their last periods. Those with the largest used share come first. Omits budgets
    /// that are no longer configured.
    ///
    /// Cost: a store call for each budget, because they may be in different slots of a Redis Cluster.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn list_budgets(
        &self,
        domain: Option<&str>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let mut budgets = Vec::new();
        for keys in self.met_budgets.all().chunks(READS_AT_ONCE) {
            let reads = keys.iter().map(|key| self.read_met(&config, key, domain));
            for read in join_all(reads).await {
                budgets.extend(read?);
            }
        }
        budgets.sort_by(|a, b| {
            let order = |it: &BudgetStatus| Reverse(it.used_millionths());
            order(a).cmp(&order(b)).then_with(|| a.key.as_bytes().cmp(b.key.as_bytes()))
        });
        Ok(budgets)
    }

    /// Reads a budget by its key. `None` if the configuration or the domain does not have it.
    async fn read_met(
        &self,
        config: &ActiveConfig,
        key: &CounterKey,
        wanted: Option<&str>,
    ) -> Result<Option<BudgetStatus>, CheckError> {
        let parsed = CounterKey::parse_budget(key.as_bytes());
        let of_domain = |(domain, _): &(&str, _)| wanted.is_none_or(|wanted| wanted == *domain);
        let Some((domain, entries)) = parsed.filter(of_domain) else { return Ok(None) };
        let (entries, cost) = (entries.into_iter().collect(), Cost::Charge(Hits(0)));
        let descriptors = std::iter::once(Descriptor { entries, cost, limit: None }).collect();
        let check = Check { domain, descriptors };
        let Some(mut plan) = BudgetPlan::new(config, &check, self.clock.now()) else {
            return Ok(None);
        };
        plan.budgets.retain(|budget| budget.key == *key);
        if plan.budgets.is_empty() {
            return Ok(None);
        }
        Ok(self.read_planned(config, &plan, None).await?.pop())
    }

    async fn read_planned(
        &self,
        config: &ActiveConfig,
        plan: &BudgetPlan<'_>,
        timeout: Option<Nanos>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let (id, action) = (HoldId(0, 0), BudgetAction::Read);
        let call = PlannedCall { plan, id, action, amounts: zeros(plan) };
        Ok(statuses(plan, &self.call_planned(config, &call, timeout).await?))
    }

    /// Learns the costs of a request that settled for the first time.
    fn learn(&self, call: &PlannedCall<'_, '_>, model: &str, reply: &BudgetReply) {
        let BudgetOutcome::Ended(ended) = &reply.outcome else { return };
        let costs = call.plan.budgets.iter().zip(&call.amounts).zip(ended);
        for ((budget, cost), ended) in costs {
            if ended.ended.is_first() {
                self.learned_costs.observe(&budget.key, model, *cost);
            }
        }
    }
}

fn zeros(plan: &BudgetPlan<'_>) -> SmallVec<[Amount; 2]> {
    plan.budgets.iter().map(|_| Amount(0)).collect()
}

fn statuses(plan: &BudgetPlan<'_>, reply: &BudgetReply) -> Vec<BudgetStatus> {
    let status = |(at, (budget, view)): (usize, (&PlannedBudget<'_>, &BudgetView))| BudgetStatus {
        path: Arc::clone(&budget.rule.path),
        key: budget.key.clone(),
        unit: budget.rule.unit,
        total: total(budget, view),
        view: *view,
        ended: match &reply.outcome {
            BudgetOutcome::Ended(ended) => ended.get(at).copied(),
            _ => None,
        },
        periods: match &reply.outcome {
            BudgetOutcome::Read(periods) => periods.get(at).cloned().unwrap_or_default(),
            _ => Vec::new(),
        },
    };
    plan.budgets.iter().zip(&reply.views).enumerate().map(status).collect()
}
