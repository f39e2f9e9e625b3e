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
    /// Creates an amount; at most 2^53 - 1.
    #[must_use]
    pub const fn bounded(number: u64) -> Self {
        Self(if number < BOUND { number } else { BOUND.saturating_sub(1) })
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self::bounded(self.0.saturating_add(other.0))
    }

    pub(super) const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
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

/// The periods of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BudgetPeriod {
    /// Each window has the amount.
    Each(Windows),
    /// One period without an end, whose amount is the sum of the top-ups.
    Prepaid,
}

impl BudgetPeriod {
    /// Returns start and end of the period at `now`, or at `since` if that is later. `None` if no
    /// period is known for `now`.
    pub(super) fn current(&self, since: Nanos, now: Nanos) -> Option<(Nanos, Nanos)> {
        match self {
            Self::Each(windows) => windows.current(since, now),
            Self::Prepaid => Some((Nanos(0), Nanos(u64::MAX))),
        }
    }
}

/// The rule of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BudgetTerms {
    /// The amount of each period; not used by a prepaid budget.
    pub amount: Amount,
    /// The periods.
    pub period: BudgetPeriod,
    /// The time after which a hold expires, unless it is renewed. The id of a hold that ended is
    /// known for this time. In whole microseconds.
    pub time_limit: Nanos,
    /// The effect of an expiry.
    pub on_expiry: OnExpiry,
    /// `false` in shadow mode: holds are taken also above the amount.
    pub is_enforced: bool,
}

/// The sum of the costs of the requests of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodUsage {
    /// The start of the period.
    pub start: Nanos,
    /// The settled amount, with the charges of expired holds.
    pub settled: Amount,
    /// The number of settles.
    pub requests: u64,
    /// The number of holds that expired, also if a settle corrected the charge later.
    pub expired: u64,
    /// The sum of the settled amounts above the held ones.
    pub excess: Amount,
}

/// The amounts of a budget at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetView {
    /// The usage of the current period.
    pub usage: PeriodUsage,
    /// The amount that open holds of the current period hold.
    pub held: Amount,
    /// The sum of all top-ups.
    pub credit: Amount,
    /// The number of open holds, also of earlier periods.
    pub open_holds: u32,
    /// The end of the current period. `None` for a prepaid budget, and outside known periods.
    pub end: Option<Nanos>,
}

/// The result of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// All budgets hold their amounts.
    Held,
    /// All budgets have held amounts for this id before. Nothing changed.
    Repeated,
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
}

/// The cause of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialCause {
    /// The estimate is above the amount of a whole period.
    ExceedsAmount,
    /// The amount is spent until the next period or top-up.
    Spent,
    /// Requests in flight hold the rest of the amount.
    InFlight,
    /// The budget has [`MAX_HOLDS`](super::MAX_HOLDS) open holds.
    Full,
    /// No calendar period is known for this instant.
    OutsidePeriods,
}

/// The result of a settle or a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedHold {
    /// The hold that ended.
    pub ended: Ended,
    /// The amount that counted for the id before: held, or charged.
    pub counted: Amount,
}

/// The hold that a settle or a cancel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The hold ended.
    Now,
    /// The hold had expired or was canceled, and its charge was corrected.
    Corrected,
    /// The hold had been settled. Nothing changed.
    Before,
    /// No hold has this id. A settle charged the amount.
    Unknown,
}

impl Ended {
    /// Returns `true` if the call changed the charge of the id.
    #[must_use]
    pub const fn is_first(self) -> bool {
        !matches!(self, Self::Before)
    }
}
