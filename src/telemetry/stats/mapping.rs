//! How a statistic's name becomes a metric's name and labels: the rules of `statsd_exporter`.
//!
//! Guarantees: patterns of parts rule before regular expressions, each in the file's order; what no rule maps keeps
//! its name, made fit for a metric.
//! Leaves out: `ttl` (metrics never expire), and of summaries all but which quantiles: they are those of the last ten minutes.

use std::collections::BTreeMap;

use regex::Regex;
use serde::Deserialize;

/// The bounds of a histogram that names none, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The quantiles of a summary that names none.
pub(super) const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// The rules that the reference has built in.
const BUILT_IN: &str = include_str!("mapping.yaml");

/// A kind of statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How long something took.
    Timer,
}

/// The rules.
#[derive(Debug, Default)]
pub struct Mapping {
    rules: Vec<Rule>,
}

/// What a statistic is shown as.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapped {
    /// The metric's name.
    pub name: String,
    /// Its labels, by name.
    pub labels: BTreeMap<String, String>,
    /// A histogram's upper bounds; empty for what is none.
    pub buckets: Vec<f64>,
    /// The quantiles that are shown of what is no histogram.
    pub quantiles: Vec<f64>,
    /// What values are multiplied by.
    pub scale: f64,
    /// It is not shown.
    pub is_dropped: bool,
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    kind: Option<Kind>,
    name: String,
    labels: BTreeMap<String, String>,
    buckets: Vec<f64>,
    quantiles: Vec<f64>,
    scale: f64,
    is_dropped: bool,
}

#[derive(Debug)]
enum Pattern {
    /// Parts between dots; none stands for any.
    Parts(Vec<Option<String>>),
    Regex(Regex),
}

