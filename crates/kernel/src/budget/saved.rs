//! The forms in which stores save budgets.

use serde::{Deserialize, Serialize};

use super::{Amount, Budget, Entry, HoldId, PeriodUsage, State};
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
    /// Returns the budget without the ids that were settled, and these ids.
    #[must_use]
    pub fn split_ended(mut self) -> (Self, Vec<(HoldId, Entry)>) {
        let ended = |(_, entry): &(_, Entry)| entry.state == State::Final;
        let all = std::mem::take(&mut self.entries).into_iter();
        let (ended, kept): (Vec<_>, Vec<_>) = all.partition(ended);
        self.deadlines = kept.iter().map(|(id, entry)| (entry.until, *id)).collect();
        self.entries = kept.into_iter().collect();
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
        let open = || budget.entries.values().filter(|entry| entry.is_open());
        let current = open().filter(|entry| entry.period == start);
        budget.held = current.fold(Amount(0), |sum, entry| sum.plus(entry.amount));
        budget.open_holds = u32::try_from(open().count()).unwrap_or(u32::MAX);
        budget
    }
}
