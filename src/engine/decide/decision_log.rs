//! Logs the decision of each charged limit at `log_level: trace`.
//!
//! - The decision was made between `asked_us` and `answered_us`, on this process's clock. Lease
//!   balances decide at `asked_us`.
//! - A log line contains the path of the rule, but no descriptor of the check.

use tracing::Level;

use crate::clock::Clock;
use crate::engine::Decision;
use crate::engine::decide::plan::CheckPlan;
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::rate::limit::Tick;

pub(in crate::engine) fn log_decision(plan: &CheckPlan<'_>, decision: &Decision, clock: &Clock) {
    if tracing::enabled!(Level::TRACE) {
        write_lines(plan, decision, clock);
    }
}

#[cold]
fn write_lines(plan: &CheckPlan<'_>, decision: &Decision, clock: &Clock) {
    let (asked, answered) = (Tick::Micro.floor(decision.now), Tick::Micro.floor(clock.now()));
    let charged = plan
        .descriptors
        .iter()
        .zip(&decision.statuses)
        .filter(|(descriptor_plan, _)| descriptor_plan.is_charged());
    for ((descriptor_plan, status), charge) in charged.zip(&plan.charges.list) {
        let Cost::Charge(hits) = charge.cost else { continue };
        let rule = descriptor_plan.rule().map(|rule| &*rule.path);
        let admitted = status.decision.verdict == Verdict::Allow;
        tracing::trace!(
            rule,
            hits = hits.0,
            admitted,
            asked_us = asked,
            answered_us = answered,
            "decided"
        );
    }
}
