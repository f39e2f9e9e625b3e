//! The prices of models, from a table: what the tokens of a request cost.
//!
//! A row is a model; the row `*` is every other one. A column is the price of one token, in billionths
//! of the currency: 2,500 is 2.50 for a million tokens.
//!
//! | column | price of |
//! |---|---|
//! | `input` | an input token |
//! | `cached_input` | an input token from the provider's cache; without it, as `input` |
//! | `output` | an output token |
//!
//! Guarantees:
//! - A cost is rounded up to a whole millionth.
//! - A model without a row and without a row `*` has no cost, so the request is denied.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluicegate_tables::{Amount as Number, Table};

use crate::kernel::budget::Amount;
use crate::kernel::units::Nanos;

/// The columns without which no model has a price.
pub const REQUIRED_COLUMNS: [&str; 2] = ["input", "output"];

/// The id of the row for models without a row.
const ANY_MODEL: &str = "*";

/// The tokens of a request. `u64::MAX` at most in sum. The format of recordings contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Input tokens, without the cached ones.
    pub input: u64,
    /// Input tokens from the provider's cache.
    pub cached_input: u64,
    /// Output tokens.
    pub output: u64,
    /// Tokens of which only the number is known. They cost as the dearest kind.
    pub any: u64,
}

/// The prices of one token of a model, in billionths of the currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// An input token.
    pub input: u64,
    /// An input token from the provider's cache.
    pub cached_input: u64,
    /// An output token.
    pub output: u64,
}

impl TokenCounts {
    /// Returns the number of all tokens; saturates.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.output)
            .saturating_add(self.any)
    }
}

impl Prices {
    /// Returns the prices of a model. `None` without a row, or without `input` and `output`.
    #[must_use]
    pub fn of_model(table: &Arc<Table>, model: &str, now: Nanos) -> Option<Self> {
        let row = table.row(model).or_else(|| table.row(ANY_MODEL))?;
        let price = |name: &str| match table.amount(row, table.column(name)?, now)? {
            Number::Number(price) => Some(u64::from(price.get())),
            Number::Blocked => Some(0),
            Number::Unlimited => None,
        };
        let (input, output) = (price("input")?, price("output")?);
        Some(Self { input, cached_input: price("cached_input").unwrap_or(input), output })
    }

    /// Returns what tokens cost, in millionths of the currency, rounded up.
    #[must_use]
    pub fn cost(&self, tokens: &TokenCounts) -> Amount {
        let any = self.input.max(self.output).max(self.cached_input);
        let pairs = [
            (tokens.input, self.input),
            (tokens.cached_input, self.cached_input),
            (tokens.output, self.output),
            (tokens.any, any),
        ];
        let billionths = pairs.map(|(count, price)| u128::from(count) * u128::from(price));
        let millionths = billionths.iter().sum::<u128>().div_ceil(1_000);
        Amount(u64::try_from(millionths).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_exact_and_rounded_up() {
        let prices = Prices { input: 2_500, cached_input: 1_250, output: 10_000 };
        let cost = |input, cached_input, output, any| {
            prices.cost(&TokenCounts { input, cached_input, output, any }).0
        };
        // 2.50 and 10.00 for a million tokens.
        assert_eq!(cost(1_000_000, 0, 0, 0), 2_500_000);
        assert_eq!(cost(0, 1_000_000, 100_000, 0), 1_250_000 + 1_000_000);
        assert_eq!(cost(0, 0, 0, 7), 70, "unknown tokens cost as output");
        assert_eq!(cost(1, 0, 0, 0), 3, "2.5 millionths");
        assert_eq!(cost(u64::MAX, u64::MAX, u64::MAX, 0), u64::MAX);
    }
}
