//! Explains for the command `explain` which limit a descriptor matches and why, and how an empty
//! counter of that limit would decide.
//!
//! Guarantees:
//! - Finds the rule and decides with the same functions as a real check.
//! - The text output and the JSON output contain the same data.
//!
//! Not covered:
//! - The hits that a counter has at the moment.

mod budgets;
mod concurrency;
pub mod near_miss;

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use budgets::BudgetExplanation;
pub use concurrency::{BucketSnapshot, ConcurrencyExplanation};

use super::describe::LimitText;
use super::descriptor_text::format_entries;
use super::table_limits::FromTable;
use super::tree::trace::{CandidateStatus, LookupOutcome, LookupTrace};
use super::tree::{MatchKind, RuleMatch, counter_entries};
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
    /// The version number of the configuration.
    pub revision: u64,
    /// `true` if the configuration has the domain.
    pub known: bool,
    /// One explanation for each descriptor, in the order of the check.
    pub descriptors: Vec<DescriptorExplanation>,
}

/// The explanation of one descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct DescriptorExplanation {
    /// The descriptor as text, in the format of [`format_entries`].
    pub descriptor: String,
    /// One explanation for each entry that the lookup compared with the rules.
    pub steps: Vec<EntryExplanation>,
    /// The result of the lookup, as a sentence.
    pub outcome: String,
    /// The nearest rule, as a clause, if the descriptor matches none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// The matching rule with its first limit. `None` if no rule matches.
    pub rule: Option<RuleExplanation>,
    /// The same rule, once for each further limit of its list `rate_limits`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_limits: Vec<RuleExplanation>,
    /// The concurrency limit that the descriptor matches, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyExplanation>,
    /// The budgets that the descriptor meets, from its first entry to its last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetExplanation>,
}

/// The rules that were compared with one entry of the descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct EntryExplanation {
    /// The entry as `key=value`.
    pub entry: String,
    /// The names that could match, in the order of priority.
    pub candidates: Vec<Candidate>,
}

/// One name that could match an entry: an exact value, a pattern or a bare key.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The kind of name: `exact`, `pattern` or `bare key`.
    pub kind: Cow<'static, str>,
    /// The name: `key`, or `key_value` with a value or pattern.
    pub name: String,
    /// `matched` (the lookup continues there), `absent` (no such rule) or `outranked` (a name with
    /// higher priority matched).
    pub verdict: Cow<'static, str>,
}

/// The rule that applies to a descriptor, with one of its limits.
#[derive(Debug, Serialize, Deserialize)]
pub struct RuleExplanation {
    /// The full path of the rule.
    pub path: String,
    /// The file and line of the rule, `file:line`.
    pub location: String,
    /// The rule as text, such as `10 per second, fixed_window`.
    pub text: String,
    /// The strategy that counts hits, such as `gcra`; absent if the rule is unlimited.
    pub strategy: Option<Cow<'static, str>>,
    /// The smallest time step of the strategy's arithmetic.
    pub tick: Option<String>,
    /// The hits that become available in each tick, as a fraction `hits/ticks`.
    pub tick_is_worth: Option<String>,
    /// The key of the counter in readable form; absent if the rule counts nothing.
    pub counter: Option<String>,
    /// The row of a table that has the number of this limit (`from`), as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_table: Option<String>,
    /// The path of the rule whose `replaces` disables this rule in the check.
    pub replaced_by: Option<String>,
    /// The decision of this rule's limit if its counter were empty.
    pub fresh: FreshDecision,
}

/// The decision of this rule's limit if its counter were empty.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreshDecision {
    /// The hits of the check.
    pub hits: u64,
    /// `allow`, `deny`, or `never` (the check has more hits than the limit ever allows).
    pub verdict: Cow<'static, str>,
    /// The hits that the limit would allow after this check; absent if nothing is counted.
    pub remaining: Option<u64>,
    /// The time until the counter is empty or, for a fixed window, until the window ends.
    pub reset_after: Option<String>,
}

/// Explains a check of these descriptors (each a list of entries) that costs `hits` at the instant
/// `now`.
#[must_use]
pub fn explain(
    config: &Config,
    domain: &str,
    descriptors: &[Vec<(&str, &str)>],
    hits: Hits,
    now: Nanos,
) -> Explanation {
    let tree = config.domains.get(domain).map(|domain| &domain.tree);
    let context = ExplainContext { config, domain, check: descriptors, hits, now };
    let walks =
        descriptors.iter().map(|entries| (entries, tree.map(|tree| tree.trace_lookup(entries))));
    let walks: Vec<_> = walks.collect();
    let rules: Vec<_> = walks.iter().map(|(_, walk)| walk.as_ref().and_then(found_rule)).collect();
    let mut explained: Vec<_> = walks
        .iter()
        .map(|(entries, walk)| context.explain_descriptor(entries, walk.as_ref()))
        .collect();
    mark_replaced(&mut explained, &rules);
    Explanation {
        domain: domain.to_owned(),
        revision: config.revision.0,
        known: tree.is_some(),
        descriptors: explained,
    }
}

