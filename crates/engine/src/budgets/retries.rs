//! Repeats calls that end holds or charge until the store replies.
//!
//! A settle that fails would leave its hold to the expiry, which charges the estimate. A reserve
//! without a reply may have made a hold, and its caller was refused: it is canceled.
//!
//! Guarantees:
//! - A repeated settle or cancel charges once, because the store knows the id.
//! - A charge without an id is repeated only while the store cannot have made it.
//! - At most [`MAX_CALLS`] calls are repeated at once, each for at most a `time_limit`.
//!
//! Not covered:
//! - A process that ends: the holds expire.
//! - Charges without an id whose reply is lost: a repeat could charge twice.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::kernel::budget::Amount;
use crate::kernel::units::Nanos;
use crate::store::budgets::{BudgetAction, BudgetCall};
use crate::store::{Store, StoreFailure};

/// The most calls that are repeated at once.
const MAX_CALLS: usize = 10_000;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// The calls that are repeated.
#[derive(Debug)]
pub(crate) struct Retries(Arc<Semaphore>);

impl Default for Retries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CALLS)))
    }
}

impl Retries {
    pub(super) fn slots(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0)
    }
}

/// Returns the call to repeat after a failure, if there is one.
fn call_to_repeat(call: &BudgetCall, cause: StoreFailure) -> Option<BudgetCall> {
    match call.action {
        // Only a reserve that was sent may have made a hold.
        BudgetAction::Reserve if cause.is_unsafe_to_repeat() => {
            Some(BudgetCall { action: BudgetAction::Cancel, ..call.clone() })
        }
        BudgetAction::Settle | BudgetAction::SettleHeld | BudgetAction::Cancel => {
            Some(call.clone())
        }
        BudgetAction::Charge if is_charge_lost(call, cause) => Some(call.clone()),
        _ => None,
    }
}

/// Returns `true` if the failed call would have charged an amount, and certainly did not.
fn is_charge_lost(call: &BudgetCall, cause: StoreFailure) -> bool {
    let is_unknown = matches!(cause, StoreFailure::NotSaved | StoreFailure::Other);
    let is_charge = call.budgets.iter().any(|part| Amount(0) < part.amount);
    is_charge && !is_unknown && !cause.is_unsafe_to_repeat()
}

/// Repeats a failed call, if that is needed, until the store replies.
pub(super) async fn repeat(
    (store, clock, slots): (Arc<dyn Store>, Arc<Clock>, Arc<Semaphore>),
    failed: &BudgetCall,
    cause: StoreFailure,
) {
    let (Some(call), Ok(_slot)) = (call_to_repeat(failed, cause), slots.try_acquire_owned()) else {
        return;
    };
    let limit = call.budgets.first().map_or(Nanos(0), |part| part.terms.time_limit);
    let end = clock.steady().plus(limit);
    while clock.steady() < end {
        tokio::time::sleep(PAUSE).await;
        match store.call_budgets(clock.now(), &call).wait().await {
            Ok(_) => return,
            Err(cause) if call_to_repeat(&call, cause).is_none() => return,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::budget::{BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
    use crate::kernel::key::CounterKey;
    use crate::store::Placement;
    use crate::store::budgets::BudgetPart;

    fn is_repeated(action: BudgetAction, amount: u64, cause: StoreFailure) -> bool {
        let terms = BudgetTerms {
            amount: Amount(100),
            period: BudgetPeriod::Prepaid,
            time_limit: Nanos::SECOND,
            on_expiry: OnExpiry::Charge,
            is_enforced: true,
        };
        let (key, placement) = (CounterKey::EMPTY, Placement::ByKey);
        let part = BudgetPart { key, placement, terms, amount: Amount(amount) };
        let call = BudgetCall { id: HoldId(7, 1), action, budgets: [part].into_iter().collect() };
        call_to_repeat(&call, cause).is_some()
    }

    #[test]
    fn only_charges_that_the_store_cannot_have_made_are_repeated() {
        assert!(is_repeated(BudgetAction::Charge, 5, StoreFailure::BreakerOpen));
        assert!(!is_repeated(BudgetAction::Charge, 0, StoreFailure::BreakerOpen));
        for cause in [StoreFailure::TimedOut, StoreFailure::NotSaved, StoreFailure::Other] {
            assert!(!is_repeated(BudgetAction::Charge, 5, cause), "{cause:?}");
            assert!(is_repeated(BudgetAction::Settle, 5, cause), "{cause:?}");
        }
    }
}
