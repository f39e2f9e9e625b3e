//! The budgets of the memory store.
//!
//! Guarantees:
//! - One lock guards all budgets, so a call is applied as a whole.
//! - At most `max_keys` budgets exist. A full store fails calls that need another one.
//! - Each sweep removes budgets that need not be kept. It visits at most [`SWEPT_AT_ONCE`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use smallvec::SmallVec;

use super::MemoryStore;
use crate::budgets::{BudgetAction, BudgetCall, BudgetPart, BudgetReply, BudgetStore};
use crate::kernel::budget::Budget;
use crate::kernel::units::Nanos;
use crate::{StoreFailure, StoreReply};

/// The most budgets that one sweep visits.
const SWEPT_AT_ONCE: usize = 64;

type Name = Box<[u8]>;

/// A budget, and the instant from which it need not be kept; `None`: it is kept for ever.
pub(crate) type SavedBudget = (Budget, Option<Nanos>);

/// The name of a budget, and its state; `None` if it was removed.
pub(crate) type ChangedBudget = (Name, Option<SavedBudget>);

/// The budgets, by the bytes of their keys.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    by_name: BTreeMap<Name, StoredBudget>,
    /// The budgets that changed since the last collection; `None` if nobody collects them.
    changed: Option<BTreeSet<Name>>,
    /// The last budget that a sweep visited.
    swept: Option<Name>,
}

/// A budget in the store.
#[derive(Debug)]
struct StoredBudget {
    budget: Budget,
    /// `None`: for ever.
    keep_until: Option<Nanos>,
}

impl Budgets {
    /// Applies a call. Fails if a new budget does not fit.
    pub(super) fn apply(
        &mut self,
        call: &BudgetCall,
        now: Nanos,
        max_budgets: usize,
    ) -> Result<BudgetReply, StoreFailure> {
        let is_new = |part: &&BudgetPart| !self.by_name.contains_key(part.key.as_bytes());
        let new = call.budgets.iter().filter(is_new).count();
        if call.action != BudgetAction::Read && max_budgets < self.by_name.len() + new {
            return Err(StoreFailure::OutOfMemory);
        }
        let mut budgets: SmallVec<[Budget; 2]> = SmallVec::new();
        for part in &call.budgets {
            let stored = self.by_name.get_mut(part.key.as_bytes());
            budgets
                .push(stored.map(|stored| std::mem::take(&mut stored.budget)).unwrap_or_default());
        }
        let reply = call.apply(&mut budgets, now);
        for (part, budget) in call.budgets.iter().zip(budgets) {
            self.put(part, budget, now);
        }
        Ok(reply)
    }

    fn put(&mut self, part: &BudgetPart, budget: Budget, now: Nanos) {
        let (name, keep_until) = (part.key.as_bytes(), budget.keep_until(&part.terms, now));
        if let Some(changed) = self.changed.as_mut().filter(|changed| !changed.contains(name)) {
            changed.insert(name.into());
        }
        let changed = StoredBudget { budget, keep_until };
        if let Some(stored) = self.by_name.get_mut(name) {
            *stored = changed;
        } else if changed.is_kept(now) {
            self.by_name.insert(name.into(), changed);
        }
    }

    /// Removes budgets that need not be kept. The next call continues where this one ended.
    pub(super) fn sweep(&mut self, now: Nanos) {
        let after = self.swept.take().map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.by_name.range::<Name, _>((after, Bound::Unbounded));
        let visited: Vec<_> =
            all.take(SWEPT_AT_ONCE).map(|(name, it)| (name.clone(), it.is_kept(now))).collect();
        self.swept = visited.last().map(|(name, _)| name.clone());
        for (name, _) in visited.into_iter().filter(|(_, is_kept)| !is_kept) {
            self.by_name.remove(&name);
            if let Some(changed) = &mut self.changed {
                changed.insert(name);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_name.clear();
    }

    /// Collects changes from now on, for [`Self::take_changes`].
    pub(super) fn track_changes(&mut self) {
        self.changed = Some(BTreeSet::new());
    }

    /// Returns the budgets that changed since the last call; `None` for one that was removed.
    pub(super) fn take_changes(&mut self) -> Vec<ChangedBudget> {
        let changed = self.changed.as_mut().map(std::mem::take).unwrap_or_default();
        let saved = |name: Name| {
            let saved = self.by_name.get(&name).map(|it| (it.budget.clone(), it.keep_until));
            (name, saved)
        };
        changed.into_iter().map(saved).collect()
    }

    /// Inserts a saved budget, unless it need not be kept.
    pub(super) fn restore(&mut self, name: Name, (budget, keep_until): SavedBudget, now: Nanos) {
        let restored = StoredBudget { budget, keep_until };
        if restored.is_kept(now) {
            self.by_name.insert(name, restored);
        }
    }
}

impl StoredBudget {
    fn is_kept(&self, now: Nanos) -> bool {
        self.keep_until.is_none_or(|until| now < until)
    }
}

impl MemoryStore {
    /// Returns the budgets that changed since the last call; `None` for one that was removed.
    pub(crate) fn take_changed_budgets(&self) -> Vec<ChangedBudget> {
        self.budgets.lock().take_changes()
    }

    /// Inserts a saved budget, unless it need not be kept at `now`.
    pub(crate) fn restore_budget(&self, name: &[u8], saved: SavedBudget, now: Nanos) {
        self.budgets.lock().restore(name.into(), saved, now);
    }
}

impl BudgetStore for MemoryStore {
    fn call_budgets<'a>(
        &'a self,
        now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        StoreReply::Ready(self.budgets.lock().apply(call, now, self.max_keys()))
    }
}
