//! Warns about fair parts for values that callers may invent.

use super::DomainLint;
use crate::diagnostic::Code;

impl DomainLint<'_, '_, '_> {
    /// Warns about `fair` without a table: each new value of the entry has a part of its own.
    pub(super) fn warn_invented_customers(&mut self) {
        for node in self.tree.nodes() {
            let Some(limit) = self.tree.concurrency_limit_of(node) else { continue };
            let Some(rule) = limit.requesters.as_ref().filter(|rule| rule.weight.is_none()) else {
                continue;
            };
            let Some(key) = &rule.keys.customer else { continue };
            let message = format!(
                "`fair` gives each value of `{key}` a part, so a caller that invents values gets several"
            );
            let fix =
                "add `weight: TABLE.COLUMN`: all customers without a row have one part together";
            self.findings.add(Code::InventedCustomers, self.key_span(node), message, fix);
        }
    }
}
