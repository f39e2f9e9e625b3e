//! A budget: an amount for each period, of which requests reserve a part before they know their cost.
//!
//! A request reserves an estimate in each of its budgets (a *hold*), and settles the actual amount when
//! it ends. Holds are entries of their own, never part of the settled amount.
//!
//! | request | settled | held | free of 100 |
//! |---|---|---|---|
//! | reserve 30 as `a`, reserve 50 as `b` | 0 | 80 | 20 |
//! | reserve 30 as `c`: denied | 0 | 80 | 20 |
//! | settle 10 as `a` | 10 | 50 | 40 |
//! | cancel `b` | 10 | 0 | 90 |
//!
//! ```
//! use sluicegate_kernel::budget::{Amount, Budget, BudgetTerms, Hold, HoldId, OnExpiry, Reserved};
//! use sluicegate_kernel::budget::reserve_all;
//! use sluicegate_kernel::rate::fixed_window::Windows;
//! use sluicegate_kernel::units::Nanos;
//!
//! let terms = BudgetTerms {
//!     amount: Amount(100),
//!     windows: Windows::Every(Nanos::from_secs(3_600)),
//!     time_limit: Nanos::from_secs(600),
//!     on_expiry: OnExpiry::Charge,
//!     is_enforced: true,
//! };
//! let (mut budget, mut ledger, now) = (Budget::default(), Vec::new(), Nanos::from_secs(1_000));
//! let mut reserve = |budget: &mut Budget, number, amount| {
//!     let mut holds = [Hold { budget, terms: &terms, amount: Amount(amount) }];
//!     reserve_all(&mut holds, HoldId(7, number), now, &mut |_| ())
//! };
//! assert_eq!(reserve(&mut budget, 1, 30), Reserved::Held);
//! assert_eq!(reserve(&mut budget, 2, 50), Reserved::Held);
//! assert!(matches!(reserve(&mut budget, 3, 30), Reserved::Denied(_)));
//! budget.settle(&terms, HoldId(7, 1), Amount(10), now, &mut |entry| ledger.push(entry));
//! assert_eq!((budget.settled(), budget.held(), ledger[0].change), (Amount(10), Amount(50), 10));
//! ```
//!
//! Guarantees:
//! - Of budgets that enforce, settled and held amounts together exceed the amount only by what requests
//!   cost more than they held.
//! - A hold ends once: settled, canceled or expired. A repeated reserve, settle or cancel changes nothing.
//! - A settle within `time_limit` after the expiry corrects the charge of the expiry.
//! - A denied reserve changes no budget.
//! - A hold settles in the period that took it, also after that period.
//! - The ledger entries of a period sum to what was settled in it.
//! - Cost: O(log n) for each hold that is reserved, settled, canceled or expired.
//!
//! Not covered:
//! - How to estimate a cost, and prices.
//! - Ids that are forgotten: [`KNOWN_FOR`] after a settle, `time_limit` after an expiry, or at once in a
//!   budget of [`MAX_ENTRIES`]. A later settle charges again.

mod terms;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::units::Nanos;
pub use terms::{
    Amount, BudgetTerms, Denial, DenialCause, Ended, HoldId, Ledger, LedgerEntry, OnExpiry,
    Reserved,
};

/// The time for which the id of a settled or canceled hold is known, so that repeats change nothing.
pub const KNOWN_FOR: Nanos = Nanos::from_secs(60);

/// The most entries of one budget: open holds, and ids that are still known.
pub const MAX_ENTRIES: usize = 131_072;

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

/// The state of one budget. The default is an unused one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The start of the current period; it never moves back.
    start: Nanos,
    settled: Amount,
    /// The sum of the open holds of the current period.
    held: Amount,
    entries: BTreeMap<HoldId, Entry>,
    deadlines: BTreeSet<(Nanos, HoldId)>,
}

/// A hold, or what is known of one that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    state: State,
    /// The held amount, or what was charged at the end.
    amount: Amount,
    /// The start of the period that took the hold.
    period: Nanos,
    /// The end of an open hold, or of this entry.
    until: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Open,
    /// A settle still corrects the charge.
    Expired,
    Final,
}

