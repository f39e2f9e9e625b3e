//! Formats the result of a replay as text, JSON or Markdown.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::comparison::{Agreement, ChangedChecks, Changes, Comparison};
use crate::kernel::units::Nanos;
use crate::recording::percent::{Percent, format_share};

/// The number of rules and of keys in a report.
const MAX_LISTED: usize = 20;

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
    /// Tables for a comment on a pull request.
    Markdown,
}

/// The largest share of newly denied checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOver(pub Percent);

impl FailOver {
    /// Returns `true` if the comparison is above the bound.
    #[must_use]
    pub fn is_exceeded(self, comparison: &Comparison) -> bool {
        let changes = comparison.new.as_ref();
        changes.is_some_and(|new| self.0.is_exceeded_by(new.newly_denied, comparison.checks))
    }
}

impl Comparison {
    /// Formats the comparison, which ends with a line end.
    #[must_use]
    pub fn format(&self, format: ReportFormat, fail_over: Option<FailOver>) -> String {
        match format {
            ReportFormat::Text => self.text(fail_over),
            ReportFormat::Json => format!("{:#}\n", self.json(fail_over)),
            ReportFormat::Markdown => self.markdown(fail_over),
        }
    }

    fn text(&self, fail_over: Option<FailOver>) -> String {
        let mut text = String::new();
        for line in self.summary_lines(fail_over) {
            let _infallible = writeln!(text, "{line}");
        }
        if let Some(changes) = &self.new {
            for (title, lists) in changes.lists() {
                let _infallible = writeln!(text, "\nnewly denied  newly allowed  {title}");
                for (name, ChangedChecks { newly_denied, newly_allowed }) in lists {
                    let _infallible =
                        writeln!(text, "{newly_denied:>12}  {newly_allowed:>13}  {name}");
                }
            }
        }
        text
    }

    fn markdown(&self, fail_over: Option<FailOver>) -> String {
        let mut text = "### Replay of recorded checks\n\n".to_owned();
        for line in self.summary_lines(fail_over) {
            let _infallible = writeln!(text, "- {line}");
        }
        for (title, lists) in self.new.iter().flat_map(Changes::lists) {
            let _infallible =
                writeln!(text, "\n| {title} | newly denied | newly allowed |\n|---|---:|---:|");
            for (name, ChangedChecks { newly_denied, newly_allowed }) in lists {
                let name = code_cell(name);
                let _infallible = writeln!(text, "| {name} | {newly_denied} | {newly_allowed} |");
            }
        }
        text
    }

    fn summary_lines(&self, fail_over: Option<FailOver>) -> Vec<String> {
        let (checks, duration) = (self.checks, rounded_to_seconds(self.duration));
        let mut lines = vec![format!("{checks} checks in {}", duration.for_people())];
        lines.extend(self.recorded.describe());
        lines.push(format!("old limits deny {}", count_and_share(self.old_denied, checks)));
        if let Some(new) = &self.new {
            lines.push(format!("new limits deny {}", count_and_share(new.denied, checks)));
            lines.push(format!("newly denied {}", count_and_share(new.newly_denied, checks)));
            lines.push(format!("newly allowed {}", count_and_share(new.newly_allowed, checks)));
        }
        if let Some(bound) = fail_over {
            let word = if bound.is_exceeded(self) { "above" } else { "within" };
            lines.push(format!("newly denied share {word} the bound of {}", bound.0));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines
    }

    fn json(&self, fail_over: Option<FailOver>) -> Value {
        let Agreement { known, equal } = self.recorded;
        let mut document = json!({
            "checks": self.checks,
            "duration_ms": self.duration.0 / 1_000_000,
            "recorded": {"known": known, "equal": equal},
            "old_denied": self.old_denied,
            "warnings": self.warnings,
        });
        if let Some(new) = &self.new {
            document["new_denied"] = new.denied.into();
            document["newly_denied"] = new.newly_denied.into();
            document["newly_allowed"] = new.newly_allowed.into();
            for (title, list) in new.lists() {
                document[format!("{title}s")] = list
                    .into_iter()
                    .map(|(name, changed)| {
                        json!({
                            title: name,
                            "newly_denied": changed.newly_denied,
                            "newly_allowed": changed.newly_allowed,
                        })
                    })
                    .collect();
            }
        }
        if let Some(bound) = fail_over {
            document["fail_over"] = bound.0.to_string().into();
            document["is_above_bound"] = bound.is_exceeded(self).into();
        }
        document
    }
}

impl Agreement {
    fn describe(self) -> Option<String> {
        let Self { known, equal } = self;
        let share = format_share(equal, known);
        (known != 0).then(|| format!("old limits decide {equal} of {known} as recorded ({share})"))
    }
}

impl Changes {
    /// Returns the most changed rules and keys, each with a title. Empty lists are left out.
    fn lists(&self) -> Vec<(&'static str, Vec<(&str, ChangedChecks)>)> {
        let mut keys = most_changed(&self.keys);
        if self.other_keys.total() != 0 {
            keys.push(("other keys", self.other_keys));
        }
        let lists = [("rule", most_changed(&self.rules)), ("key", keys)];
        lists.into_iter().filter(|(_, list)| !list.is_empty()).collect()
    }
}

fn most_changed(changes: &HashMap<String, ChangedChecks>) -> Vec<(&str, ChangedChecks)> {
    let mut list: Vec<_> = changes.iter().map(|(name, changed)| (&**name, *changed)).collect();
    list.sort_unstable_by_key(|(name, changed)| (std::cmp::Reverse(changed.total()), *name));
    list.truncate(MAX_LISTED);
    list
}

fn count_and_share(part: u64, whole: u64) -> String {
    format!("{part} ({})", format_share(part, whole))
}

const fn rounded_to_seconds(duration: Nanos) -> Nanos {
    Nanos::from_secs(duration.as_secs_ceil())
}

/// Formats a name as code in a table cell. Keys come from clients, so a name must not end the cell,
/// and must not be a link, HTML or a mention.
fn code_cell(name: &str) -> String {
    format!("`{}`", name.replace('`', "'").replace('|', "\\|"))
}