/// Why a text holds no rules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not YAML, or not of this shape.
    #[error("{0}")]
    Unreadable(String),
    /// One of the rules.
    #[error("mapping {number}: {what}")]
    Rule {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        what: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    defaults: Defaults,
    mappings: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Defaults {
    match_type: Option<String>,
    observer_type: Option<String>,
    timer_type: Option<String>,
    histogram_options: Option<Histogram>,
    buckets: Option<Vec<f64>>,
    summary_options: Option<Summary>,
    quantiles: Option<Vec<Quantile>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    r#match: String,
    match_type: Option<String>,
    match_metric_type: Option<String>,
    name: String,
    labels: BTreeMap<String, String>,
    observer_type: Option<String>,
    timer_type: Option<String>,
    histogram_options: Option<Histogram>,
    buckets: Option<Vec<f64>>,
    summary_options: Option<Summary>,
    quantiles: Option<Vec<Quantile>>,
    action: Option<String>,
    scale: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Histogram {
    buckets: Option<Vec<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Summary {
    quantiles: Option<Vec<Quantile>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Quantile {
    quantile: f64,
}

/// Those that options name, in their new place or their old one.
fn named(summary: Option<&Summary>, old: Option<&Vec<Quantile>>) -> Option<Vec<f64>> {
    let list = summary.and_then(|summary| summary.quantiles.as_ref()).or(old)?;
    Some(list.iter().map(|named| named.quantile).collect())
}

impl Mapping {
    /// The rules that the reference has built in; with times in milliseconds, if asked.
    #[must_use]
    pub fn built_in(milliseconds: bool) -> Self {
        // A test holds that it is sound.
        let mut mapping = Self::read(BUILT_IN).unwrap_or_default();
        for rule in mapping.rules.iter_mut().filter(|_| milliseconds) {
            rule.scale = 1.0;
        }
        mapping
    }

    /// The rules of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Self, Error> {
        let file: File =
            serde_saphyr::from_str(text).map_err(|error| Error::Unreadable(error.to_string()))?;
        let rules = file.mappings.into_iter().enumerate().map(|(at, entry)| {
            rule(entry, &file.defaults).map_err(|what| Error::Rule { number: at + 1, what })
        });
        let mut rules: Vec<_> = rules.collect::<Result<_, _>>()?;
        rules.sort_by_key(|rule| matches!(rule.pattern, Pattern::Regex(_)));
        Ok(Self { rules })
    }

    /// What the first rule for `name` makes of it.
    #[must_use]
    pub fn map(&self, name: &str, kind: Kind) -> Option<Mapped> {
        let of_kind = self.rules.iter().filter(|rule| rule.kind.is_none_or(|own| own == kind));
        of_kind.into_iter().find_map(|rule| rule.map(name))
    }
}

fn rule(entry: Entry, defaults: &Defaults) -> Result<Rule, String> {
    let match_type = entry.match_type.as_ref().or(defaults.match_type.as_ref());
    let pattern = match match_type.map_or("glob", String::as_str) {
        "glob" | "" => Pattern::Parts(parts(&entry.r#match)),
        "regex" => Pattern::Regex(Regex::new(&entry.r#match).map_err(|error| error.to_string())?),
        other => return Err(format!("`match_type: {other}` is neither glob nor regex")),
    };
    let kind = match entry.match_metric_type.as_deref() {
        None | Some("") => None,
        Some("counter") => Some(Kind::Counter),
        Some("gauge") => Some(Kind::Gauge),
        Some("timer" | "observer") => Some(Kind::Timer),
        Some(other) => return Err(format!("`match_metric_type: {other}` is not known")),
    };
    let is_dropped = entry.action.as_deref() == Some("drop");
    if entry.name.is_empty() && !is_dropped {
        return Err("a `name` is needed".to_owned());
    }
    let observer = entry.observer_type.as_ref().or(entry.timer_type.as_ref());
    let observer = observer.or(defaults.observer_type.as_ref()).or(defaults.timer_type.as_ref());
    let is_histogram = observer.is_some_and(|kind| kind == "histogram");
    let own = entry.histogram_options.and_then(|options| options.buckets).or(entry.buckets);
    let common = || {
        let options = defaults.histogram_options.as_ref();
        options.and_then(|options| options.buckets.clone()).or_else(|| defaults.buckets.clone())
    };
    let buckets = || own.or_else(common).unwrap_or_else(|| BUCKETS.to_vec());
    let quantiles = named(entry.summary_options.as_ref(), entry.quantiles.as_ref())
        .or_else(|| named(defaults.summary_options.as_ref(), defaults.quantiles.as_ref()))
        .unwrap_or_else(|| QUANTILES.to_vec());
    if quantiles.iter().any(|quantile| !(0.0..=1.0).contains(quantile)) {
        return Err("a quantile is from 0 to 1".to_owned());
    }
    Ok(Rule {
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

fn parts(glob: &str) -> Vec<Option<String>> {
    glob.split('.').map(|part| (part != "*").then(|| part.to_owned())).collect()
}

impl Rule {
    fn map(&self, name: &str) -> Option<Mapped> {
        let groups = self.pattern.groups(name)?;
        let labels = self.labels.iter().map(|(label, text)| (label.clone(), filled(text, &groups)));
        Some(Mapped {
            name: fit(&filled(&self.name, &groups)),
            labels: labels.collect(),
            buckets: self.buckets.clone(),
            quantiles: self.quantiles.clone(),
            scale: self.scale,
            is_dropped: self.is_dropped,
        })
    }
}

impl Pattern {
    /// What stands for `$1` and so on.
    fn groups<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        match self {
            Self::Parts(parts) => {
                let found: Vec<&str> = name.split('.').collect();
                let fits = parts.len() == found.len()
                    && parts
                        .iter()
                        .zip(&found)
                        .all(|(part, found)| part.as_ref().is_none_or(|part| part == found));
                let groups = parts.iter().zip(found).filter(|(part, _)| part.is_none());
                fits.then(|| groups.map(|(_, found)| found).collect())
            }
            Self::Regex(regex) => {
                let captures = regex.captures(name)?;
                let group =
                    |group: Option<regex::Match<'n>>| group.map_or("", |group| group.as_str());
                Some(captures.iter().skip(1).map(group).collect())
            }
        }
    }
}

/// `text` with the groups for `$1` and `${1}`; one that is not there is left as it stands.
pub(super) fn filled(text: &str, groups: &[&str]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let (reference, number) = reference(rest);
        match number.checked_sub(1).and_then(|number| groups.get(number)) {
            Some(group) => filled.push_str(group),
            None => filled.push_str(&rest[..reference]),
        }
        rest = &rest[reference..];
    }
    filled.push_str(rest);
    filled
}

/// How long the reference is that `text` begins with, and its number; 0 for none.
fn reference(text: &str) -> (usize, usize) {
    let (open, close) = if text.starts_with("${") { (2, 1) } else { (1, 0) };
    let digits = text[open..].bytes().take_while(u8::is_ascii_digit).count();
    let number = text[open..open + digits].parse().unwrap_or(0);
    let is_closed = close == 0 || text[open + digits..].starts_with('}');
    if number == 0 || !is_closed { (1, 0) } else { (open + digits + close, number) }
}

/// `name` as a metric may be called.
#[must_use]
pub fn fit(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let first = name.starts_with(|c: char| c.is_ascii_digit()).then_some('_');
    first.into_iter().chain(name.chars().map(fit)).collect()
}
