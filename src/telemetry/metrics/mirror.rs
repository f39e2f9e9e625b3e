//! The series of checks that were sent to another rate limit service too.
//!
//! Guarantees:
//! - Every outcome is shown, also at zero. Only rules with a difference are shown.

use std::fmt;

use super::Metrics;
use super::text_format::{EscapedLabel, MetricHead};
use crate::telemetry::label::MirrorOutcome;

/// The differences of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorDifferences {
    /// The path of the rule; `other` for all rules above a maximum.
    pub rule: Box<str>,
    /// Descriptors that this service alone denied.
    pub ours_deny: u64,
    /// Descriptors that the other service alone denied.
    pub theirs_deny: u64,
}

impl Metrics {
    pub(super) fn write_mirror(
        &self,
        page: &mut fmt::Formatter<'_>,
        differences: &[MirrorDifferences],
    ) -> fmt::Result {
        let outcomes = MirrorOutcome::ALL.map(MirrorOutcome::as_str);
        MetricHead(
            "sluicegate_mirror_checks_total",
            "Checks that another rate limit service decided too, by result",
        )
        .write_counters(
            page,
            "result",
            self.series(outcomes, |shard| &shard.mirrored_checks),
        )?;
        let name = "sluicegate_mirror_differences_total";
        let help = "Descriptors that only this (ours) or the other service (theirs) denied";
        MetricHead(name, help).write(page, "counter")?;
        for MirrorDifferences { rule, ours_deny, theirs_deny } in differences {
            let rule = EscapedLabel(rule);
            for (denied_by, count) in [("ours", ours_deny), ("theirs", theirs_deny)] {
                writeln!(page, "{name}{{rule=\"{rule}\",denied_by=\"{denied_by}\"}} {count}")?;
            }
        }
        Ok(())
    }
}
