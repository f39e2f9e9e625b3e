//! Reserves and charges at the start of a request.

use smallvec::SmallVec;

use super::plan::{BudgetPlan, NoPrice, PlannedBudget, model_of};
use super::store_calls::{PlannedCall, total};
use super::{BudgetUse, HeldBudgets, Reserve, hold_id};
use crate::active_config::ActiveConfig;
use crate::config::FallbackMode;
use crate::config::budget::Estimate;
use crate::config::concurrency::RejectReply;
use crate::config::prices::TokenCounts;
use crate::kernel::budget::{Amount, BudgetView, DenialCause, HoldId, Reserved};
use crate::kernel::decision::{Check, Reason, RuleVerdict};
use crate::kernel::units::Nanos;
use crate::store::StoreFailure;
use crate::store::budgets::{BudgetAction, BudgetOutcome, MAX_BUDGETS};
use crate::telemetry::event::{BudgetEvent, Event as _};
use crate::{CheckError, Engine, Rejection};

/// The HTTP status of a request that a budget rejects.
const STATUS: u16 = 429;

/// The wait after a rejection because of requests in flight: about the time of one of them.
const RETRY_WHILE_HELD: Nanos = Nanos::SECOND;

/// The result of a check's budgets.
pub(crate) enum BudgetAnswer {
    /// The budgets allow the check. Contains its holds.
    Allowed(Option<HeldBudgets>),
    /// A budget rejects the check.
    Rejected(Rejection),
}

impl Engine {
    /// Applies a check to its budgets, before its rate limits are decided.
    pub(crate) async fn use_budgets<'q>(
        &self,
        config: &ActiveConfig,
        (check, budgets): (&Check<'q>, BudgetUse<'_, 'q>),
        time_left: Option<Nanos>,
    ) -> Result<BudgetAnswer, CheckError> {
        let deadline = time_left.map(|left| self.clock().now().plus(left));
        let covered = match budgets {
            BudgetUse::Reserve(reserve) => reserve.covered,
            BudgetUse::Charge => check,
        };
        let plan = BudgetPlan::new(config, covered, self.clock.now());
        let Some(plan) = plan else { return Ok(BudgetAnswer::Allowed(None)) };
        let most = MAX_BUDGETS;
        if most < plan.budgets.len() {
            return Err(CheckError::TooManyDescriptors { got: plan.budgets.len(), most });
        }
        self.met_budgets.add(plan.budgets.iter().map(|budget| &budget.key));
        let answer = match budgets {
            BudgetUse::Reserve(reserve) => self.reserve(config, &plan, reserve, deadline).await?,
            BudgetUse::Charge => self.charge(config, &plan, deadline).await?,
        };
        if let BudgetAnswer::Rejected(rejection) = &answer {
            self.publish_rejected_check(check, rejection, None);
        }
        Ok(answer)
    }

    async fn reserve(
        &self,
        config: &ActiveConfig,
        plan: &BudgetPlan<'_>,
        reserve: Reserve<'_, '_>,
        deadline: Option<Nanos>,
    ) -> Result<BudgetAnswer, CheckError> {
        let model = model_of(plan.usage, reserve.covered);
        let amounts = plan.budgets.iter().map(|budget| {
            // Shadow mode never denies.
            let is_shadow = budget.rule.shadow || self.is_shadow();
            let estimate = self.estimate(plan, budget, model, reserve.tokens);
            estimate.or(if is_shadow { Ok(Amount(0)) } else { Err(budget) })
        });
        let amounts: SmallVec<[Amount; 2]> = match amounts.collect() {
            Ok(amounts) => amounts,
            Err(budget) => return Ok(reject(config, budget, Reason::NoPrice, None)),
        };
        let id = hold_id(reserve.covered.domain, reserve.id);
        let call = PlannedCall { plan, id, action: BudgetAction::Reserve, amounts };
        let reply = self.call_with_current_periods(&call, deadline).await;
        let (reply, held) = match reply {
            Ok(reply) => reply,
            Err(cause) => return self.without_store(config, plan, cause),
        };
        let BudgetOutcome::Reserved(reserved) = reply.outcome else {
            return self.without_store(config, plan, StoreFailure::InvalidReply);
        };
        match reserved {
            Reserved::Held => {
                BudgetEvent::Reserved.emit();
                self.publish_budgets(config, plan, &reply);
                let time_limit = plan.usage.time_limit;
                for budget in &plan.budgets {
                    self.settle_watch.reserved(&budget.rule.path, reply.now, time_limit);
                }
                Ok(BudgetAnswer::Allowed(held))
            }
            Reserved::Repeated | Reserved::Ended => {
                // A denial and no error, which many proxies let pass: a client may choose ids.
                BudgetEvent::RepeatedId.emit();
                let first = plan.budgets.first().ok_or(CheckError::NoConfig)?;
                Ok(reject(config, first, Reason::RepeatedId, None))
            }
            Reserved::Denied(denial) => {
                BudgetEvent::Denied.emit();
                let (Some(budget), Some(view)) =
                    (plan.budgets.get(denial.index), reply.views.get(denial.index))
                else {
                    return self.without_store(config, plan, StoreFailure::InvalidReply);
                };
                let amounts = (total(budget, view), view);
                let (reason, wait) = reason_of(denial.cause, amounts, reply.now);
                Ok(reject(config, budget, reason, wait))
            }
        }
    }

