//! Serves `/config/diff`: the limits that the last reload added and removed.
//!
//! Guarantees:
//! - A limit is one line of `/rlconfig`; a changed limit is one removed and one added line.
//! - At most [`MAX_LINES`] lines are kept; the number of omitted lines is shown.
//!
//! Not covered:
//! - Fields that `/rlconfig` does not show, such as strategy and mode.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::show::rlconfig;
use crate::config::Config;

/// The largest number of lines in a difference.
const MAX_LINES: usize = 1_000;

/// The difference between the last two loaded configurations.
#[derive(Debug, Default)]
pub struct ConfigDiff(Mutex<Option<LoadedDiff>>);

#[derive(Debug)]
struct LoadedDiff {
    from_revision: u64,
    to_revision: u64,
    lines: Vec<String>,
    omitted: usize,
}

impl ConfigDiff {
    /// Records that `new` replaced `old`. Cost: formats and sorts all limits of both.
    pub fn record(&self, old: &Config, new: &Config) {
        let (from_revision, to_revision) = (old.revision.0, new.revision.0);
        let (old_page, new_page) = (rlconfig(old), rlconfig(new));
        let (old_lines, new_lines) = (unique_lines(&old_page), unique_lines(&new_page));
        let changed = old_lines.symmetric_difference(&new_lines);
        let marked = |line: &&str| {
            let sign = if old_lines.contains(line) { '-' } else { '+' };
            format!("{sign}{line}")
        };
        let mut lines: Vec<_> = changed.map(marked).collect();
        let omitted = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        *self.0.lock() = Some(LoadedDiff { from_revision, to_revision, lines, omitted });
    }

    pub(super) fn to_json(&self) -> Value {
        match &*self.0.lock() {
            None => json!({"from_revision": null, "to_revision": null, "lines": [], "omitted": 0}),
            Some(diff) => json!({
                "from_revision": diff.from_revision,
                "to_revision": diff.to_revision,
                "lines": diff.lines,
                "omitted": diff.omitted,
            }),
        }
    }
}

fn unique_lines(page: &str) -> BTreeSet<&str> {
    page.lines().collect()
}
