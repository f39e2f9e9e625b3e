//! Explains the limit that a descriptor matches, the reason, and the decision of a new counter.
//!
//! Guarantees:
//! - Uses the same tree walk and the same decision step as a request.
//! - The text for terminals and the JSON for programs contain the same data.
//!
//! Not covered:
//! - The present state of counters.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::concurrency::Ceiling;
use super::tree::trace::{Outcome, Trace, Verdict};
use super::tree::{How, Match};
use super::written::written;
use super::{Config, Limit, Rule, strategy_word};
use crate::kernel::rate::fixed_window::Count;
use crate::kernel::rate::gcra::Tat;
use crate::kernel::rate::sliding_log::Log;
use crate::kernel::rate::sliding_window::Pair;
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// The explanation of a check.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The domain of the check.
    pub domain: String,
    /// The revision of the configuration.
    pub revision: u64,
    /// `true` if the configuration has the domain.
    pub known: bool,
    /// One explanation per descriptor, in the order of the check.
    pub descriptors: Vec<Explained>,
}

/// The explanation of one descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explained {
    /// The descriptor in the format of [`written`].
    pub descriptor: String,
    /// One step per entry that the lookup compared.
    pub steps: Vec<Looked>,
    /// The outcome, as a sentence.
    pub outcome: String,
    /// The rule, if one was found.
    pub rule: Option<Met>,
    /// The concurrency limit, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Under>,
}

/// The concurrency limit of a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Under {
    /// The node's path.
    pub path: String,
    /// The source file and line.
    pub place: String,
    /// The concurrency limit as text.
    pub says: String,
    /// The state of the bucket, if a running service reported it and the bucket was used recently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Now>,
}

/// The state of one bucket at one instant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of queued requests.
    pub waiting: u64,
    /// The current limit.
    pub limit: u64,
    /// The smoothed latency of successful requests.
    pub rtt: Option<String>,
    /// The latency without queueing, if the algorithm measures it.
    pub min_rtt: Option<String>,
    /// The ratio `min_rtt / rtt`: 1 without queueing, less with queueing.
    pub gradient: Option<f64>,
}

/// The candidates for one entry at its level.
#[derive(Debug, Serialize, Deserialize)]
pub struct Looked {
    /// `key=value`.
    pub entry: String,
    /// The candidates, by priority.
    pub candidates: Vec<Candidate>,
}

/// One candidate for an entry.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// `exact`, `pattern` or `bare key`.
    pub how: Cow<'static, str>,
    /// The name in the file.
    pub name: String,
    /// `taken`, `absent` or `outranked`.
    pub verdict: Cow<'static, str>,
}

/// The rule that applies to a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Met {
    /// The rule's path.
    pub path: String,
    /// The source file and line.
    pub place: String,
    /// The rule as text.
    pub says: String,
    /// The strategy keyword; absent if the rule is unlimited.
    pub strategy: Option<Cow<'static, str>>,
    /// The time unit of the limit's arithmetic.
    pub tick: Option<String>,
    /// The hits regained per tick, as `hits/ticks`.
    pub tick_is_worth: Option<String>,
    /// The key of the counter in readable form; absent if nothing is counted.
    pub counter: Option<String>,
    /// The path of the rule that replaces this one in the check.
    pub replaced_by: Option<String>,
    /// The decision of an empty counter.
    pub fresh: Fresh,
}

/// The decision of an empty counter.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// The hits of the check.
    pub hits: u64,
    /// `admitted`, `denied` or `never` (more hits than the limit could ever allow).
    pub verdict: Cow<'static, str>,
    /// The remaining hits; absent if nothing is counted.
    pub remaining: Option<u64>,
    /// The time until the counter is empty or its window ends.
    pub reset_after: Option<String>,
}

/// Explains a check of these descriptors (lists of entries) that costs `hits` at `now`.
#[must_use]
pub fn explain(
    config: &Config,
    domain: &str,
    descriptors: &[Vec<(&str, &str)>],
    hits: Hits,
    now: Nanos,
) -> Explanation {
    let tree = config.domains.get(domain).map(|domain| &domain.tree);
    let asked = Asked { domain, hits, now };
    let walks = descriptors.iter().map(|entries| (entries, tree.map(|tree| tree.explain(entries))));
    let walks: Vec<_> = walks.collect();
    let rules: Vec<_> = walks.iter().map(|(_, walk)| walk.as_ref().and_then(found)).collect();
    let mut explained: Vec<_> =
        walks.iter().map(|(entries, walk)| asked.descriptor(entries, walk.as_ref())).collect();
    mark_replaced(&mut explained, &rules);
    Explanation {
        domain: domain.to_owned(),
        revision: config.revision.0,
        known: tree.is_some(),
        descriptors: explained,
    }
}

fn under(ceiling: &Ceiling) -> Under {
    let (path, place) = (ceiling.path.to_string(), ceiling.place.to_string());
    Under { path, place, says: ceiling.to_string(), now: None }
}

fn found<'t>(walk: &'t Trace<'_>) -> Option<&'t Rule> {
    match &walk.outcome {
        Outcome::Found(found) => Some(found.rule),
        _ => None,
    }
}

