//! Decisions as lines of the log, at `log_level: trace`: which rule was asked for how many hits, what came of
//! it, and between which instants of this process's clock.
//!
//! What a balance answers was admitted at the first of the two, which is the one that its lease was looked at
//! by; what the store was asked for was charged somewhere between.
//!
//! Guarantees: one look at the level where nobody wants them; no key or value of a question is in a line.
//! Leaves out: what is counted ([`crate::telemetry`]).

use tracing::Level;

use super::Answer;
use super::plan::Plan;
use crate::clock::Clock;
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::rate::limit::Tick;

/// Writes what was answered to each limit that was charged.
pub(super) fn log(plan: &Plan<'_>, answer: &Answer, clock: &Clock) {
    if tracing::enabled!(Level::TRACE) {
        write(plan, answer, clock);
    }
}

#[cold]
fn write(plan: &Plan<'_>, answer: &Answer, clock: &Clock) {
    let (asked, answered) = (Tick::Micro.floor(answer.now), Tick::Micro.floor(clock.now()));
    let parts = plan.parts.iter().zip(&answer.statuses).filter(|(part, _)| part.is_charged());
    for ((part, status), charge) in parts.zip(&plan.charges.list) {
        let Cost::Charge(hits) = charge.cost else { continue };
        let rule = part.rule().map(|rule| &*rule.path);
        let admitted = status.finding.verdict == Verdict::Admit;
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