fn found_rule<'t>(trace: &'t LookupTrace<'_>) -> Option<&'t Rule> {
    match &trace.outcome {
        LookupOutcome::Found(found) => Some(found.rule),
        _ => None,
    }
}

fn mark_replaced(explained: &mut [DescriptorExplanation], rules: &[Option<&Rule>]) {
    let by: HashMap<&str, &str> = rules
        .iter()
        .flatten()
        .flat_map(|rule| rule.replaces.iter().map(|name| (&**name, &*rule.path)))
        .collect();
    for (explanation, rule) in explained.iter_mut().zip(rules) {
        let Some(rule) = rule else { continue };
        // An unlimited rule charges no counter, so `replaces` does not change it.
        for (explanation, limit) in explanation.limits_mut().zip(&rule.limits) {
            let replacement = rule.name_of(limit).and_then(|name| by.get(&**name));
            explanation.replaced_by = replacement.map(|path| (*path).to_owned());
        }
    }
}

impl DescriptorExplanation {
    /// Returns the explanations of all limits of the rule.
    pub fn limits(&self) -> impl Iterator<Item = &RuleExplanation> {
        self.rule.iter().chain(&self.more_limits)
    }

    /// Returns the mutable explanations of all limits of the rule.
    pub fn limits_mut(&mut self) -> impl Iterator<Item = &mut RuleExplanation> {
        self.rule.iter_mut().chain(&mut self.more_limits)
    }
}

struct ExplainContext<'q> {
    config: &'q Config,
    domain: &'q str,
    check: &'q [Vec<(&'q str, &'q str)>],
    hits: Hits,
    now: Nanos,
}

