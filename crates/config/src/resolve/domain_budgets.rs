//! Adds budgets to the tree of their domain, and validates them together.
//!
//! Guarantees:
//! - All budgets of money in a domain have one currency, for which the domain has prices.
//!
//! Not covered:
//! - The fields of one budget (see [`super::budget_block`]).
//! - The slots of budgets in a Redis Cluster (see [`super::colocation`]).

use super::budget_block::{BudgetReader, PlacedBudget};
use super::domain::DomainReader;
use super::findings::FileSpan;
use super::from_table::FromFields;
use crate::budget::UsageRules;
use crate::diagnostic::Code;
use crate::raw::{self, Descriptor};
use crate::tree::NodeId;

impl DomainReader<'_, '_, '_> {
    pub(super) fn add_budget(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        budget: &raw::Budget,
    ) {
        let at = FileSpan { file, span: budget.span };
        if raw.quota_mode {
            let fix = "remove `quota_mode`: each budget of a check must allow it";
            self.findings.contradict(at, "budget", "quota_mode: true", fix);
        }
        let reader = BudgetReader {
            file,
            raw: budget,
            default_fallback: self.defaults.on_store_failure,
            shadow: raw.shadow_mode,
            path: self.builder.path(self.group.domain, node).into(),
            location: self.findings.line(at).into(),
            findings: self.findings,
        };
        if let Some(mut rule) = reader.read() {
            let from = FromFields { from: budget.from.as_ref(), by: budget.by.as_ref() };
            rule.from = self.table_column(file, node, &from);
            self.budgets.push(PlacedBudget { node, at, unit: rule.unit });
            self.builder.set_budget(node, rule);
        }
    }

    /// Validates the budgets with the fields of their domain.
    pub(super) fn check_budgets(&mut self, usage: &UsageRules) {
        let money: Vec<_> = self.budgets.iter().copied().filter_map(PlacedBudget::money).collect();
        let Some(&(first, currency)) = money.first() else { return };
        if usage.prices.is_none() && self.group.is_complete {
            let message = format!("a budget of `{currency}` needs the prices of models");
            let fix = "add `usage: {prices: TABLE}` at the top of the file, with a table of the \
                       setting `tables`";
            self.findings.add(Code::OutOfRange, first, message, fix);
        }
        for (at, other) in money.into_iter().filter(|(_, other)| *other != currency) {
            let place = self.findings.place(first);
            let message = format!("a budget of `{other}`, but one of `{currency}` in {place}");
            let fix = "use one currency in a domain: its prices have one currency";
            self.findings.add(Code::Contradiction, at, message, fix);
        }
    }
}