fn mark_replaced(explained: &mut [Explained], rules: &[Option<&Rule>]) {
    let by: HashMap<&str, &str> = rules
        .iter()
        .flatten()
        .flat_map(|rule| rule.replaces.iter().map(|name| (&**name, &*rule.path)))
        .collect();
    for (one, rule) in explained.iter_mut().zip(rules) {
        // An unlimited rule charges nothing, so there is nothing to replace.
        let name = rule.filter(|rule| rule.limit.is_some()).and_then(|rule| rule.name.as_deref());
        if let (Some(met), Some(name)) = (&mut one.rule, name) {
            met.replaced_by = by.get(name).map(|path| (*path).to_owned());
        }
    }
}

struct Asked<'q> {
    domain: &'q str,
    hits: Hits,
    now: Nanos,
}

impl Asked<'_> {
    fn descriptor(&self, entries: &[(&str, &str)], walk: Option<&Trace<'_>>) -> Explained {
        Explained {
            descriptor: written(entries.iter().copied()),
            steps: walk.map(looked).unwrap_or_default(),
            outcome: walk.map_or_else(|| self.unknown_domain(), outcome),
            rule: match walk.map(|walk| &walk.outcome) {
                Some(Outcome::Found(found)) => Some(self.met(found, entries)),
                _ => None,
            },
            ceiling: walk.and_then(|walk| walk.ceiling).map(under),
        }
    }

    fn unknown_domain(&self) -> String {
        format!("no file has the domain `{}`, so nothing is limited", self.domain)
    }

    fn met(&self, found: &Match<'_>, entries: &[(&str, &str)]) -> Met {
        let Match { rule, shared } = found;
        let strategy = rule.limit.as_ref().map(|limit| limit.strategy_at(self.now));
        let counter = entries.iter().enumerate().map(|(position, &(key, value))| {
            let shared = shared.iter().find(|(at, _)| *at == position);
            (key, shared.map_or(value, |&(_, text)| text))
        });
        Met {
            path: rule.path.to_string(),
            place: rule.place.to_string(),
            says: rule.to_string(),
            strategy: strategy.as_ref().map(strategy_word).map(Cow::from),
            tick: strategy.map(|strategy| strategy.tick().to_string()),
            tick_is_worth: strategy
                .and_then(|strategy| strategy.worth())
                .map(|worth| worth.to_string()),
            counter: strategy.map(|_| format!("{}: {}", self.domain, written(counter))),
            replaced_by: None,
            fresh: self.fresh(rule.limit.as_ref()),
        }
    }

    fn fresh(&self, limit: Option<&Limit>) -> Fresh {
        let Some(limit) = limit else {
            let (remaining, reset_after) = (None, None);
            return Fresh { hits: self.hits.0, verdict: "admitted".into(), remaining, reset_after };
        };
        let (verdict, room) = match at_rest(&limit.strategy_at(self.now), self.now, self.hits) {
            Step::Admit(room) => ("admitted", room),
            Step::Deny { room, .. } => ("denied", room),
            Step::Never(room) => ("never", room),
            Step::Stale => ("denied", Room::default()),
        };
        let remaining = Some(room.remaining.0);
        let reset_after = Some(room.reset_after.to_string());
        Fresh { hits: self.hits.0, verdict: verdict.into(), remaining, reset_after }
    }
}

fn at_rest(strategy: &Strategy, now: Nanos, hits: Hits) -> Step {
    match strategy {
        Strategy::Gcra(limit) => limit.ask(&Tat::default(), now, hits),
        Strategy::FixedWindow(limit) => limit.ask(&Count::default(), now, hits),
        Strategy::SlidingWindow(limit) => limit.ask(&Pair::default(), now, hits),
        Strategy::SlidingLog(limit) => limit.ask(&Log::default(), now, hits),
    }
}

fn looked(walk: &Trace<'_>) -> Vec<Looked> {
    let candidate = |tried: &super::tree::trace::Tried<'_>| Candidate {
        how: match tried.how {
            How::Exact => "exact",
            How::Wildcard => "pattern",
            How::Bare => "bare key",
        }
        .into(),
        name: tried.name.to_string(),
        verdict: match tried.verdict {
            Verdict::Taken => "taken",
            Verdict::Absent => "absent",
            Verdict::Outranked => "outranked",
        }
        .into(),
    };
    let steps = walk.steps.iter().map(|step| Looked {
        entry: written([(&*step.entry.0, &*step.entry.1)]),
        candidates: step.tried.iter().map(candidate).collect(),
    });
    steps.collect()
}

fn outcome(walk: &Trace<'_>) -> String {
    let last = walk.steps.last();
    let entry = last.map(|step| written([(&*step.entry.0, &*step.entry.1)])).unwrap_or_default();
    let node = last.and_then(|step| step.taken()).map(|taken| &*taken.name).unwrap_or_default();
    match &walk.outcome {
        Outcome::Found(Match { rule, .. }) => {
            let met = if rule.limit.is_some() { "limited" } else { "made unlimited" };
            format!("{met} by `{}` ({})", rule.path, rule.place)
        }
        Outcome::NoEntries => "a descriptor without entries meets no limit".to_owned(),
        Outcome::NoNode => format!("no limit: this level has nothing for `{entry}`"),
        Outcome::NoChildren => {
            format!("no limit: `{node}` has no descriptors below it, and this descriptor goes on")
        }
        Outcome::NoLimit { .. } if walk.ceiling.is_some() => {
            format!("no rate limit: `{node}` has a ceiling and no rate_limit")
        }
        Outcome::NoLimit { has_children: true } => {
            format!("no limit: `{node}` has no rate_limit of its own, only descriptors below it")
        }
        Outcome::NoLimit { has_children: false } => {
            format!("no limit: `{node}` has no rate_limit, which exempts what it matches")
        }
    }
}
