//! Maps the names of statistics to metric names and labels, with the rules of `statsd_exporter`.
//!
//! Guarantees:
//! - Rules with a glob are tried before rules with a regular expression, each in file order.
//!
//! Not covered:
//! - The option `ttl`: metrics never expire.
//! - Options of summaries except `quantiles`. Quantiles cover the last ten minutes.

use std::collections::BTreeMap;

use regex::Regex;
use serde::Deserialize;

/// The default bucket bounds of a histogram, in seconds.
const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub(super) const DEFAULT_QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

const BUILT_IN_RULES: &str = include_str!("mapping.yaml");

/// The kind of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatKind {
    /// A value that only grows.
    Counter,
    /// A value that grows and shrinks.
    Gauge,
    /// A series of durations.
    Timer,
}

/// A list of rules that map the names of statistics to metrics.
#[derive(Debug, Default)]
pub struct StatMapping {
    rules: Vec<MappingRule>,
}

/// The metric to which a statistic is mapped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MappedMetric {
    /// The name of the metric.
    pub name: String,
    /// The values of the metric's labels, by label name.
    pub labels: BTreeMap<String, String>,
    /// The upper bounds of a histogram's buckets. Empty for other metrics.
    pub buckets: Vec<f64>,
    /// The quantiles of a summary.
    pub quantiles: Vec<f64>,
    /// The factor by which values of the statistic are multiplied.
    pub scale: f64,
    /// `true` if the statistic is not shown as a metric.
    pub is_dropped: bool,
}

#[derive(Debug)]
struct MappingRule {
    pattern: NamePattern,
    kind: Option<StatKind>,
    name: String,
    labels: BTreeMap<String, String>,
    buckets: Vec<f64>,
    quantiles: Vec<f64>,
    scale: f64,
    is_dropped: bool,
}

#[derive(Debug)]
enum NamePattern {
    /// The parts of a glob between dots. `None` stands for `*`, which matches any part.
    Parts(Vec<Option<String>>),
    Regex(Regex),
}

