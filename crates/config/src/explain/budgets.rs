//! Explains which budgets a descriptor meets.
//!
//! Guarantees:
//! - Finds the budgets with the same function as a reserve.
//!
//! Not covered:
//! - What of a budget is spent or held at the moment.

use serde::{Deserialize, Serialize};

use crate::Config;
use crate::budget::BudgetRule;
use crate::describe::BudgetText;
use crate::descriptor_text::format_entries;
use crate::kernel::units::Nanos;
use crate::table_limits::FromTable;
use crate::tree::{BudgetMatch, counter_entries};

/// A budget of a descriptor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetExplanation {
    /// The full path of the rule with this budget.
    pub path: String,
    /// The file and line of the budget, `file:line`.
    pub location: String,
    /// The budget as text, such as `500 usd per month`.
    pub text: String,
    /// The key of the budget in readable form.
    pub counter: String,
    /// The row of a table that has the amount (`from`), as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_table: Option<String>,
}

/// Returns the budgets that a descriptor of `domain` meets at the instant `now`.
pub(super) fn explain_budgets(
    config: &Config,
    domain: &str,
    entries: &[(&str, &str)],
    now: Nanos,
) -> Vec<BudgetExplanation> {
    let Some(found) = config.domains.get(domain) else { return Vec::new() };
    let explain = |met: &BudgetMatch<'_>| {
        let (text, from_table) = describe(config, met.rule, entries, now);
        let key = counter_entries(entries.iter().copied().take(met.entries), &met.shared);
        BudgetExplanation {
            path: met.rule.path.to_string(),
            location: met.rule.location.to_string(),
            text,
            counter: format!("{domain}: {}", format_entries(key)),
            from_table,
        }
    };
    found.tree.lookup_budgets(entries).iter().map(explain).collect()
}

/// Returns the text of a budget with the amount that applies, and a sentence about its table.
fn describe(
    config: &Config,
    rule: &BudgetRule,
    entries: &[(&str, &str)],
    now: Nanos,
) -> (String, Option<String>) {
    let column = rule.from.as_deref();
    let row = column.and_then(|column| Some((column, entries.get(column.entry)?.1)));
    let amount = match row.map(|(column, id)| config.tables.budget(column, id, now)) {
        Some(FromTable::Limit(amount)) => Some(*amount),
        Some(FromTable::Unlimited) => None,
        _ => Some(rule.amount),
    };
    let sentence = row.map(|(column, id)| config.tables.describe(column, id, now));
    (BudgetText(rule, amount).to_string(), sentence)
}
