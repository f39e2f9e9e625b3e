//! The interface of a store of budgets: one call for all budgets of a check.
//!
//! Guarantees:
//! - A store applies a call as a whole, or fails it.
//! - All stores reply as [`BudgetCall::apply`] does, on budgets that no other call changes meanwhile.
//!
//! Not covered:
//! - Calls whose budgets are in different slots of a Redis Cluster: they fail.

use smallvec::SmallVec;

use super::{Placement, StoreFailure, StoreReply};
use crate::kernel::budget::{
    Amount, Budget, BudgetTerms, BudgetView, EndedHold, Hold, HoldId, PeriodUsage, Reserved,
    reserve_all,
};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

/// The most budgets of one call.
pub const MAX_BUDGETS: usize = 32;

/// A store of budgets. The default method serves a store without them.
pub trait BudgetStore: Send + Sync {
    /// Applies a call at the instant `now`; a shared store uses its own clock.
    fn call_budgets<'a>(
        &'a self,
        _now: Nanos,
        _call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        StoreReply::Ready(Err(StoreFailure::Other))
    }
}

/// A call to the budgets of one check.
#[derive(Clone, Debug)]
pub struct BudgetCall {
    /// The request, or the top-up. Not used to charge and to read.
    pub id: HoldId,
    /// What to do with all budgets.
    pub action: BudgetAction,
    /// The budgets, each once: at least one, at most [`MAX_BUDGETS`].
    pub budgets: SmallVec<[BudgetPart; 2]>,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetAction {
    /// Takes a hold in each budget, or in none.
    Reserve,
    /// Ends the holds with the actual amounts.
    Settle,
    /// Ends the holds with the held amounts, because the actual ones are unknown.
    SettleHeld,
    /// Ends the holds without a charge.
    Cancel,
    /// Extends the holds by the time limit.
    Renew,
    /// Charges the amounts without holds; an amount of 0 changes nothing. Has no id.
    Charge,
    /// Adds the amounts to prepaid budgets.
    TopUp,
    /// Reads the amounts, and the usage of the last periods.
    Read,
}

/// One budget of a call.
#[derive(Clone, Debug)]
pub struct BudgetPart {
    /// The budget's key.
    pub key: CounterKey,
    /// The choice of its Redis Cluster slot.
    pub placement: Placement,
    /// The rule of the budget.
    pub terms: BudgetTerms,
    /// The amount to reserve, to settle, to charge or to add; otherwise 0.
    pub amount: Amount,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetReply {
    /// The result.
    pub outcome: BudgetOutcome,
    /// The amounts of each budget after the call, in the order of the call.
    pub views: SmallVec<[BudgetView; 2]>,
    /// The instant of the call.
    pub now: Nanos,
}

/// The result of a call, by action. A list has one item for each budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetOutcome {
    /// The result of a reserve.
    Reserved(Reserved),
    /// The results of a settle, of either kind, or a cancel.
    Ended(SmallVec<[EndedHold; 2]>),
    /// Renew: `true` for each hold that was open. Charge: `false` for each budget that denies,
    /// because nothing was free before.
    Changed(SmallVec<[bool; 2]>),
    /// The amounts of earlier top-ups with this id, which changed nothing now; `None`: it is new.
    ToppedUp(SmallVec<[Option<Amount>; 2]>),
    /// The usage of the last periods of each budget.
    Read(Vec<Vec<PeriodUsage>>),
}

impl BudgetCall {
    /// Applies this call to its budgets, which are in the order of the call.
    pub fn apply(&self, budgets: &mut [Budget], now: Nanos) -> BudgetReply {
        let id = self.id;
        let outcome = match self.action {
            BudgetAction::Reserve => BudgetOutcome::Reserved(self.reserve(budgets, now)),
            BudgetAction::Settle => BudgetOutcome::Ended(self.for_each(budgets, |budget, part| {
                budget.settle(&part.terms, id, part.amount, now)
            })),
            BudgetAction::SettleHeld => BudgetOutcome::Ended(
                self.for_each(budgets, |budget, part| budget.settle_held(&part.terms, id, now)),
            ),
            BudgetAction::Cancel => BudgetOutcome::Ended(
                self.for_each(budgets, |budget, part| budget.cancel(&part.terms, id, now)),
            ),
            BudgetAction::Renew => BudgetOutcome::Changed(
                self.for_each(budgets, |budget, part| budget.renew(&part.terms, id, now)),
            ),
            BudgetAction::Charge => BudgetOutcome::Changed(
                self.for_each(budgets, |budget, part| budget.charge(&part.terms, part.amount, now)),
            ),
            BudgetAction::TopUp => {
                BudgetOutcome::ToppedUp(self.for_each(budgets, |budget, part| {
                    budget.top_up(&part.terms, id, part.amount, now)
                }))
            }
            BudgetAction::Read => BudgetOutcome::Read(
                self.for_each(budgets, |budget, part| {
                    budget.advance(&part.terms, now);
                    budget.periods().to_vec()
                })
                .into_vec(),
            ),
        };
        let views = self.for_each(budgets, |budget, part| budget.view(&part.terms, now));
        BudgetReply { outcome, views, now }
    }

    fn reserve(&self, budgets: &mut [Budget], now: Nanos) -> Reserved {
        let mut holds: SmallVec<[Hold<'_>; 2]> = SmallVec::new();
        for (budget, part) in budgets.iter_mut().zip(&self.budgets) {
            holds.push(Hold { budget, terms: &part.terms, amount: part.amount });
        }
        reserve_all(&mut holds, self.id, now)
    }

    fn for_each<T>(
        &self,
        budgets: &mut [Budget],
        apply: impl Fn(&mut Budget, &BudgetPart) -> T,
    ) -> SmallVec<[T; 2]> {
        budgets.iter_mut().zip(&self.budgets).map(|(budget, part)| apply(budget, part)).collect()
    }
}
