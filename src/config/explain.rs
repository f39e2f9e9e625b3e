//! Explains which limit a descriptor matches and why, for the command `explain`.
//!
//! Guarantees:
//! - The rule is found and decides with the same functions as in a real check.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::concurrency::ConcurrencyLimit;
use super::descriptor_text::format_entries;
use super::tree::trace::{CandidateStatus, LookupCandidate, LookupOutcome, LookupTrace};
use super::tree::{MatchKind, RuleMatch};
use super::{Config, Limit, Rule, strategy_keyword};
use crate::kernel::rate::fixed_window::WindowCount;
use crate::kernel::rate::gcra::Tat;
use crate::kernel::rate::sliding_log::ArrivalLog;
use crate::kernel::rate::sliding_window::WindowPair;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
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
    /// The descriptors, in the order of the check.
    pub descriptors: Vec<DescriptorExplanation>,
}

/// The explanation of one descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct DescriptorExplanation {
    /// The descriptor as text, in the format of [`format_entries`].
    pub descriptor: String,
    /// The entries that the lookup compared with the rules, in order.
    pub steps: Vec<EntryExplanation>,
    /// The result of the lookup, as a sentence.
    pub outcome: String,
    /// The rule that the descriptor matches, if any.
    pub rule: Option<RuleExplanation>,
    /// The concurrency limit that the descriptor matches, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<ConcurrencyExplanation>,
}

/// The concurrency limit of a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConcurrencyExplanation {
    /// The full path of its rule.
    pub path: String,
    /// The file and line of the rule, `file:line`.
    pub place: String,
    /// The concurrency limit as text, such as `64 in flight, rejected with 503`.
    pub says: String,
    /// The state of the limit's bucket, if a running service used it recently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<BucketSnapshot>,
}

/// The state of one concurrency bucket at one instant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketSnapshot {
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of requests that wait in the queue.
    pub waiting: u64,
    /// The current limit; an adaptive limit changes with latency.
    pub limit: u64,
    /// The smoothed latency of successful requests, if it is measured.
    pub rtt: Option<String>,
    /// The latency without queueing, if the algorithm measures it.
    pub min_rtt: Option<String>,
    /// The ratio `min_rtt / rtt`: 1 without queueing, less with queueing.
    pub gradient: Option<f64>,
}

/// One entry of a descriptor, and the rules that were compared with it.
#[derive(Debug, Serialize, Deserialize)]
pub struct EntryExplanation {
    /// The entry as `key=value`.
    pub entry: String,
    /// The rules that could match, in the order of priority.
    pub candidates: Vec<Candidate>,
}

/// One rule that could match an entry.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The kind of the rule's name: `exact`, `pattern` or `bare key`.
    pub how: Cow<'static, str>,
    /// The rule's name: `key`, or `key_value` with a value or pattern.
    pub name: String,
    /// `taken`, `absent` (no such rule) or `outranked` (a rule of higher priority was taken).
    pub verdict: Cow<'static, str>,
}

/// The rule that applies to a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct RuleExplanation {
    /// The full path of the rule.
    pub path: String,
    /// The file and line of the rule, `file:line`.
    pub place: String,
    /// The rule as text, such as `10 per second, fixed_window`.
    pub says: String,
    /// The strategy, such as `gcra`; absent if the rule is unlimited.
    pub strategy: Option<Cow<'static, str>>,
    /// The smallest time step of the strategy's arithmetic.
    pub tick: Option<String>,
    /// The hits that become available in each tick, as a fraction.
    pub tick_is_worth: Option<String>,
    /// The key of the counter in readable form; absent if the rule counts nothing.
    pub counter: Option<String>,
    /// The path of the rule of the same check whose `replaces` disables this rule.
    pub replaced_by: Option<String>,
    /// The decision of this rule's limit with an empty counter.
    pub fresh: FreshDecision,
}

/// The decision of a rule's limit with an empty counter.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreshDecision {
    /// The hits of the check.
    pub hits: u64,
    /// `admitted`, `denied`, or `never` (the check has more hits than the limit ever allows).
    pub verdict: Cow<'static, str>,
    /// The hits that the limit would allow after this check; absent if nothing is counted.
    pub remaining: Option<u64>,
    /// The time until the counter is empty, or until the fixed window ends.
    pub reset_after: Option<String>,
}

