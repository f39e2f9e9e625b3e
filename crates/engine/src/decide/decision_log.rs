//! Logs checks: one line for each check at `debug`, and one for each charged limit at `trace`.
//!
//! Guarantees:
//! - A check that is not logged costs one comparison of levels.
//! - The line of a check has its domain, its descriptors with their rules, and the verdict.
//! - The line of a charge has the path of the rule, but no descriptor of the check.
//!
//! The decision of a charge was made between `asked_us` and `answered_us`, on this process's
//! clock. Lease balances decide at `asked_us`.

use tracing::Level;

use crate::check_text::{CheckText, short_text};
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::{Check, Cost, Verdict};
use crate::kernel::rate::limit::Tick;
use crate::{CheckError, Decision, Engine, Rejection};

impl Engine {
    /// Logs the check and its decision at `debug`.
    pub(crate) fn log_check(&self, prepared: &PreparedCheck<'_, '_>, decision: &Decision) {
        if tracing::enabled!(Level::DEBUG) {
            self.write_check_line(prepared, decision);
        }
    }

    /// Logs each charge at `trace`.
    pub(crate) fn log_charges(&self, prepared: &PreparedCheck<'_, '_>, decision: &Decision) {
        if tracing::enabled!(Level::TRACE) {
            self.write_charge_lines(prepared, decision);
        }
    }

    /// Logs a check that got no decision.
    pub(crate) fn log_error(&self, check: &Check<'_>, error: &CheckError) {
        if tracing::enabled!(Level::DEBUG) {
            let text = CheckText::new(check, self.policy.descriptor_values);
            let (domain, descriptors) = (&*short_text(check.domain), &*text.descriptors());
            tracing::debug!(domain, descriptors, %error, "check failed");
        }
    }

    /// Logs a check that was refused before its descriptors were read.
    pub fn log_refusal(&self, domain: &str, error: &CheckError) {
        tracing::debug!(domain = &*short_text(domain), %error, "check failed");
    }

    /// Logs a check that a concurrency limit or a budget rejected.
    pub(crate) fn log_rejection(&self, check: &Check<'_>, rejection: &Rejection) {
        if tracing::enabled!(Level::DEBUG) {
            let text = CheckText::new(check, self.policy.descriptor_values);
            let (domain, descriptors) = (&*short_text(check.domain), &*text.descriptors());
            let (rule, reason) = (&*rejection.path, rejection.reason.as_str());
            let load = rejection.load;
            let (in_flight, queued) = (load.map(|it| it.in_flight), load.map(|it| it.waiting));
            tracing::debug!(
                domain,
                verdict = "deny",
                descriptors,
                rule,
                reason,
                in_flight,
                queued,
                "check decided"
            );
        }
    }

    #[cold]
    fn write_check_line(&self, prepared: &PreparedCheck<'_, '_>, decision: &Decision) {
        let PreparedCheck { check, config, .. } = prepared;
        let text = CheckText::new(check, self.policy.descriptor_values);
        let descriptors = text.decided(config, &decision.statuses);
        let verdict = verdict_text(decision);
        let domain = &*short_text(check.domain);
        tracing::debug!(domain, verdict, descriptors, "check decided");
    }

    #[cold]
    fn write_charge_lines(&self, prepared: &PreparedCheck<'_, '_>, decision: &Decision) {
        let plan = &prepared.plan;
        let (asked, answered) =
            (Tick::Micro.floor(decision.now), Tick::Micro.floor(self.clock.now()));
        let charged = plan
            .limits
            .iter()
            .zip(decision.all_limits())
            .filter(|(limit_plan, _)| limit_plan.is_charged());
        for ((limit_plan, status), charge) in charged.zip(&plan.charges.list) {
            let Cost::Charge(hits) = charge.cost else { continue };
            let rule = limit_plan.path();
            let rule = rule.as_deref();
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
}

const fn verdict_text(decision: &Decision) -> &'static str {
    match (decision.verdict, decision.is_shadowed) {
        (Verdict::Deny, _) => "deny",
        (Verdict::Allow, true) => "allow (shadow mode)",
        (Verdict::Allow, false) => "allow",
    }
}