impl ExplainContext<'_> {
    fn explain_descriptor(
        &self,
        entries: &[(&str, &str)],
        trace: Option<&LookupTrace<'_>>,
    ) -> DescriptorExplanation {
        let mut limits = match trace.map(|walk| &walk.outcome) {
            Some(LookupOutcome::Found(found)) => self.explain_rule(found, entries),
            _ => Vec::new(),
        }
        .into_iter();
        let budgets = budgets::explain_budgets(self.config, self.domain, entries, self.now);
        let outcome = trace.map_or_else(|| self.unknown_domain_outcome(), outcome_sentence);
        let only_budgets = outcome.strip_prefix("no limit").filter(|_| !budgets.is_empty());
        DescriptorExplanation {
            descriptor: format_entries(entries.iter().copied()),
            steps: trace.map(explain_steps).unwrap_or_default(),
            outcome: only_budgets.map_or(outcome.clone(), |why| format!("no rate limit{why}")),
            nearest: near_miss::nearest_rule(self.config, self.domain, entries),
            rule: limits.next(),
            more_limits: limits.collect(),
            concurrency: trace.and_then(|walk| walk.concurrency_limit).map(|limit| {
                concurrency::explain_concurrency(self.config, limit, entries, self.check, self.now)
            }),
            budgets,
        }
    }

    fn unknown_domain_outcome(&self) -> String {
        format!("no limit: no file has the domain `{}`", self.domain)
    }

    fn explain_rule(
        &self,
        rule_match: &RuleMatch<'_>,
        entries: &[(&str, &str)],
    ) -> Vec<RuleExplanation> {
        let limits = &rule_match.rule.limits;
        if limits.is_empty() {
            return vec![self.explain_limit(rule_match, None, entries)];
        }
        limits.iter().map(|limit| self.explain_limit(rule_match, Some(limit), entries)).collect()
    }

    fn explain_limit(
        &self,
        RuleMatch { rule, shared }: &RuleMatch<'_>,
        own: Option<&Limit>,
        entries: &[(&str, &str)],
    ) -> RuleExplanation {
        let column = own.and_then(|limit| limit.from.as_deref());
        let id = column.and_then(|column| entries.get(column.entry)).map(|(_, id)| *id);
        let row = column.zip(id);
        let tables = &self.config.tables;
        let found = row.map(|(column, id)| tables.rate_limit(column, id, self.now));
        let limit = match found {
            Some(FromTable::Limit(limit)) => Some(limit),
            Some(FromTable::Unlimited) => None,
            _ => own,
        };
        let is_blocked = matches!(found, Some(FromTable::Blocked));
        let strategy = limit.map(|limit| limit.strategy_at(self.now));
        let counter = counter_entries(entries.iter().copied(), shared);
        RuleExplanation {
            path: rule.path.to_string(),
            location: rule.location.to_string(),
            text: LimitText(rule, limit).to_string(),
            strategy: strategy.as_ref().map(strategy_keyword).map(Cow::from),
            tick: strategy.map(|strategy| strategy.tick().to_string()),
            tick_is_worth: strategy
                .and_then(|strategy| strategy.refill_rate())
                .map(|worth| worth.to_string()),
            counter: limit.map(|limit| {
                let name = limit.name.as_ref().map(|name| format!(" ({name})"));
                let name = name.unwrap_or_default();
                format!("{}: {}{name}", self.domain, format_entries(counter))
            }),
            from_table: row.map(|(column, id)| tables.describe(column, id, self.now)),
            replaced_by: None,
            fresh: if is_blocked { self.blocked_decision() } else { self.fresh_decision(limit) },
        }
    }

    fn blocked_decision(&self) -> FreshDecision {
        let (verdict, remaining) = ("deny".into(), Some(0));
        FreshDecision { hits: self.hits.0, verdict, remaining, reset_after: None }
    }

    fn fresh_decision(&self, limit: Option<&Limit>) -> FreshDecision {
        let Some(limit) = limit else {
            let (remaining, reset_after) = (None, None);
            return FreshDecision {
                hits: self.hits.0,
                verdict: "allow".into(),
                remaining,
                reset_after,
            };
        };
        let (verdict, room) =
            match decide_with_empty_counter(&limit.strategy_at(self.now), self.now, self.hits) {
                CounterDecision::Allow(room) => ("allow", room),
                CounterDecision::Deny { headroom: room, .. } => ("deny", room),
                CounterDecision::ExceedsLimit(room) => ("never", room),
                CounterDecision::OutsideWindows => ("deny", Headroom::default()),
            };
        let remaining = Some(room.remaining.0);
        let reset_after = Some(room.reset_after.to_string());
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
    let candidate = |tried: &super::tree::trace::LookupCandidate<'_>| Candidate {
        kind: match tried.kind {
            MatchKind::Exact => "exact",
            MatchKind::Network => "network",
            MatchKind::Wildcard => "pattern",
            MatchKind::Bare => "bare key",
        }
        .into(),
        name: tried.name.to_string(),
        verdict: match tried.status {
            CandidateStatus::Taken => "matched",
            CandidateStatus::Absent => "absent",
            CandidateStatus::Outranked => "outranked",
        }
        .into(),
    };
    let steps = trace.steps.iter().map(|step| EntryExplanation {
        entry: format_entries([(&*step.entry.0, &*step.entry.1)]),
        candidates: step.candidates.iter().map(candidate).collect(),
    });
    steps.collect()
}

fn outcome_sentence(trace: &LookupTrace<'_>) -> String {
    let last = trace.steps.last();
    let entry =
        last.map(|step| format_entries([(&*step.entry.0, &*step.entry.1)])).unwrap_or_default();
    let node = last.and_then(|step| step.taken()).map(|taken| &*taken.name).unwrap_or_default();
    match &trace.outcome {
        LookupOutcome::Found(RuleMatch { rule, .. }) => {
            let limited_or_unlimited =
                if rule.limits.is_empty() { "made unlimited" } else { "limited" };
            format!("{limited_or_unlimited} by `{}` ({})", rule.path, rule.location)
        }
        LookupOutcome::NoEntries => "a descriptor without entries matches no limit".to_owned(),
        LookupOutcome::NoNode => format!("no limit: no rule on this level matches `{entry}`"),
        LookupOutcome::NoChildren => {
            format!("no limit: `{node}` has no descriptors for the next entry")
        }
        LookupOutcome::NoLimit { .. }
            if trace.concurrency_limit.is_some_and(|limit| limit.rules.pace.is_some()) =>
        {
            format!("paced by `{node}`, without counters")
        }
        LookupOutcome::NoLimit { .. } if trace.concurrency_limit.is_some() => {
            format!("no rate limit: `{node}` has only a concurrency limit")
        }
        LookupOutcome::NoLimit { .. } if trace.has_budget => {
            format!("no rate limit: `{node}` has only a budget")
        }
        LookupOutcome::NoLimit { has_children: true } => {
            format!("no limit: `{node}` has only descriptors for a further entry")
        }
        LookupOutcome::NoLimit { has_children: false } => {
            format!("no limit: `{node}` has no rate_limit, so its entries are exempt")
        }
    }
}
