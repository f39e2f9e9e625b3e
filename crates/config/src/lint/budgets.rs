//! Warns about a block `usage` without effect, and notes the Redis Cluster slot of budgets.
//!
//! Not covered:
//! - Errors of budgets (see [`crate::resolve`]).

use super::DomainLint;
use crate::budget::BudgetUnit;
use crate::diagnostic::Code;

impl DomainLint<'_, '_, '_> {
    pub(super) fn lint_budgets(&mut self) {
        self.warn_unused_usage();
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