/// Takes a hold in each budget, or in none. An open hold of this id stays as it is. Emits
/// the charges of holds that expired.
pub fn reserve_all(
    holds: &mut [Hold<'_>],
    id: HoldId,
    now: Nanos,
    ledger: &mut Ledger<'_>,
) -> Reserved {
    for Hold { budget, terms, .. } in &mut *holds {
        budget.advance(terms, now, ledger);
    }
    if holds.iter().any(|hold| hold.budget.entries.get(&id).is_some_and(|it| !it.is_open())) {
        return Reserved::Ended;
    }
    for (index, Hold { budget, terms, amount }) in holds.iter_mut().enumerate() {
        if let Some(cause) = budget.denial(terms, id, *amount, now) {
            budget.clamp_deadlines(terms, now);
            return Reserved::Denied(Denial { index, cause, free: budget.free(terms) });
        }
    }
    for Hold { budget, terms, amount } in holds {
        budget.hold(terms, id, *amount, now);
    }
    Reserved::Held
}

impl Budget {
    /// The amount that was settled in the current period.
    #[must_use]
    pub const fn settled(&self) -> Amount {
        self.settled
    }

    /// The amount that open holds of the current period hold.
    #[must_use]
    pub const fn held(&self) -> Amount {
        self.held
    }

    /// Ends a hold with the actual amount. Without a hold, charges the amount to the current period.
    pub fn settle(
        &mut self,
        terms: &BudgetTerms,
        id: HoldId,
        actual: Amount,
        now: Nanos,
        ledger: &mut Ledger<'_>,
    ) -> Ended {
        self.advance(terms, now, ledger);
        let ended = self.end(id, actual, now, ledger);
        if ended == Ended::Unknown {
            self.charge(self.start, Amount(0), actual, ledger);
            if self.entries.len() < MAX_ENTRIES {
                self.insert_final(id, actual, self.start, now);
            }
        }
        ended
    }

    /// Ends a hold without a charge.
    pub fn cancel(
        &mut self,
        terms: &BudgetTerms,
        id: HoldId,
        now: Nanos,
        ledger: &mut Ledger<'_>,
    ) -> Ended {
        self.advance(terms, now, ledger);
        self.end(id, Amount(0), now, ledger)
    }

    /// Extends an open hold by the time limit. Returns `false` if no hold with this id is open.
    pub fn renew(
        &mut self,
        terms: &BudgetTerms,
        id: HoldId,
        now: Nanos,
        ledger: &mut Ledger<'_>,
    ) -> bool {
        self.advance(terms, now, ledger);
        let open = self.entries.get(&id).copied().filter(Entry::is_open);
        if let Some(entry) = open {
            self.insert(id, Entry { until: now.plus(terms.time_limit), ..entry });
        }
        open.is_some()
    }

    /// Ends the holds that expired, and begins the period at `now`.
    pub fn advance(&mut self, terms: &BudgetTerms, now: Nanos, ledger: &mut Ledger<'_>) {
        while let Some(&(until, id)) = self.deadlines.first() {
            if now < until {
                break;
            }
            let Some(entry) = self.remove(id) else { continue };
            if entry.is_open() {
                self.expire((id, entry), terms, ledger);
            }
        }
        if let Some((start, _)) = terms.windows.current(self.start, now)
            && self.start < start
        {
            (self.start, self.settled, self.held) = (start, Amount(0), Amount(0));
        }
    }

    fn expire(
        &mut self,
        (id, entry): (HoldId, Entry),
        terms: &BudgetTerms,
        ledger: &mut Ledger<'_>,
    ) {
        let charged = match terms.on_expiry {
            OnExpiry::Charge => entry.amount,
            OnExpiry::Release => Amount(0),
        };
        self.release(&entry);
        self.charge(entry.period, Amount(0), charged, ledger);
        let until = entry.until.plus(terms.time_limit);
        self.insert(id, Entry { state: State::Expired, amount: charged, until, ..entry });
    }

    /// Ends the hold of `id`, if there is one, with this charge.
    fn end(&mut self, id: HoldId, actual: Amount, now: Nanos, ledger: &mut Ledger<'_>) -> Ended {
        let Some(entry) = self.entries.get(&id).copied() else { return Ended::Unknown };
        let (ended, charged) = match entry.state {
            State::Final => return Ended::Before,
            State::Expired => (Ended::AfterExpiry, entry.amount),
            State::Open => {
                self.release(&entry);
                (Ended::Now, Amount(0))
            }
        };
        self.charge(entry.period, charged, actual, ledger);
        self.insert_final(id, actual, entry.period, now);
        ended
    }

    /// Removes an open hold from the held amount.
    fn release(&mut self, entry: &Entry) {
        if entry.period == self.start {
            self.held = self.held.less(entry.amount);
        }
    }

    /// Changes a charge of `before` to `after` in its period.
    fn charge(&mut self, period: Nanos, before: Amount, after: Amount, ledger: &mut Ledger<'_>) {
        if before == after {
            return;
        }
        if period == self.start {
            self.settled = self.settled.less(before).plus(after);
        }
        ledger(LedgerEntry { period, change: after.change_from(before) });
    }

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
        if MAX_ENTRIES <= self.entries.len() {
            return Some(DenialCause::Full);
        }
        let Some((_, end)) = terms.windows.current(self.start, now) else {
            return Some(DenialCause::OutsidePeriods);
        };
        if !terms.is_enforced || amount <= self.free(terms) {
            None
        } else if terms.amount < amount {
            Some(DenialCause::ExceedsAmount)
        } else if self.settled.plus(amount) <= terms.amount {
            Some(DenialCause::InFlight)
        } else {
            Some(DenialCause::Spent(end.since(now)))
        }
    }

    fn free(&self, terms: &BudgetTerms) -> Amount {
        terms.amount.less(self.settled).less(self.held)
    }

    fn hold(&mut self, terms: &BudgetTerms, id: HoldId, amount: Amount, now: Nanos) {
        if self.entries.contains_key(&id) {
            return;
        }
        self.held = self.held.plus(amount);
        let (period, until) = (self.start, now.plus(terms.time_limit));
        self.insert(id, Entry { state: State::Open, amount, period, until });
    }

    fn insert_final(&mut self, id: HoldId, amount: Amount, period: Nanos, now: Nanos) {
        let until = now.plus(KNOWN_FOR);
        self.insert(id, Entry { state: State::Final, amount, period, until });
    }

    fn insert(&mut self, id: HoldId, entry: Entry) {
        self.remove(id);
        self.entries.insert(id, entry);
        self.deadlines.insert((entry.until, id));
    }

    fn remove(&mut self, id: HoldId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.deadlines.remove(&(entry.until, id));
        Some(entry)
    }

    /// Shortens deadlines that a clock set which was ahead. Called only after a denial.
    fn clamp_deadlines(&mut self, terms: &BudgetTerms, now: Nanos) {
        let latest = now.plus(terms.time_limit.max(KNOWN_FOR)).plus(terms.time_limit);
        while let Some(&(until, id)) = self.deadlines.last()
            && latest < until
        {
            let Some(entry) = self.remove(id) else { return };
            self.insert(id, Entry { until: latest, ..entry });
        }
    }
}

impl Entry {
    fn is_open(&self) -> bool {
        self.state == State::Open
    }
}
