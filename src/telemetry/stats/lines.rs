//! Formats the statistics of envoyproxy/ratelimit as lines for StatsD, DogStatsD or a log.
//!
//! Guarantees:
//! - A counter is formatted as its growth since the last call.
//! - A counter that did not grow is omitted.
//! - Each duration is formatted once.
//!
//! Not covered:
//! - Sending the lines.

use std::collections::HashMap;

use regex::Regex;
use serde_json::json;

use super::mapping::filled;
use super::{Looked, Sample, Stats};

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// StatsD, with tags at the end of the name.
    Statsd,
    /// DogStatsD, with tags in a separate field.
    Dogstatsd,
    /// Log lines, one JSON object each.
    Log,
}

/// A rule that replaces the name of a statistic and adds tags.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// The pattern. It may match any part of the name.
    pub pattern: Regex,
    /// The new name. `$1` stands for the first group.
    pub name: String,
    /// The tags, with the same placeholders.
    pub tags: Vec<(String, String)>,
}

/// A formatter that remembers the last value of each counter.
#[derive(Debug)]
pub struct Lines {
    dialect: Dialect,
    /// Sorted and without reserved characters.
    tags: Vec<(String, String)>,
    rewrites: Vec<Rewrite>,
    sent: HashMap<Box<str>, u64>,
}

impl Lines {
    /// Creates a formatter that adds `tags` to every statistic.
    #[must_use]
    pub fn new(dialect: Dialect, tags: &[(String, String)], rewrites: Vec<Rewrite>) -> Self {
        let fit = |text: &String| text.replace(['.', ':', '|'], "_");
        let mut tags: Vec<_> = tags.iter().map(|(name, text)| (fit(name), fit(text))).collect();
        tags.sort_unstable();
        Self { dialect, tags, rewrites, sent: HashMap::new() }
    }

    /// Returns the lines for all changes of `stats` since the last call.
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

    /// Applies the first matching rule. Returns the new name and its tags.
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