/// Explains a check of `hits` hits at the instant `now`. A descriptor is a list of keys and values.
#[must_use]
pub fn explain(
    config: &Config,
    domain: &str,
    descriptors: &[Vec<(&str, &str)>],
    hits: Hits,
    now: Nanos,
) -> Explanation {
    let tree = config.domains.get(domain).map(|domain| &domain.tree);
    let context = ExplainContext { domain, hits, now };
    let traces: Vec<_> = descriptors
        .iter()
        .map(|entries| (entries, tree.map(|tree| tree.trace_lookup(entries))))
        .collect();
    let rules: Vec<_> =
        traces.iter().map(|(_, trace)| trace.as_ref().and_then(matched_rule)).collect();
    let mut explanations: Vec<_> = traces
        .iter()
        .map(|(entries, trace)| context.explain_descriptor(entries, trace.as_ref()))
        .collect();
    mark_replaced(&mut explanations, &rules);
    Explanation {
        domain: domain.to_owned(),
        revision: config.revision.0,
        known: tree.is_some(),
        descriptors: explanations,
    }
}

fn explain_concurrency(limit: &ConcurrencyLimit) -> ConcurrencyExplanation {
    let (path, place) = (limit.path.to_string(), limit.location.to_string());
    ConcurrencyExplanation { path, place, says: limit.to_string(), now: None }
}

fn matched_rule<'t>(trace: &'t LookupTrace<'_>) -> Option<&'t Rule> {
    match &trace.outcome {
        LookupOutcome::Found(rule_match) => Some(rule_match.rule),
        _ => None,
    }
}

fn mark_replaced(explanations: &mut [DescriptorExplanation], rules: &[Option<&Rule>]) {
    let path_of_replacing_rule: HashMap<&str, &str> = rules
        .iter()
        .flatten()
        .flat_map(|rule| rule.replaces.iter().map(|name| (&**name, &*rule.path)))
        .collect();
    for (explanation, rule) in explanations.iter_mut().zip(rules) {
        // `replaces` has no effect on an unlimited rule, which charges no counter.
        let name = rule.filter(|rule| rule.limit.is_some()).and_then(|rule| rule.name.as_deref());
        if let (Some(rule), Some(name)) = (&mut explanation.rule, name) {
            rule.replaced_by = path_of_replacing_rule.get(name).map(|path| (*path).to_owned());
        }
    }
}

struct ExplainContext<'q> {
    domain: &'q str,
    hits: Hits,
    now: Nanos,
}

impl ExplainContext<'_> {
    fn explain_descriptor(
        &self,
        entries: &[(&str, &str)],
        trace: Option<&LookupTrace<'_>>,
    ) -> DescriptorExplanation {
        DescriptorExplanation {
            descriptor: format_entries(entries.iter().copied()),
            steps: trace.map(explain_steps).unwrap_or_default(),
            outcome: trace.map_or_else(|| self.unknown_domain_outcome(), outcome_sentence),
            rule: match trace.map(|trace| &trace.outcome) {
                Some(LookupOutcome::Found(rule_match)) => {
                    Some(self.explain_rule(rule_match, entries))
                }
                _ => None,
            },
            ceiling: trace.and_then(|trace| trace.concurrency_limit).map(explain_concurrency),
        }
    }

    fn unknown_domain_outcome(&self) -> String {
        format!("no file has the domain `{}`, so nothing is limited", self.domain)
    }

    fn explain_rule(
        &self,
        rule_match: &RuleMatch<'_>,
        entries: &[(&str, &str)],
    ) -> RuleExplanation {
        let RuleMatch { rule, shared } = rule_match;
        let strategy = rule.limit.as_ref().map(|limit| limit.strategy_at(self.now));
        let counter = entries.iter().enumerate().map(|(position, &(key, value))| {
            let shared = shared.iter().find(|(shared_position, _)| *shared_position == position);
            (key, shared.map_or(value, |&(_, text)| text))
        });
        RuleExplanation {
            path: rule.path.to_string(),
            place: rule.location.to_string(),
            says: rule.to_string(),
            strategy: strategy.as_ref().map(strategy_keyword).map(Cow::from),
            tick: strategy.map(|strategy| strategy.tick().to_string()),
            tick_is_worth: strategy
                .and_then(|strategy| strategy.refill_rate())
                .map(|hits_per_tick| hits_per_tick.to_string()),
            counter: strategy.map(|_| format!("{}: {}", self.domain, format_entries(counter))),
            replaced_by: None,
            fresh: self.fresh_decision(rule.limit.as_ref()),
        }
    }

    fn fresh_decision(&self, limit: Option<&Limit>) -> FreshDecision {
        let Some(limit) = limit else {
            return FreshDecision {
                hits: self.hits.0,
                verdict: "admitted".into(),
                remaining: None,
                reset_after: None,
            };
        };
        let strategy = limit.strategy_at(self.now);
        let (verdict, headroom) = match decide_with_empty_counter(&strategy, self.now, self.hits) {
            CounterDecision::Allow(headroom) => ("admitted", headroom),
            CounterDecision::Deny { headroom, .. } => ("denied", headroom),
            CounterDecision::ExceedsLimit(headroom) => ("never", headroom),
            CounterDecision::OutsideWindows => ("denied", Headroom::default()),
        };
        let remaining = Some(headroom.remaining.0);
        let reset_after = Some(headroom.reset_after.to_string());
        FreshDecision { hits: self.hits.0, verdict: verdict.into(), remaining, reset_after }
    }
}

