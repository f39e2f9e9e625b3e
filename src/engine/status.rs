//! From what came of a charge to what is said of its descriptor.
//!
//! Guarantees: pure; every outcome has a finding.
//! Leaves out: what the findings of a question come to together (`kernel::decision`).

use super::Status;
use super::degrade::Settled;
use super::plan::Part;
use crate::backend::Outcome;
use crate::config::{Limit, Rule};
use crate::kernel::decision::{Finding, Group, Override, Reason, Shown, Standing, Verdict};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// The status of one descriptor; `found` says what came of its charge.
#[inline]
pub(super) fn status(part: &Part<'_>, found: impl FnOnce(Shown) -> Option<Finding>) -> Status {
    let settled = |reason, group| (Finding::settled(reason, group), None);
    let (finding, metadata) = match part {
        Part::Nothing => settled(Reason::NoLimit, Group::Enforced),
        Part::Unlimited(_) => settled(Reason::Unlimited, Group::Aside),
        Part::Replaced => settled(Reason::Replaced, Group::Enforced),
        Part::Charged(rule, limit) => match found(shown(rule, limit)) {
            Some(finding) => (finding, rule.metadata.clone()),
            None => settled(Reason::NoLimit, Group::Enforced),
        },
        Part::Override(limit) => match found(shown_override(*limit)) {
            Some(finding) => (finding, None),
            None => settled(Reason::NoLimit, Group::Enforced),
        },
    };
    Status { finding, metadata }
}

fn shown(rule: &Rule, limit: &Limit) -> Shown {
    let (unit, period) = (limit.window.unit(), limit.window.length());
    Shown { requests: limit.requests, unit, period, name: rule.name.clone() }
}

fn shown_override(Override { requests, unit }: Override) -> Shown {
    Shown { requests, unit: Some(unit), period: unit.length(), name: None }
}

/// What a charge comes to that the store did not answer, or was not asked for.
pub(super) fn settled_finding(settled: Settled, shown: Shown, standing: Standing) -> Finding {
    match settled {
        Settled::Answered(outcome) => finding(outcome, shown, standing),
        Settled::Ruled(verdict, reason) => ruled(verdict, reason, shown, standing),
        Settled::NotAsked => Finding::settled(Reason::NotAsked, standing.group),
        Settled::Local(outcome) => {
            let finding = finding(outcome, shown, standing);
            Finding { reason: Reason::BackendDownLocal, ..finding }
        }
    }
}

/// What a counter's outcome means.
#[inline]
pub(super) fn finding(outcome: Outcome, shown: Shown, standing: Standing) -> Finding {
    match outcome {
        Outcome::Stepped(step) => Finding::of_step(step, shown, standing),
        Outcome::Refunded(step) => {
            let step = Step::Admit(room(step));
            Finding { reason: Reason::Refunded, ..Finding::of_step(step, shown, standing) }
        }
        Outcome::Full(verdict) => ruled(verdict, Reason::StoreFull, shown, standing),
        // Both are settled before (`degrade::settle`); what got here all the same is denied.
        Outcome::Stale(_) | Outcome::Failed(_) => {
            ruled(Verdict::Deny, Reason::BackendDownDenied, shown, standing)
        }
    }
}

/// A verdict that no counter gave.
fn ruled(verdict: Verdict, reason: Reason, shown: Shown, standing: Standing) -> Finding {
    Finding {
        verdict: standing.verdict(verdict == Verdict::Deny),
        reason,
        ..Finding::of_step(Step::Never(Room::default()), shown, standing)
    }
}

const fn room(step: Step) -> Room {
    match step {
        Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
        Step::Stale => Room { remaining: Hits(0), reset_after: Nanos(0) },
    }
}
