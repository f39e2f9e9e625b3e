//! The holds of a request whose check is not decided yet.

use std::sync::Arc;

use crate::clock::Clock;
use crate::store::Store;
use crate::store::budgets::{BudgetAction, BudgetCall};

/// The holds of a request. Dropping them cancels them, unless they are kept.
#[derive(Debug)]
pub(crate) struct HeldBudgets {
    store: Arc<dyn Store>,
    clock: Arc<Clock>,
    /// The cancel. `None` after [`Self::keep`].
    cancel: Option<Box<BudgetCall>>,
}

impl HeldBudgets {
    /// Creates the holds of `reserve`, before it is sent: a reserve whose reply is lost may have made
    /// them.
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<Clock>, reserve: &BudgetCall) -> Self {
        let cancel = BudgetCall { action: BudgetAction::Cancel, ..reserve.clone() };
        Self { store, clock, cancel: Some(Box::new(cancel)) }
    }

    /// Leaves the holds to the settle of the request, or to their expiry.
    pub(crate) fn keep(mut self) {
        self.cancel = None;
    }
}

impl Drop for HeldBudgets {
    fn drop(&mut self) {
        let Some(cancel) = self.cancel.take() else { return };
        let now = self.clock.now();
        if self.store.is_synchronous() {
            drop(self.store.call_budgets(now, &cancel));
            return;
        }
        let store = Arc::clone(&self.store);
        // Without a runtime, the process ends, and the holds expire.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { store.call_budgets(now, &cancel).wait().await });
        }
    }
}
