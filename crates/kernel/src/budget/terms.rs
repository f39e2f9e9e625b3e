//! The rule of a budget, and the results of requests to it.

use serde::{Deserialize, Serialize};

use crate::rate::fixed_window::Windows;
use crate::units::Nanos;

/// The bound of amounts. Lua has only doubles, which are exact below it.
const BOUND: u64 = 1 << 53;

/// An amount: tokens, requests, or millionths of a currency. Below 2^53.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Amount(pub u64);

impl Amount {
    pub(super) const fn plus(self, other: Self) -> Self {
        let sum = self.0.saturating_add(other.0);
        Self(if sum < BOUND { sum } else { BOUND.saturating_sub(1) })
    }

    pub(super) const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the change from `before` to this amount.
    pub(super) fn change_from(self, before: Self) -> i64 {
        let number = |amount: Self| i64::try_from(amount.0).unwrap_or(i64::MAX);
        number(self).saturating_sub(number(before))
    }
}

/// The id of a request, unique in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HoldId(pub u64, pub u64);

/// What happens to a hold that is neither settled nor canceled in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// The held amount is charged.
    Charge,
    /// Nothing is charged.
    Release,
}

/// The rule of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BudgetTerms {
    /// The amount of each period.
    pub amount: Amount,
    /// The periods.
    pub windows: Windows,
    /// The time after which a hold expires, unless it is renewed.
    pub time_limit: Nanos,
    /// The effect of an expiry.
    pub on_expiry: OnExpiry,
    /// `false` in shadow mode: holds are taken also above the amount.
    pub is_enforced: bool,
}

/// A change of the settled amount of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The start of the period.
    pub period: Nanos,
    /// The change.
    pub change: i64,
}

/// Receives the changes of settled amounts. They belong into the same transaction as the budget.
pub type Ledger<'l> = dyn FnMut(LedgerEntry) + 'l;

/// The result of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// All budgets hold their amounts.
    Held,
    /// A budget denies the request.
    Denied(Denial),
    /// The id belongs to a request that has ended.
    Ended,
}

/// Why a budget denies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The position of the budget in the list.
    pub index: usize,
    /// The cause.
    pub cause: DenialCause,
    /// The amount that is neither settled nor held.
    pub free: Amount,
}

/// The cause of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialCause {
    /// The estimate is above the amount of a whole period.
    ExceedsAmount,
    /// The amount is spent. Contains the time until the next period.
    Spent(Nanos),
    /// Requests in flight hold the rest of the amount.
    InFlight,
    /// The budget has [`MAX_ENTRIES`](super::MAX_ENTRIES) entries.
    Full,
    /// No calendar period is known for this instant.
    OutsidePeriods,
}

/// The result of a settle or a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The hold ended.
    Now,
    /// The hold had expired, and its charge was corrected.
    AfterExpiry,
    /// The hold had been settled or canceled. Nothing changed.
    Before,
    /// No hold has this id. A settle charged the amount.
    Unknown,
}
