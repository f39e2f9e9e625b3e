//! The series of the rules that another rate limit service decided differently.
//!
//! Guarantees:
//! - Only rules with a difference are shown.

use std::fmt;

use super::text_format::{EscapedLabel, MetricHead};

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

pub(super) fn write_mirror_differences(
    page: &mut fmt::Formatter<'_>,
    differences: &[MirrorDifferences],
) -> fmt::Result {
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
