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
//! A *prepaid* budget has no periods: its amount is the sum of its top-ups.
//!
//! ```
//! use sluicegate_kernel::budget::{Amount, Budget, BudgetPeriod, BudgetTerms, Denial, DenialCause};
//! use sluicegate_kernel::budget::{Hold, HoldId, OnExpiry, Reserved, reserve_all};
//! use sluicegate_kernel::rate::fixed_window::Windows;
//! use sluicegate_kernel::units::Nanos;
//!
//! let terms = BudgetTerms {
//!     amount: Amount(100),
//!     period: BudgetPeriod::Each(Windows::Every(Nanos::from_secs(3_600))),
//!     time_limit: Nanos::from_secs(600),
//!     on_expiry: OnExpiry::Charge,
//!     is_enforced: true,
//! };
//! let (mut budget, now) = (Budget::default(), Nanos::from_secs(1_000));
//! let reserve = |budget: &mut Budget, number, amount| {
//!     let mut holds = [Hold { budget, terms: &terms, amount: Amount(amount) }];
//!     reserve_all(&mut holds, HoldId(7, number), now)
//! };
//! assert_eq!(reserve(&mut budget, 1, 30), Reserved::Held);
//! assert_eq!(reserve(&mut budget, 2, 50), Reserved::Held);
//! let denial = Denial { index: 0, cause: DenialCause::InFlight };
//! assert_eq!(reserve(&mut budget, 3, 30), Reserved::Denied(denial));
//! budget.settle(&terms, HoldId(7, 1), Amount(10), now);
//! assert_eq!((budget.usage().settled, budget.held()), (Amount(10), Amount(50)));
//! ```
//!
//! Guarantees:
//! - Of budgets that enforce, settled and held amounts together exceed the amount by at most the
//!   excess: what requests cost more than they held.
//! - A hold is charged once: the first settle is final. A repeated reserve or settle changes nothing.
//! - A settle within `time_limit` after an expiry or a cancel corrects its charge. A repeated cancel
//!   only extends this time.
//! - A denied reserve changes no budget.
//! - A hold settles in the period that took it, also after that period.
//! - The settled amounts of the last [`KEPT_PERIODS`] periods are kept.
//! - Cost: O(log n) for each hold that is reserved, settled, canceled or expired.
//!
//! Not covered:
//! - How to estimate a cost, and prices.
//! - Ids that are forgotten: `time_limit` after their end, or earlier in a budget of [`MAX_ENTRIES`]. A
//!   later reserve holds again, and a later settle charges again.
//! - Periods without a use: they have no entry in [`Budget::periods`].

mod cost_learner;
mod reserve;
mod saved;
mod terms;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::units::Nanos;
pub use cost_learner::{CostLearner, EXCESS_SHARE};
pub use reserve::{Hold, reserve_all};
pub use terms::{
    Amount, BudgetPeriod, BudgetTerms, BudgetView, Denial, DenialCause, Ended, EndedHold, HoldId,
    OnExpiry, PeriodUsage, Reserved,
};

/// The time for which the id of a top-up is known, so that repeats change nothing.
pub const TOP_UP_KNOWN_FOR: Nanos = Nanos::from_secs(90 * 86_400);

/// The number of periods whose usage is kept.
pub const KEPT_PERIODS: usize = 32;

/// The most open holds of one budget.
pub const MAX_HOLDS: u32 = 65_536;

/// The most entries of one budget: open holds, and ended ids that are still known. Another entry
/// replaces the ended id with the first deadline.
pub const MAX_ENTRIES: usize = 131_072;

/// The state of one budget. The default is an unused one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "saved::SavedBudget", into = "saved::SavedBudget")]
pub struct Budget {
    /// The start of the current period; it never moves back.
    start: Nanos,
    /// The sum of the open holds of the current period.
    held: Amount,
    /// The sum of all top-ups.
    credit: Amount,
    /// The usage of the last periods, in ascending order.
    periods: Vec<PeriodUsage>,
    entries: BTreeMap<HoldId, Entry>,
    /// The ends of the open holds, and of the other entries. Derived from `entries`.
    open: BTreeSet<(Nanos, HoldId)>,
    ended: BTreeSet<(Nanos, HoldId)>,
}

/// A hold, or what is known of one that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
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
    /// Expired or canceled. A settle still corrects the charge.
    Correctable,
    Final,
}

/// The charge with which a hold ends.
#[derive(Clone, Copy, Debug)]
enum FinalCharge {
    Actual(Amount),
    /// The held amount.
    Held,
    Nothing,
}

