//! The budgets of the memory store.
//!
//! Guarantees:
//! - One lock guards all budgets, so a call is applied as a whole.
//! - At most `max_keys` budgets exist. A full store fails calls that need another one.
//! - The file store saves a budget only if a call changed it. The passing of time is no change.
//! - Each sweep removes budgets that need not be kept. It visits at most [`SWEPT_AT_ONCE`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use smallvec::SmallVec;

use crate::StoreFailure;
use crate::budgets::{BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply};
use crate::kernel::budget::{Amount, Budget, Ended, Reserved};
use crate::kernel::units::Nanos;

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
        let is_change = is_change(call, &reply.outcome);
        for (part, budget) in call.budgets.iter().zip(budgets) {
            self.put(part, budget, now);
            if is_change {
                self.note_change(part.key.as_bytes());
            }
        }
        Ok(reply)
    }

    fn note_change(&mut self, name: &[u8]) {
        if let Some(changed) = self.changed.as_mut().filter(|changed| !changed.contains(name)) {
            changed.insert(name.into());
        }
    }

    fn put(&mut self, part: &BudgetPart, budget: Budget, now: Nanos) {
        let (name, keep_until) = (part.key.as_bytes(), budget.keep_until(&part.terms, now));
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
            self.note_change(&name);
        }
    }

    pub(super) fn clear(&mut self) {
        for (name, _) in std::mem::take(&mut self.by_name) {
            self.note_change(&name);
        }
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

    /// Returns all budgets, and forgets which of them changed.
    pub(super) fn take_all(&mut self) -> Vec<ChangedBudget> {
        self.changed.as_mut().map(std::mem::take);
        let saved = |(name, it): (&Name, &StoredBudget)| {
            (name.clone(), Some((it.budget.clone(), it.keep_until)))
        };
        self.by_name.iter().map(saved).collect()
    }

    /// Inserts a saved budget. One that need not be kept counts as removed.
    pub(super) fn restore(&mut self, name: &[u8], (budget, keep_until): SavedBudget, now: Nanos) {
        let restored = StoredBudget { budget, keep_until };
        if restored.is_kept(now) {
            self.by_name.insert(name.into(), restored);
        } else {
            self.note_change(name);
        }
    }

    /// Returns the number of budgets.
    pub(super) fn count(&self) -> usize {
        self.by_name.len()
    }
}

/// Returns `true` if a call with this outcome changed a budget other than by the passing of time.
fn is_change(call: &BudgetCall, outcome: &BudgetOutcome) -> bool {
    match outcome {
        BudgetOutcome::Reserved(reserved) => *reserved == Reserved::Held,
        BudgetOutcome::Ended(ended) => ended.iter().any(|it| it.ended != Ended::Before),
        BudgetOutcome::Changed(_) if call.action == BudgetAction::Charge => {
            call.budgets.iter().any(|part| Amount(0) < part.amount)
        }
        BudgetOutcome::Changed(changed) => changed.contains(&true),
        BudgetOutcome::ToppedUp(known) => known.contains(&None),
        BudgetOutcome::Read(_) => false,
    }
}

impl StoredBudget {
    fn is_kept(&self, now: Nanos) -> bool {
        self.keep_until.is_none_or(|until| now < until)
    }
}
