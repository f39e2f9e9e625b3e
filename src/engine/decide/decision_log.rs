//! Logs the decision of each charged limit at `log_level: trace`.
//!
//! Guarantees:
//! - A lease balance decides at the logged instant `asked_us`.
//! - The store charges between `asked_us` and `answered_us`. Both are of this process's clock.
//! - At other log levels the cost is one comparison.
//! - A log line contains the path of the rule, but no descriptor of the check.
//!
//! Not covered:
//! - Metrics (see [`crate::telemetry`]).

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
    let parts =
        plan.descriptors.iter().zip(&decision.statuses).filter(|(part, _)| part.is_charged());
    for ((part, status), charge) in parts.zip(&plan.charges.list) {
        let Cost::Charge(hits) = charge.cost else { continue };
        let rule = part.rule().map(|rule| &*rule.path);
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