impl Budget {
    /// Returns the amounts at `now`, after [`Self::advance`].
    #[must_use]
    pub fn view(&self, terms: &BudgetTerms, now: Nanos) -> BudgetView {
        let end = match terms.period {
            BudgetPeriod::Each(_) => terms.period.current(self.start, now).map(|(_, end)| end),
            BudgetPeriod::Prepaid => None,
        };
        let (usage, held, credit) = (self.usage(), self.held, self.credit);
        BudgetView { usage, held, credit, open_holds: self.open_holds(), end }
    }

    /// Returns the usage of the current period.
    #[must_use]
    pub fn usage(&self) -> PeriodUsage {
        let current = self.periods.last().filter(|period| period.start == self.start);
        current.copied().unwrap_or(PeriodUsage { start: self.start, ..PeriodUsage::default() })
    }

    /// Returns the usage of the last periods, in ascending order.
    #[must_use]
    pub fn periods(&self) -> &[PeriodUsage] {
        &self.periods
    }

    /// Returns the amount that open holds of the current period hold.
    #[must_use]
    pub const fn held(&self) -> Amount {
        self.held
    }

    /// Returns the sum of all top-ups.
    #[must_use]
    pub const fn credit(&self) -> Amount {
        self.credit
    }

    /// Returns the number of open holds, also of earlier periods.
    #[must_use]
    pub fn open_holds(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }

    /// Ends a hold with the actual amount. Without a hold, charges the amount to the current period.
    pub fn settle(
        &mut self,
        terms: &BudgetTerms,
        id: HoldId,
        actual: Amount,
        now: Nanos,
    ) -> EndedHold {
        self.advance(terms, now);
        self.end(id, FinalCharge::Actual(actual), terms, now)
    }

    /// Ends a hold with the held amount, because the actual amount is unknown. Without an open hold,
    /// changes no charge.
    pub fn settle_held(&mut self, terms: &BudgetTerms, id: HoldId, now: Nanos) -> EndedHold {
        self.advance(terms, now);
        self.end(id, FinalCharge::Held, terms, now)
    }

    /// Charges an amount without a hold, also above the budget's amount. Returns `false` if nothing was
    /// free before, and the budget enforces.
    pub fn charge(&mut self, terms: &BudgetTerms, amount: Amount, now: Nanos) -> bool {
        self.advance(terms, now);
        let is_allowed = !terms.is_enforced || Amount(0) < self.free(terms);
        if Amount(0) < amount {
            self.change_usage(self.start, |usage| {
                usage.settled = usage.settled.plus(amount);
                usage.requests = usage.requests.saturating_add(1);
                usage.excess = usage.excess.plus(amount);
            });
        }
        is_allowed
    }

    /// Ends a hold without a charge. A later settle still charges.
    pub fn cancel(&mut self, terms: &BudgetTerms, id: HoldId, now: Nanos) -> EndedHold {
        self.advance(terms, now);
        self.end(id, FinalCharge::Nothing, terms, now)
    }

    /// Extends an open hold by the time limit. Returns `false` if no hold with this id is open.
    pub fn renew(&mut self, terms: &BudgetTerms, id: HoldId, now: Nanos) -> bool {
        self.advance(terms, now);
        let open = self.entries.get(&id).copied().filter(Entry::is_open);
        if let Some(entry) = open {
            self.insert(id, Entry { until: now.plus(terms.time_limit), ..entry });
        }
        open.is_some()
    }

    /// Adds to the credit of a prepaid budget. If the id is known, changes nothing and returns the
    /// amount of the first top-up.
    pub fn top_up(
        &mut self,
        terms: &BudgetTerms,
        id: HoldId,
        amount: Amount,
        now: Nanos,
    ) -> Option<Amount> {
        self.advance(terms, now);
        if let Some(known) = self.entries.get(&id) {
            return Some(known.amount);
        }
        self.credit = self.credit.plus(amount);
        let (state, until) = (State::Final, now.plus(TOP_UP_KNOWN_FOR));
        self.insert(id, Entry { state, amount, period: self.start, until });
        None
    }

    /// Ends the holds that expired, and begins the period at `now`.
    pub fn advance(&mut self, terms: &BudgetTerms, now: Nanos) {
        while let Some(&(until, id)) = self.open.first()
            && until <= now
        {
            let Some(entry) = self.remove(id) else { break };
            self.expire((id, entry), terms);
        }
        while let Some(&(until, id)) = self.ended.first()
            && until <= now
        {
            self.remove(id);
        }
        if let Some((start, _)) = terms.period.current(self.start, now)
            && self.start < start
        {
            (self.start, self.held) = (start, Amount(0));
        }
    }

