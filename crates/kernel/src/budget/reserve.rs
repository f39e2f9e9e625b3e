//! Takes holds in budgets.
//!
//! Guarantees:
//! - All budgets of a request hold its estimates, or none of them changes.

use super::{
    Amount, Budget, BudgetPeriod, BudgetTerms, Denial, DenialCause, Entry, HoldId, MAX_HOLDS,
    Reserved, State, TOP_UP_KNOWN_FOR,
};
use crate::units::Nanos;

/// A hold to take: the budget, its rule, and the estimate in the budget's unit.
#[derive(Debug)]
pub struct Hold<'b> {
    /// The budget.
    pub budget: &'b mut Budget,
    /// The rule of the budget.
    pub terms: &'b BudgetTerms,
    /// The estimate.
    pub amount: Amount,
}

/// Takes a hold in each budget, or in none. An open hold of this id stays as it is.
pub fn reserve_all(holds: &mut [Hold<'_>], id: HoldId, now: Nanos) -> Reserved {
    for Hold { budget, terms, .. } in &mut *holds {
        budget.advance(terms, now);
    }
    let known = |hold: &Hold<'_>| hold.budget.entries.get(&id).map(Entry::is_open);
    if holds.iter().any(|hold| known(hold) == Some(false)) {
        return Reserved::Ended;
    }
    if holds.iter().all(|hold| known(hold) == Some(true)) {
        return Reserved::Repeated;
    }
    for (index, Hold { budget, terms, amount }) in holds.iter_mut().enumerate() {
        if let Some(cause) = budget.denial(terms, id, *amount, now) {
            budget.clamp_deadlines(terms, now);
            return Reserved::Denied(Denial { index, cause });
        }
    }
    for Hold { budget, terms, amount } in holds {
        budget.hold(terms, id, *amount, now);
    }
    Reserved::Held
}

impl Budget {
    /// Returns why a hold cannot be taken; `None` if it can, or if the id has one.
    fn denial(
        &self,
        terms: &BudgetTerms,
        id: HoldId,
        amount: Amount,
        now: Nanos,
    ) -> Option<DenialCause> {
        if self.entries.contains_key(&id) {
            return None;
        }
        if terms.period.current(self.start, now).is_none() {
            return Some(DenialCause::OutsidePeriods);
        }
        let (total, settled) = (self.total(terms), self.usage().settled);
        if !terms.is_enforced {
            None
        } else if self.is_full() {
            Some(DenialCause::Full)
        } else if amount <= self.free(terms) {
            None
        } else if settled.plus(amount) <= total {
            Some(DenialCause::InFlight)
        } else if total < amount {
            Some(DenialCause::ExceedsAmount)
        } else {
            Some(DenialCause::Spent)
        }
    }

    fn is_full(&self) -> bool {
        MAX_HOLDS <= self.open_holds()
    }

    fn hold(&mut self, terms: &BudgetTerms, id: HoldId, amount: Amount, now: Nanos) {
        // In shadow mode, a full budget allows the request without a hold.
        if self.entries.contains_key(&id) || self.is_full() {
            return;
        }
        self.held = self.held.plus(amount);
        let (period, until) = (self.start, now.plus(terms.time_limit));
        self.insert(id, Entry { state: State::Open, amount, period, until });
    }

    /// Shortens deadlines that a clock set which was ahead. Called only after a denial.
    fn clamp_deadlines(&mut self, terms: &BudgetTerms, now: Nanos) {
        let latest = now.plus(match terms.period {
            BudgetPeriod::Each(_) => terms.time_limit.plus(terms.time_limit),
            BudgetPeriod::Prepaid => TOP_UP_KNOWN_FOR.max(terms.time_limit.plus(terms.time_limit)),
        });
        while let Some((until, id)) = self.open.last().max(self.ended.last()).copied()
            && latest < until
        {
            let Some(entry) = self.remove(id) else { return };
            self.insert(id, Entry { until: latest, ..entry });
        }
    }
}
