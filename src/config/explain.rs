//! Which limit a descriptor meets, why, and what a first question would be answered.
//!
//! Guarantees: made of the same walk and the same step that a request takes; the same data as text
//! for a terminal and as JSON for other programs.
//! Leaves out: what a counter holds now, which is for whoever holds it.

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

/// A question's descriptors, explained.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The question's domain.
    pub domain: String,
    /// The configuration that was asked.
    pub revision: u64,
    /// Whether the configuration has it.
    pub known: bool,
    /// One per descriptor, in the question's order.
    pub descriptors: Vec<Explained>,
}

/// One descriptor, explained.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explained {
    /// As a person writes it: [`written`].
    pub descriptor: String,
    /// One per entry that was looked at.
    pub steps: Vec<Looked>,
    /// How it ended, in a sentence.
    pub outcome: String,
    /// The rule, where one was found.
    pub rule: Option<Met>,
    /// The ceiling on requests in flight, where one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Under>,
}

/// The ceiling that a descriptor is under.
#[derive(Debug, Serialize, Deserialize)]
pub struct Under {
    /// The node's path.
    pub path: String,
    /// File and line.
    pub place: String,
    /// The ceiling in words.
    pub says: String,
    /// Who is there, where a running service was asked and somebody was there lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Now>,
}

/// A ceiling's bucket at one instant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// How many are in flight.
    pub in_flight: u64,
    /// How many wait.
    pub waiting: u64,
    /// How many may be in flight.
    pub limit: u64,
    /// The latency of those that succeeded, smoothed.
    pub rtt: Option<String>,
    /// The latency without a queue, where the policy knows one.
    pub min_rtt: Option<String>,
    /// The second over the first: 1 without a queue, less with one.
    pub gradient: Option<f64>,
}

/// One entry at its level.
#[derive(Debug, Serialize, Deserialize)]
pub struct Looked {
    /// `key=value`.
    pub entry: String,
    /// The candidates, in the order of their right.
    pub candidates: Vec<Candidate>,
}

/// One candidate for an entry.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// `exact`, `pattern` or `bare key`.
    pub how: Cow<'static, str>,
    /// What it would be called in the file.
    pub name: String,
    /// `taken`, `absent` or `outranked`.
    pub verdict: Cow<'static, str>,
}

/// The rule that a descriptor met.
#[derive(Debug, Serialize, Deserialize)]
pub struct Met {
    /// The rule's path.
    pub path: String,
    /// File and line.
    pub place: String,
    /// The rule in words.
    pub says: String,
    /// The strategy's word; absent where the rule is unlimited.
    pub strategy: Option<Cow<'static, str>>,
    /// The unit of time the limit counts in.
    pub tick: Option<String>,
    /// Hits that come back per tick, as `hits/ticks`.
    pub tick_is_worth: Option<String>,
    /// What the counter is kept by, for people; absent where nothing is counted.
    pub counter: Option<String>,
    /// The path of the rule that takes this one out of the question.
    pub replaced_by: Option<String>,
    /// What a counter at rest would answer.
    pub fresh: Fresh,
}

/// The answer of a counter at rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// What the question costs.
    pub hits: u64,
    /// `admitted`, `denied` or `never` (more hits than the limit could ever admit).
    pub verdict: Cow<'static, str>,
    /// Hits left; absent where nothing is counted.
    pub remaining: Option<u64>,
    /// Until the counter is at rest again, or its window ends.
    pub reset_after: Option<String>,
}

/// Explains descriptors, each a list of entries, of one question that costs `hits` at `now`.
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
        // One without a limit charges nothing that could be spared.
        let name = rule.filter(|rule| rule.limit.is_some()).and_then(|rule| rule.name.as_deref());
        if let (Some(met), Some(name)) = (&mut one.rule, name) {
            met.replaced_by = by.get(name).map(|path| (*path).to_owned());
        }
    }
}

/// What every descriptor of one question shares.
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

/// What a counter that nobody has asked yet answers.
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