    fn expire(&mut self, (id, entry): (HoldId, Entry), terms: &BudgetTerms) {
        let charged = match terms.on_expiry {
            OnExpiry::Charge => entry.amount,
            OnExpiry::Release => Amount(0),
        };
        self.release(&entry);
        self.change_usage(entry.period, |usage| {
            usage.settled = usage.settled.plus(charged);
            usage.expired = usage.expired.saturating_add(1);
        });
        let until = entry.until.plus(terms.time_limit);
        self.insert(id, Entry { state: State::Correctable, amount: charged, until, ..entry });
    }

    /// Ends the hold of `id` with this charge.
    fn end(
        &mut self,
        id: HoldId,
        charge: FinalCharge,
        terms: &BudgetTerms,
        now: Nanos,
    ) -> EndedHold {
        let entry = self.entries.get(&id).copied();
        let (ended, period, before) = match entry {
            Some(Entry { state: State::Open, amount, period, .. }) => (Ended::Now, period, amount),
            Some(Entry { state, amount, .. })
                if state == State::Final || matches!(charge, FinalCharge::Held) =>
            {
                return EndedHold { ended: Ended::Before, counted: amount };
            }
            Some(Entry { amount, period, .. }) => (Ended::Corrected, period, amount),
            None => (Ended::Unknown, self.start, Amount(0)),
        };
        if let Some(open) = entry.filter(Entry::is_open) {
            self.release(&open);
        }
        let charged = if ended == Ended::Corrected { before } else { Amount(0) };
        let (after, is_settle) = match charge {
            FinalCharge::Actual(actual) => (actual, true),
            FinalCharge::Held => (before, ended == Ended::Now),
            FinalCharge::Nothing => (Amount(0), false),
        };
        if charged != after || is_settle {
            self.change_usage(period, |usage| {
                usage.settled = usage.settled.less(charged).plus(after);
                usage.requests = usage.requests.saturating_add(u64::from(is_settle));
                usage.excess = usage.excess.plus(after.less(before));
            });
        }
        let state = if is_settle { State::Final } else { State::Correctable };
        let until = now.plus(terms.time_limit);
        self.insert(id, Entry { state, amount: after, period, until });
        EndedHold { ended, counted: before }
    }

    /// Changes the usage of a period. The oldest period above [`KEPT_PERIODS`] is forgotten.
    fn change_usage(&mut self, period: Nanos, change: impl FnOnce(&mut PeriodUsage)) {
        let at = self.periods.partition_point(|usage| usage.start < period);
        if self.periods.get(at).is_none_or(|usage| usage.start != period) {
            self.periods.insert(at, PeriodUsage { start: period, ..PeriodUsage::default() });
        }
        change(&mut self.periods[at]);
        let surplus = self.periods.len().saturating_sub(KEPT_PERIODS);
        self.periods.drain(..surplus);
    }

    /// Removes an open hold from the held amount.
    fn release(&mut self, entry: &Entry) {
        if entry.period == self.start {
            self.held = self.held.less(entry.amount);
        }
    }

    /// Returns the amount of the current period; that of a prepaid budget is the sum of its top-ups.
    #[must_use]
    pub fn total(&self, terms: &BudgetTerms) -> Amount {
        match terms.period {
            BudgetPeriod::Each(_) => terms.amount,
            BudgetPeriod::Prepaid => self.credit,
        }
    }

    /// Returns the amount that is neither settled nor held.
    #[must_use]
    pub fn free(&self, terms: &BudgetTerms) -> Amount {
        self.total(terms).less(self.usage().settled).less(self.held)
    }

    fn insert(&mut self, id: HoldId, entry: Entry) {
        self.remove(id);
        if MAX_ENTRIES <= self.entries.len()
            && let Some(&(_, oldest)) = self.ended.first()
        {
            self.remove(oldest);
        }
        self.entries.insert(id, entry);
        self.deadlines_of(&entry).insert((entry.until, id));
    }

    fn remove(&mut self, id: HoldId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.deadlines_of(&entry).remove(&(entry.until, id));
        Some(entry)
    }

    const fn deadlines_of(&mut self, entry: &Entry) -> &mut BTreeSet<(Nanos, HoldId)> {
        if entry.is_open() { &mut self.open } else { &mut self.ended }
    }
}

impl Entry {
    const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The instant from which this entry need not be kept.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }
}
