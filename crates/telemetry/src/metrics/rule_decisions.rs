//! Renders the decisions of each rule as `sluicegate_rule_decisions_total`.
//!
//! Guarantees:
//! - Labels contain the domains and paths of limits files, never a value from a request.
//! - Each rule has a series for `allow` and `deny`, also at zero. The other verdicts appear with
//!   their first decision.
//!
//! Not covered:
//! - The largest number of rules (setting `telemetry.metrics.max_rules`).

use std::fmt;

use super::text_format::{EscapedLabel, MetricHead};
use crate::label::RuleVerdict;

/// The decisions of one rule.
#[derive(Clone, Debug, Default)]
pub struct RuleDecisions {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The full path of the rule.
    pub path: Box<str>,
    /// The number of decisions, by [`RuleVerdict`].
    pub counts: [u64; RuleVerdict::ALL.len()],
}

pub(super) fn write_rule_decisions(
    page: &mut fmt::Formatter<'_>,
    rules: &[RuleDecisions],
) -> fmt::Result {
    let name = "sluicegate_rule_decisions_total";
    MetricHead(name, "Descriptors decided, by rule and verdict").write(page, "counter")?;
    for RuleDecisions { domain, path, counts } in rules {
        let (domain, path) = (EscapedLabel(domain), EscapedLabel(path));
        for (verdict, count) in RuleVerdict::ALL.into_iter().zip(counts) {
            if *count != 0 || matches!(verdict, RuleVerdict::Allow | RuleVerdict::Deny) {
                let verdict = verdict.as_str();
                let labels =
                    format_args!("domain=\"{domain}\",rule=\"{path}\",verdict=\"{verdict}\"");
                writeln!(page, "{name}{{{labels}}} {count}")?;
            }
        }
    }
    Ok(())
}