/// An error in a file of mapping rules.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file of mapping rules is not YAML or has an unknown structure.
    #[error("{0}")]
    Unreadable(String),
    /// A mapping rule is invalid.
    #[error("mapping {number}: {what}")]
    InvalidRule {
        /// The position of the invalid rule in the file, from 1.
        number: usize,
        /// The error of the rule.
        what: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MappingFile {
    defaults: MappingDefaults,
    mappings: Vec<MappingEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MappingDefaults {
    match_type: Option<String>,
    observer_type: Option<String>,
    timer_type: Option<String>,
    histogram_options: Option<HistogramOptions>,
    buckets: Option<Vec<f64>>,
    summary_options: Option<SummaryOptions>,
    quantiles: Option<Vec<QuantileOption>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MappingEntry {
    r#match: String,
    match_type: Option<String>,
    match_metric_type: Option<String>,
    name: String,
    labels: BTreeMap<String, String>,
    observer_type: Option<String>,
    timer_type: Option<String>,
    histogram_options: Option<HistogramOptions>,
    buckets: Option<Vec<f64>>,
    summary_options: Option<SummaryOptions>,
    quantiles: Option<Vec<QuantileOption>>,
    action: Option<String>,
    scale: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HistogramOptions {
    buckets: Option<Vec<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SummaryOptions {
    quantiles: Option<Vec<QuantileOption>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct QuantileOption {
    quantile: f64,
}

/// Returns the quantiles of `summary_options`, or of the deprecated field `quantiles`.
fn option_quantiles(
    summary_options: Option<&SummaryOptions>,
    deprecated: Option<&Vec<QuantileOption>>,
) -> Option<Vec<f64>> {
    let options = summary_options.and_then(|options| options.quantiles.as_ref());
    Some(options.or(deprecated)?.iter().map(|option| option.quantile).collect())
}

impl StatMapping {
    /// Returns the rules of envoyproxy/ratelimit, with durations in milliseconds or seconds.
    #[must_use]
    pub fn built_in(milliseconds: bool) -> Self {
        // Parsing never fails: a test parses the built-in rules.
        let mut mapping = Self::parse(BUILT_IN_RULES).unwrap_or_default();
        for rule in mapping.rules.iter_mut().filter(|_| milliseconds) {
            rule.scale = 1.0;
        }
        mapping
    }

    /// Parses the text of a YAML file.
    ///
    /// # Errors
    /// The file is not YAML or has an unknown structure, or a rule is invalid.
    pub fn parse(text: &str) -> Result<Self, MappingError> {
        let file: MappingFile = serde_saphyr::from_str(text)
            .map_err(|error| MappingError::Unreadable(error.to_string()))?;
        let rules = file.mappings.into_iter().enumerate().map(|(index, entry)| {
            parse_rule(entry, &file.defaults)
                .map_err(|what| MappingError::InvalidRule { number: index + 1, what })
        });
        let mut rules: Vec<_> = rules.collect::<Result<_, _>>()?;
        rules.sort_by_key(|rule| matches!(rule.pattern, NamePattern::Regex(_)));
        Ok(Self { rules })
    }

    /// Applies the first matching rule to `name`. Returns `None` if no rule matches.
    #[must_use]
    pub fn map(&self, name: &str, kind: StatKind) -> Option<MappedMetric> {
        let mut rules = self.rules.iter().filter(|rule| rule.kind.is_none_or(|k| k == kind));
        rules.find_map(|rule| rule.map(name))
    }
}

fn parse_rule(entry: MappingEntry, defaults: &MappingDefaults) -> Result<MappingRule, String> {
    let match_type = entry.match_type.as_ref().or(defaults.match_type.as_ref());
    let pattern = match match_type.map_or("glob", String::as_str) {
        "glob" | "" => NamePattern::Parts(parse_glob(&entry.r#match)),
        "regex" => {
            NamePattern::Regex(Regex::new(&entry.r#match).map_err(|error| error.to_string())?)
        }
        other => return Err(format!("`match_type` must be glob or regex, got `{other}`")),
    };
    let kind = match entry.match_metric_type.as_deref() {
        None | Some("") => None,
        Some("counter") => Some(StatKind::Counter),
        Some("gauge") => Some(StatKind::Gauge),
        Some("timer" | "observer") => Some(StatKind::Timer),
        Some(other) => {
            return Err(format!(
                "`match_metric_type` must be counter, gauge, timer or observer, got `{other}`"
            ));
        }
    };
    let is_dropped = entry.action.as_deref() == Some("drop");
    if entry.name.is_empty() && !is_dropped {
        return Err("`name` is missing".to_owned());
    }
    let observer = entry.observer_type.as_ref().or(entry.timer_type.as_ref());
    let observer = observer.or(defaults.observer_type.as_ref()).or(defaults.timer_type.as_ref());
    let is_histogram = observer.is_some_and(|kind| kind == "histogram");
    let entry_buckets =
        entry.histogram_options.and_then(|options| options.buckets).or(entry.buckets);
    let default_buckets = || {
        let options = defaults.histogram_options.as_ref();
        options.and_then(|options| options.buckets.clone()).or_else(|| defaults.buckets.clone())
    };
    let buckets =
        || entry_buckets.or_else(default_buckets).unwrap_or_else(|| DEFAULT_BUCKETS.to_vec());
    let quantiles = option_quantiles(entry.summary_options.as_ref(), entry.quantiles.as_ref())
        .or_else(|| {
            option_quantiles(defaults.summary_options.as_ref(), defaults.quantiles.as_ref())
        })
        .unwrap_or_else(|| DEFAULT_QUANTILES.to_vec());
    if quantiles.iter().any(|quantile| !(0.0..=1.0).contains(quantile)) {
        return Err("a quantile must be from 0 to 1".to_owned());
    }
    Ok(MappingRule {
        pattern,
        kind,
        name: entry.name,
        labels: entry.labels,
        buckets: if is_histogram { buckets() } else { Vec::new() },
        quantiles,
        scale: entry.scale.unwrap_or(1.0),
        is_dropped,
    })
}

fn parse_glob(glob: &str) -> Vec<Option<String>> {
    glob.split('.').map(|part| (part != "*").then(|| part.to_owned())).collect()
}

impl MappingRule {
    fn map(&self, name: &str) -> Option<MappedMetric> {
        let groups = self.pattern.capture_groups(name)?;
        let labels =
            self.labels.iter().map(|(label, text)| (label.clone(), fill_template(text, &groups)));
        Some(MappedMetric {
            name: sanitize_metric_name(&fill_template(&self.name, &groups)),
            labels: labels.collect(),
            buckets: self.buckets.clone(),
            quantiles: self.quantiles.clone(),
            scale: self.scale,
            is_dropped: self.is_dropped,
        })
    }
}

impl NamePattern {
    /// Returns the texts of the groups `$1`, `$2` and so on, or `None` if `name` does not match.
    fn capture_groups<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        match self {
            Self::Parts(parts) => {
                let name_parts: Vec<&str> = name.split('.').collect();
                let is_match = parts.len() == name_parts.len()
                    && parts
                        .iter()
                        .zip(&name_parts)
                        .all(|(part, name)| part.as_ref().is_none_or(|part| part == name));
                let groups = parts.iter().zip(name_parts).filter(|(part, _)| part.is_none());
                is_match.then(|| groups.map(|(_, name)| name).collect())
            }
            Self::Regex(regex) => {
                let captures = regex.captures(name)?;
                let text =
                    |group: Option<regex::Match<'n>>| group.map_or("", |group| group.as_str());
                Some(captures.iter().skip(1).map(text).collect())
            }
        }
    }
}

/// Replaces `$1` and `${1}` by the first group, and so on, except for missing groups.
pub(super) fn fill_template(template: &str, groups: &[&str]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find('$') {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        let (reference_len, number) = parse_reference(rest);
        match number.checked_sub(1).and_then(|index| groups.get(index)) {
            Some(group) => filled.push_str(group),
            None => filled.push_str(&rest[..reference_len]),
        }
        rest = &rest[reference_len..];
    }
    filled.push_str(rest);
    filled
}

/// Returns the length and number of the reference at the start of `text`. The number 0 means none.
fn parse_reference(text: &str) -> (usize, usize) {
    let (open, close) = if text.starts_with("${") { (2, 1) } else { (1, 0) };
    let digits = text[open..].bytes().take_while(u8::is_ascii_digit).count();
    let number = text[open..open + digits].parse().unwrap_or(0);
    let is_closed = close == 0 || text[open + digits..].starts_with('}');
    if number == 0 || !is_closed { (1, 0) } else { (open + digits + close, number) }
}

/// Replaces the characters of `name` that a metric name does not allow by `_`.
#[must_use]
pub fn sanitize_metric_name(name: &str) -> String {
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let prefix = name.starts_with(|c: char| c.is_ascii_digit()).then_some('_');
    prefix.into_iter().chain(name.chars().map(sanitize)).collect()
}
