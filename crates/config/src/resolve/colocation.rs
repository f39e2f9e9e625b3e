//! Verifies the field `colocate` of a domain.
//!
//! Guarantees:
//! - All budgets that a check meets are in one slot of a Redis Cluster.
//! - So are all limits that a check meets with `charge: all_or_nothing`.
//!
//! Not covered:
//! - Checks whose descriptors have different values of the entry.

use super::domain::DomainReader;
use crate::ChargePolicy;
use crate::diagnostic::Code;
use crate::resolve::findings::FileSpan;
use crate::tree::NodeId;

impl DomainReader<'_, '_, '_> {
    /// Reports budgets and all-or-nothing limits whose key lacks the entry `key` of `colocate`.
    pub(super) fn check_colocated(&mut self, key: &str) {
        let budgets = self.budgets.iter().map(|budget| (budget.node, budget.at, "budget"));
        for (node, at, thing) in budgets.chain(self.joint_limits()).collect::<Vec<_>>() {
            let levels = self.builder.levels(node);
            if levels.iter().any(|level| *level.key == *key || level.key.is_empty()) {
                continue;
            }
            let message = format!(
                "this {thing} has no entry `{key}` (`colocate`), so it may be in another slot of a \
                 Redis Cluster than other {thing}s of a check"
            );
            let fix = format!("move it below a descriptor with `key: {key}`, or remove `colocate`");
            self.findings.add(Code::Contradiction, at, message, fix);
        }
    }

    /// Returns the limits that are charged all-or-nothing.
    fn joint_limits(&self) -> impl Iterator<Item = (NodeId, FileSpan, &'static str)> {
        let tree = self.builder.tree();
        let is_joint = self.charge == ChargePolicy::AllOrNothing;
        // Limits with `on_excess: charge` are charged before, independently.
        let has_limits = move |node: &NodeId| {
            let limits = tree.rule(*node).map_or(&[][..], |rule| &rule.limits[..]);
            limits.iter().any(|limit| !limit.strategy.on_excess().is_charge())
        };
        let placed = |node: NodeId| Some((node, *self.origins.get(node.index())?, "limit"));
        tree.nodes().filter(move |node| is_joint && has_limits(node)).filter_map(placed)
    }
}
