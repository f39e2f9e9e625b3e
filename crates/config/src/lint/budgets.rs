//! Warns about a block `usage` without effect and about budgets below their estimate, and notes the
//! Redis Cluster slot of budgets.
//!
//! Not covered:
//! - Errors of budgets (see [`crate::resolve`]).
//! - Estimates of budgets of money, because prices are not in the files.

use super::DomainLint;
use crate::budget::{BudgetUnit, BudgetWindow, Estimate};
use crate::budget_amount::AmountText;
use crate::diagnostic::Code;
use crate::kernel::budget::Amount;

impl DomainLint<'_, '_, '_> {
    pub(super) fn lint_budgets(&mut self) {
        self.warn_unused_usage();
        self.warn_small_budgets();
        self.note_budget_slot();
    }

    fn warn_unused_usage(&mut self) {
        let Some((usage, at)) = self.usage else { return };
        let mut budgets = self.tree.budgets();
        let (word, problem, fix) = if budgets.len() == 0 {
            ("usage", "no descriptor of this domain has a budget", "add a `budget`, or remove it")
        } else if usage.prices.is_some()
            && !budgets.any(|budget| matches!(budget.unit, BudgetUnit::Money(_)))
        {
            ("prices", "no budget of this domain is of money", "remove `prices`")
        } else {
            return;
        };
        let message = format!("`{word}` has no effect: {problem}");
        self.findings.add(Code::NoEffect, at, message, fix);
    }

    /// Warns about budgets that deny each request whose number of tokens is unknown. Skips domains
    /// without `usage`, whose requests may be charged without a reserve.
    fn warn_small_budgets(&mut self) {
        let Some((usage, _)) = self.usage else { return };
        let (field, estimate, affected) = match usage.estimate {
            Estimate::Tokens(tokens) => ("estimate", tokens, "every reserve"),
            Estimate::MaxTokens | Estimate::Learn => {
                ("at_most", usage.at_most, "a reserve without a number of tokens")
            }
        };
        for node in self.tree.nodes() {
            let Some(rule) = self.tree.budget_of(node) else { continue };
            let is_small = rule.amount < Amount(estimate)
                && rule.window != BudgetWindow::Prepaid
                && !matches!(rule.unit, BudgetUnit::Money(_))
                && !rule.shadow;
            if !is_small {
                continue;
            }
            let amount = AmountText(rule.amount, rule.unit);
            let tokens = |tokens| AmountText(Amount(tokens), BudgetUnit::Tokens);
            let message = format!(
                "`amount: {amount}` is below `{field}: {}` of `usage`, so {affected} is denied",
                tokens(estimate)
            );
            let fix = format!(
                "use `{field}: {}` or less in `usage`, or a larger `amount`",
                tokens(rule.amount.0)
            );
            self.findings.add(Code::SmallBudget, self.key_span(node), message, fix);
        }
    }

    /// Adds a note about budgets without `colocate`, which share one slot.
    fn note_budget_slot(&mut self) {
        let first = self.tree.nodes().find(|node| self.tree.budget_of(*node).is_some());
        let Some(node) = first.filter(|_| self.charge_settings.colocate.is_none()) else { return };
        let message = "in a Redis Cluster, all budgets of this domain are on one node".to_owned();
        let fix = "to use several nodes, add `colocate: KEY` with a key of all descriptors that \
                   have budgets";
        self.findings.add(Code::SeveralSlots, self.key_span(node), message, fix);
    }
}
