//! Repeats calls that end holds until the store replies.
//!
//! A settle that fails would leave its hold to the expiry, which charges the estimate. A reserve
//! without a reply may have made a hold, and its caller was refused: it is canceled.
//!
//! Guarantees:
//! - A repeated settle or cancel charges once, because the store knows the id.
//! - At most [`MAX_CALLS`] calls are repeated at once, each for at most a `time_limit`.
//!
//! Not covered:
//! - A process that ends: the holds expire.
//! - Charges without an id: a repeat could charge twice.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::Clock;
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
        _ => None,
    }
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
        if store.call_budgets(clock.now(), &call).wait().await.is_ok() {
            return;
        }
    }
}
