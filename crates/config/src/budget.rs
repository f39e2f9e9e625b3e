//! The validated `budget` block of a rule, and the `usage` block of its domain.
//!
//! Not covered:
//! - Enforcement (see [`crate::kernel::budget`]).
//! - The prices of models (see [`super::prices`]).

use std::sync::Arc;

use smallvec::SmallVec;

use super::rule::{FallbackMode, LimitWindow, RuleNumber};
use super::table_column::TableColumn;
use crate::kernel::budget::{Amount, BudgetPeriod, BudgetTerms, OnExpiry};
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::Nanos;

/// The default of `time_limit`: a hold expires this long after its reserve or renewal.
pub const DEFAULT_TIME_LIMIT: Nanos = Nanos::from_secs(600);

/// The millionths in one unit of a currency. Amounts of money are in millionths.
pub const MILLIONTHS: u64 = 1_000_000;

/// A budget: an amount of tokens or money for each period, or a prepaid one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// The number of the rule.
    pub number: RuleNumber,
    /// The unit that the budget counts.
    pub unit: BudgetUnit,
    /// The amount of each period, in tokens or millionths of the currency; 0 if prepaid.
    pub amount: Amount,
    /// The periods.
    pub window: BudgetWindow,
    /// The parts of the amount, in percent, at which the service warns. Ascending, 1 to 100.
    pub warn_at: SmallVec<[u8; 2]>,
    /// The decision while the store does not answer; never [`FallbackMode::Local`].
    pub on_store_failure: FallbackMode,
    /// Shadow mode: the budget holds and counts, but never denies.
    pub shadow: bool,
    /// The full path of the rule, as in [`super::Rule::path`].
    pub path: Arc<str>,
    /// The file and line of the budget, `file:line`.
    pub location: Box<str>,
    /// The column of a table with the amount of each id, in tokens or whole units of the currency.
    pub from: Option<Box<TableColumn>>,
}

/// The unit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BudgetUnit {
    /// Input and output tokens.
    Tokens,
    /// Input tokens, with the cached ones.
    InputTokens,
    /// Output tokens.
    OutputTokens,
    /// Money, by the prices of the domain. The code of the currency in lower case, such as `usd`.
    Money([u8; 3]),
}

/// The periods of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetWindow {
    /// The amount is for each period.
    Each(LimitWindow),
    /// The amount is the sum of the top-ups.
    Prepaid,
}

/// How the requests of a domain use budgets: the block `usage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRules {
    /// The way to estimate the cost of a request.
    pub estimate: Estimate,
    /// The largest estimate in tokens, and the estimate of a request about which nothing is known.
    pub at_most: u64,
    /// The time after which a hold expires.
    pub time_limit: Nanos,
    /// The effect of an expiry.
    pub on_expiry: OnExpiry,
    /// The table with the price of each model.
    pub prices: Option<Box<str>>,
    /// The key of the entry whose value is the model. Default: `model`.
    pub model: Box<str>,
}

/// The way to estimate the cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// This number of tokens.
    Tokens(u64),
    /// The number of tokens that the request names, else `at_most`.
    MaxTokens,
    /// Learned from what earlier requests of the same budget cost, at most `at_most`.
    Learn,
}

/// The default of `at_most`.
pub const DEFAULT_AT_MOST: u64 = 32_000;

impl Default for UsageRules {
    fn default() -> Self {
        Self {
            estimate: Estimate::MaxTokens,
            at_most: DEFAULT_AT_MOST,
            time_limit: DEFAULT_TIME_LIMIT,
            on_expiry: OnExpiry::Charge,
            prices: None,
            model: "model".into(),
        }
    }
}

impl BudgetUnit {
    /// Returns the amount of one unit of a number in a file or a table.
    #[must_use]
    pub const fn scale(self) -> u64 {
        match self {
            Self::Money(_) => MILLIONTHS,
            Self::Tokens | Self::InputTokens | Self::OutputTokens => 1,
        }
    }

    /// Returns the number of the unit in the key of a budget. Stores keep it.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Tokens => 0,
            Self::InputTokens => 1,
            Self::OutputTokens => 2,
            Self::Money([first, second, third]) => {
                u64::from_be_bytes([0, 0, 0, 0, 0, first, second, third])
            }
        }
    }
}

impl BudgetRule {
    /// Returns the rule for the kernel at the instant `now`, with this amount.
    #[must_use]
    pub fn terms_at(&self, usage: &UsageRules, amount: Amount, now: Nanos) -> BudgetTerms {
        let period = match &self.window {
            BudgetWindow::Prepaid => BudgetPeriod::Prepaid,
            BudgetWindow::Each(LimitWindow::Calendar(_, calendar)) => {
                BudgetPeriod::Each(Windows::Calendar { starts: calendar.cached_starts_around(now) })
            }
            BudgetWindow::Each(window) => BudgetPeriod::Each(Windows::Every(window.length())),
        };
        let UsageRules { time_limit, on_expiry, .. } = *usage;
        BudgetTerms { amount, period, time_limit, on_expiry, is_enforced: !self.shadow }
    }
}