    /// Returns what a request is expected to cost a budget.
    fn estimate(
        &self,
        plan: &BudgetPlan<'_>,
        budget: &PlannedBudget<'_>,
        model: &str,
        tokens: Option<u64>,
    ) -> Result<Amount, NoPrice> {
        let usage = plan.usage;
        // An estimate of 0 would pass a spent budget.
        let cost = |tokens: u64| {
            let tokens = TokenCounts { any: tokens.max(1), ..TokenCounts::default() };
            plan.cost(budget.rule, &tokens)
        };
        let asked = cost(tokens.unwrap_or(usage.at_most).min(usage.at_most));
        match usage.estimate {
            Estimate::Tokens(tokens) => cost(tokens.min(usage.at_most)),
            Estimate::MaxTokens => asked,
            Estimate::Learn => {
                let learned = self.learned_costs.estimate(&budget.key, model);
                let learned = learned.map(|learned| learned.max(Amount(1)));
                asked.map(|asked| learned.map_or(asked, |learned| learned.min(asked)))
            }
        }
    }

    /// Charges the hits of a check.
    async fn charge(
        &self,
        config: &ActiveConfig,
        plan: &BudgetPlan<'_>,
        deadline: Option<Nanos>,
    ) -> Result<BudgetAnswer, CheckError> {
        let amounts = plan.budgets.iter().map(|budget| {
            let tokens = TokenCounts { any: budget.hits, ..TokenCounts::default() };
            plan.cost(budget.rule, &tokens).map_err(|NoPrice| budget)
        });
        let amounts: SmallVec<[Amount; 2]> = match amounts.collect() {
            Ok(amounts) => amounts,
            Err(budget) => return Ok(reject(config, budget, Reason::NoPrice, None)),
        };
        let call = PlannedCall { plan, id: HoldId(0, 0), action: BudgetAction::Charge, amounts };
        let (reply, _) = match self.call_with_current_periods(&call, deadline).await {
            Ok(reply) => reply,
            Err(cause) => return self.without_store(config, plan, cause),
        };
        let BudgetOutcome::Changed(allowed) = &reply.outcome else {
            return self.without_store(config, plan, StoreFailure::InvalidReply);
        };
        self.publish_budgets(config, plan, &reply);
        let denied = allowed.iter().position(|is_allowed| !is_allowed);
        let denied = denied.and_then(|at| plan.budgets.get(at).zip(reply.views.get(at)));
        let Some((budget, view)) = denied else { return Ok(BudgetAnswer::Allowed(None)) };
        BudgetEvent::Denied.emit();
        let is_held = view.usage.settled < total(budget, view);
        let cause = if is_held { DenialCause::InFlight } else { DenialCause::Spent };
        let (reason, wait) = reason_of(cause, (total(budget, view), view), reply.now);
        Ok(reject(config, budget, reason, wait))
    }

    /// Returns the answer while the store fails: that of the strictest budget.
    fn without_store(
        &self,
        config: &ActiveConfig,
        plan: &BudgetPlan<'_>,
        cause: StoreFailure,
    ) -> Result<BudgetAnswer, CheckError> {
        BudgetEvent::StoreFailed.emit();
        let enforced = || plan.budgets.iter().filter(|it| !it.rule.shadow && !self.is_shadow());
        let with = |mode| enforced().find(|budget| budget.rule.on_store_failure == mode);
        if let Some(budget) = with(FallbackMode::Deny) {
            let reason = match cause {
                StoreFailure::OutOfMemory => Reason::StoreFull,
                _ => Reason::StoreDownDenied,
            };
            return Ok(reject(config, budget, reason, Some(RETRY_WHILE_HELD)));
        }
        if with(FallbackMode::Error).is_some() {
            return Err(CheckError::StoreUnavailable(cause));
        }
        Ok(BudgetAnswer::Allowed(None))
    }
}

fn reject(
    config: &ActiveConfig,
    budget: &PlannedBudget<'_>,
    reason: Reason,
    retry_after: Option<Nanos>,
) -> BudgetAnswer {
    config.counters.count(budget.rule.number, RuleVerdict::Deny);
    let reject = RejectReply { status: STATUS, retry_after, ..RejectReply::default() };
    let path = budget.rule.path.as_ref().into();
    BudgetAnswer::Rejected(Rejection { reject, reason, path, load: None })
}

/// Returns the reason of a denial, and the wait after which the request may be allowed.
fn reason_of(
    cause: DenialCause,
    (total, view): (Amount, &BudgetView),
    now: Nanos,
) -> (Reason, Option<Nanos>) {
    match cause {
        // A blocked id, or no top-up yet.
        DenialCause::ExceedsAmount if total == Amount(0) => (Reason::BudgetSpent, None),
        DenialCause::ExceedsAmount => (Reason::LargerThanBudget, None),
        DenialCause::Spent | DenialCause::OutsidePeriods => {
            (Reason::BudgetSpent, view.end.map(|end| end.since(now)))
        }
        DenialCause::InFlight => (Reason::BudgetHeld, Some(RETRY_WHILE_HELD)),
        DenialCause::Full => (Reason::StoreFull, Some(RETRY_WHILE_HELD)),
    }
}
