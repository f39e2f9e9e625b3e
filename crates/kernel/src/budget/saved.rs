//! The forms in which stores save budgets, and for how long.

use serde::{Deserialize, Serialize};

use super::{Amount, Budget, BudgetPeriod, BudgetTerms, Entry, HoldId, KEPT_PERIODS, PeriodUsage};
use crate::units::Nanos;

/// The saved form of a budget: all that is not derived.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedBudget {
    start: Nanos,
    credit: Amount,
    periods: Vec<PeriodUsage>,
    entries: Vec<(HoldId, Entry)>,
}

impl Budget {
    /// Returns the instant from which the budget need not be kept: no id is known, and no period is
    /// kept. `None` if the budget must be kept for ever.
    #[must_use]
    pub fn keep_until(&self, terms: &BudgetTerms, now: Nanos) -> Option<Nanos> {
        let mut last = self.ended.last().map_or(now, |(until, _)| *until);
        if let Some((until, _)) = self.open.last() {
            // An expiry charges the hold, and a settle may correct it for another time limit.
            last = last.max(until.plus(terms.time_limit));
        } else if self.periods.is_empty() && self.credit == Amount(0) {
            return Some(last);
        }
        let BudgetPeriod::Each(_) = terms.period else { return None };
        let (start, end) = terms.period.current(self.start, now)?;
        let kept = (1..KEPT_PERIODS).fold(end, |until, _| until.plus(end.since(start)));
        Some(last.max(kept))
    }

    /// Returns the budget without the ended ids that `is_apart` selects, and these ids.
    #[must_use]
    pub fn split_ended(
        mut self,
        is_apart: impl Fn(HoldId) -> bool,
    ) -> (Self, Vec<(HoldId, Entry)>) {
        let all = self.entries.iter();
        let ended = all.filter(|(id, entry)| !entry.is_open() && is_apart(**id)).map(|(id, _)| *id);
        let ended: Vec<_> = ended.collect();
        let ended = ended.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect();
        (self, ended)
    }

    /// Adds ids that [`Self::split_ended`] returned.
    pub fn add_ended(&mut self, ended: impl IntoIterator<Item = (HoldId, Entry)>) {
        for (id, entry) in ended {
            self.insert(id, entry);
        }
    }
}

impl From<Budget> for SavedBudget {
    fn from(budget: Budget) -> Self {
        let Budget { start, credit, periods, entries, .. } = budget;
        Self { start, credit, periods, entries: entries.into_iter().collect() }
    }
}

impl From<SavedBudget> for Budget {
    fn from(saved: SavedBudget) -> Self {
        let SavedBudget { start, credit, periods, entries } = saved;
        let mut budget = Self { start, credit, periods, ..Self::default() };
        for (id, entry) in entries {
            budget.insert(id, entry);
        }
        let entries = budget.entries.values();
        let current = entries.filter(|entry| entry.is_open() && entry.period == start);
        budget.held = current.fold(Amount(0), |sum, entry| sum.plus(entry.amount));
        budget
    }
}
