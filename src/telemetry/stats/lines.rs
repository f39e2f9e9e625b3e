//! The reference's statistics as lines: for StatsD, for DogStatsD, for a log.
//!
//! Guarantees: a counter is sent as what it grew by since the last time, and not where it did not, nor where it shrank; a
//! time is sent once.
//! Leaves out: sending.

use std::collections::HashMap;

use regex::Regex;
use serde_json::json;

use super::mapping::filled;
use super::{Looked, Sample, Stats};

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Tags at the end of the name.
    Statsd,
    /// Tags of their own.
    Dogstatsd,
    /// One JSON object a line.
    Log,
}

/// Makes another name and tags of a name.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// What a name must match somewhere.
    pub pattern: Regex,
    /// The name instead, with `$1` for a group.
    pub name: String,
    /// Tags, with the same.
    pub tags: Vec<(String, String)>,
}

/// What was sent so far, and how it is written.
#[derive(Debug)]
pub struct Lines {
    dialect: Dialect,
    /// Sorted, fit for a name.
    tags: Vec<(String, String)>,
    rewrites: Vec<Rewrite>,
    sent: HashMap<Box<str>, u64>,
}

impl Lines {
    /// With these tags on every statistic.
    #[must_use]
    pub fn new(dialect: Dialect, tags: &[(String, String)], rewrites: Vec<Rewrite>) -> Self {
        let fit = |text: &String| text.replace(['.', ':', '|'], "_");
        let mut tags: Vec<_> = tags.iter().map(|(name, text)| (fit(name), fit(text))).collect();
        tags.sort_unstable();
        Self { dialect, tags, rewrites, sent: HashMap::new() }
    }

    /// A line for everything that is to be told of `stats` now.
    pub fn next(&mut self, stats: &Stats, looked: &[Looked]) -> Vec<String> {
        let mut lines = Vec::new();
        stats.each(looked, |sample| match sample {
            Sample::Counter(name, count) => {
                let sent = self.sent.entry(name.into()).or_default();
                let grown = count.saturating_sub(std::mem::replace(sent, count));
                if grown != 0 {
                    lines.push(self.line(name, grown, "c"));
                }
            }
            Sample::Gauge(name, value) => lines.push(self.line(name, value, "g")),
            Sample::Timer(name, timer) => {
                lines.extend(timer.take().into_iter().map(|millis| self.line(name, millis, "ms")));
            }
        });
        lines
    }

    fn line(&self, name: &str, value: u64, kind: &str) -> String {
        match self.dialect {
            Dialect::Statsd => {
                let tags: Vec<_> =
                    self.tags.iter().map(|(tag, text)| format!(".__{tag}={text}")).collect();
                format!("{name}{}:{value}|{kind}", tags.concat())
            }
            Dialect::Dogstatsd => self.dogstatsd(name, value, kind),
            Dialect::Log => {
                let kind = match kind {
                    "c" => "counter",
                    "g" => "gauge",
                    _ => "timer",
                };
                let tags: serde_json::Map<_, _> = self
                    .tags
                    .iter()
                    .map(|(tag, text)| (tag.clone(), text.clone().into()))
                    .collect();
                let stat = json!({"name": name, "type": kind, "value": format!("{value}.000000"), "tags": tags});
                json!({"level": "info", "logger": "stats", "msg": "stat", "json": stat}).to_string()
            }
        }
    }

    fn dogstatsd(&self, name: &str, value: u64, kind: &str) -> String {
        let (name, more) = self.rewritten(name);
        let own = self.tags.iter().cloned();
        let tags: Vec<_> = own.chain(more).map(|(tag, text)| format!("{tag}:{text}")).collect();
        let mark = if tags.is_empty() { "" } else { "|#" };
        format!("{name}:{value}|{kind}{mark}{}", tags.join(","))
    }

    /// What the first rule that matches makes of a name.
    fn rewritten(&self, name: &str) -> (String, Vec<(String, String)>) {
        let matched =
            self.rewrites.iter().find_map(|rule| Some((rule, rule.pattern.captures(name)?)));
        let Some((rule, captures)) = matched else { return (name.to_owned(), Vec::new()) };
        let groups: Vec<&str> =
            captures.iter().skip(1).map(|group| group.map_or("", |group| group.as_str())).collect();
        let tags =
            rule.tags.iter().map(|(tag, text)| (filled(tag, &groups), filled(text, &groups)));
        (filled(&rule.name, &groups), tags.collect())
    }
}
