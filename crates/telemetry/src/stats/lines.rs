//! Formats the statistics of envoyproxy/ratelimit as lines for StatsD, DogStatsD or a log.
//!
//! Guarantees:
//! - A counter is formatted as its growth since the last lines, and omitted if it did not grow.
//! - No name of a rule, domain or tag adds a line or a value.
//! - Each recorded duration is formatted once.

use std::collections::HashMap;

use regex::Regex;
use serde_json::json;

use super::mapping::fill_template;
use super::{ExternalStat, StatSample, Stats};

/// The format of lines with statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// StatsD, with tags at the end of the name.
    Statsd,
    /// DogStatsD, with tags in a separate field.
    Dogstatsd,
    /// Log lines, one JSON object each.
    Log,
}

/// A rule (mogrifier) that replaces the name of a statistic and adds tags.
#[derive(Clone, Debug)]
pub struct NameRewrite {
    /// The pattern of a part of the statistic's name.
    pub pattern: Regex,
    /// The new name of the statistic, where `$1` is the first group of the pattern.
    pub name: String,
    /// The names and values of the added tags, where `$1` is the first group of the pattern.
    pub tags: Vec<(String, String)>,
}

/// A formatter of statistics, with the last value of each counter.
#[derive(Debug)]
pub struct StatLineFormatter {
    format: LineFormat,
    /// The tags of every statistic, sorted and without reserved characters.
    tags: Vec<(String, String)>,
    rewrites: Vec<NameRewrite>,
    last_values: HashMap<Box<str>, u64>,
}

impl StatLineFormatter {
    /// Creates a formatter that adds `tags` to every statistic.
    #[must_use]
    pub fn new(format: LineFormat, tags: &[(String, String)], rewrites: Vec<NameRewrite>) -> Self {
        let sanitize = |text: &String| replace_reserved(text).replace('.', "_");
        let mut tags: Vec<_> =
            tags.iter().map(|(tag, text)| (sanitize(tag), sanitize(text))).collect();
        tags.sort_unstable();
        Self { format, tags, rewrites, last_values: HashMap::new() }
    }

    /// Returns one line for each change of `stats` since the last call, and for each gauge.
    pub fn next_lines(&mut self, stats: &Stats, external_stats: &[ExternalStat]) -> Vec<String> {
        let mut lines = Vec::new();
        stats.for_each(external_stats, |sample| match sample {
            StatSample::Counter(name, count) => {
                let last_value = self.last_values.entry(name.into()).or_default();
                let growth = count.saturating_sub(std::mem::replace(last_value, count));
                if growth != 0 {
                    lines.push(self.format_line(name, growth, "c"));
                }
            }
            StatSample::Gauge(name, value) => lines.push(self.format_line(name, value, "g")),
            StatSample::Timer(name, timer) => {
                lines.extend(
                    timer
                        .take_unsent()
                        .into_iter()
                        .map(|millis| self.format_line(name, millis, "ms")),
                );
            }
        });
        lines
    }

    fn format_line(&self, name: &str, value: u64, kind: &str) -> String {
        match self.format {
            LineFormat::Statsd => {
                let name = replace_reserved(name);
                let tags: Vec<_> =
                    self.tags.iter().map(|(tag, text)| format!(".__{tag}={text}")).collect();
                format!("{name}{}:{value}|{kind}", tags.concat())
            }
            LineFormat::Dogstatsd => self.format_dogstatsd(name, value, kind),
            LineFormat::Log => {
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

    fn format_dogstatsd(&self, name: &str, value: u64, kind: &str) -> String {
        let (name, added_tags) = self.rewrite(&replace_reserved(name));
        let tags = self.tags.iter().cloned().chain(added_tags);
        let tags: Vec<_> = tags.map(|(tag, text)| format!("{tag}:{text}")).collect();
        let separator = if tags.is_empty() { "" } else { "|#" };
        format!("{name}:{value}|{kind}{separator}{}", tags.join(","))
    }

    /// Applies the first matching rule to a name without reserved characters.
    fn rewrite(&self, name: &str) -> (String, Vec<(String, String)>) {
        let matched =
            self.rewrites.iter().find_map(|rule| Some((rule, rule.pattern.captures(name)?)));
        let Some((rule, captures)) = matched else { return (name.to_owned(), Vec::new()) };
        let groups: Vec<&str> =
            captures.iter().skip(1).map(|group| group.map_or("", |group| group.as_str())).collect();
        let tags = rule
            .tags
            .iter()
            .map(|(tag, text)| (fill_template(tag, &groups), fill_template(text, &groups)));
        (fill_template(&rule.name, &groups), tags.collect())
    }
}

/// Replaces the characters that end a name or a line. The name of an unknown domain is from a request.
fn replace_reserved(text: &str) -> String {
    let is_reserved = |symbol: char| symbol.is_control() || matches!(symbol, ':' | '|');
    text.replace(is_reserved, "_")
}