fn decide_with_empty_counter(strategy: &Strategy, now: Nanos, hits: Hits) -> CounterDecision {
    match strategy {
        Strategy::Gcra(limit) => limit.peek(&Tat::default(), now, hits),
        Strategy::FixedWindow(limit) => limit.peek(&WindowCount::default(), now, hits),
        Strategy::SlidingWindow(limit) => limit.peek(&WindowPair::default(), now, hits),
        Strategy::SlidingLog(limit) => limit.peek(&ArrivalLog::default(), now, hits),
    }
}

fn explain_steps(trace: &LookupTrace<'_>) -> Vec<EntryExplanation> {
    let explain_candidate = |candidate: &LookupCandidate<'_>| Candidate {
        how: match candidate.kind {
            MatchKind::Exact => "exact",
            MatchKind::Wildcard => "pattern",
            MatchKind::Bare => "bare key",
        }
        .into(),
        name: candidate.name.to_string(),
        verdict: match candidate.status {
            CandidateStatus::Taken => "taken",
            CandidateStatus::Absent => "absent",
            CandidateStatus::Outranked => "outranked",
        }
        .into(),
    };
    let steps = trace.steps.iter().map(|step| EntryExplanation {
        entry: format_entries([(&*step.entry.0, &*step.entry.1)]),
        candidates: step.candidates.iter().map(explain_candidate).collect(),
    });
    steps.collect()
}

fn outcome_sentence(trace: &LookupTrace<'_>) -> String {
    let last_step = trace.steps.last();
    let entry = last_step
        .map(|step| format_entries([(&*step.entry.0, &*step.entry.1)]))
        .unwrap_or_default();
    let node =
        last_step.and_then(|step| step.taken()).map(|taken| &*taken.name).unwrap_or_default();
    match &trace.outcome {
        LookupOutcome::Found(RuleMatch { rule, .. }) => {
            let limited_or_unlimited =
                if rule.limit.is_some() { "limited" } else { "made unlimited" };
            format!("{limited_or_unlimited} by `{}` ({})", rule.path, rule.location)
        }
        LookupOutcome::NoEntries => "a descriptor without entries meets no limit".to_owned(),
        LookupOutcome::NoNode => format!("no limit: this level has nothing for `{entry}`"),
        LookupOutcome::NoChildren => {
            format!("no limit: `{node}` has no descriptors below it, and this descriptor goes on")
        }
        LookupOutcome::NoLimit { .. } if trace.concurrency_limit.is_some() => {
            format!("no rate limit: `{node}` has a ceiling and no rate_limit")
        }
        LookupOutcome::NoLimit { has_children: true } => {
            format!("no limit: `{node}` has no rate_limit of its own, only descriptors below it")
        }
        LookupOutcome::NoLimit { has_children: false } => {
            format!("no limit: `{node}` has no rate_limit, which exempts what it matches")
        }
    }
}
