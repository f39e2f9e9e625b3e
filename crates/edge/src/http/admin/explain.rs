//! Serves `/explain`: shows the rules and limits that would decide a check.
//!
//! Guarantees:
//! - No counter is read or changed: the decision of a rate limit assumes an empty counter.
//! - A concurrency limit is shown with its requests in flight.
//! - A forced decision or boost is shown with its effect and its end.

use super::permits::{rate_per_second, to_ratio};
use crate::config::action::{Action, ActionEffect, ActionTarget};
use crate::config::descriptor_text::{borrow_entries, parse_entries};
use crate::config::explain::{BucketSnapshot, DescriptorExplanation, Explanation, FreshDecision};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::engine::actions::verdict_name;
use crate::engine::concurrency::BucketMetrics;
use crate::kernel::units::{Hits, Nanos};

/// The check in a query string, for `/explain` and other admin paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainQuery {
    /// The domain.
    pub domain: String,
    /// The descriptors. Each is a list of entries (key and value).
    pub descriptors: Vec<Vec<(String, String)>>,
    /// The hits of each descriptor; 1 unless the query has `hits`.
    pub hits: u64,
}

impl ExplainQuery {
    /// Parses the names and values of a query string.
    ///
    /// # Errors
    /// A message for the operator: an unknown name, an invalid value, or no domain or descriptor.
    pub fn from_query(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut query = Self { hits: 1, ..Self::default() };
        for (name, value) in pairs {
            match &*name {
                "domain" => query.domain = value,
                "descriptor" => query.descriptors.push(parse_entries(&value)?),
                "hits" => query.hits = parse_hits(&value)?,
                _ => {
                    return Err(format!(
                        "unknown parameter `{name}`; use domain, descriptor and hits"
                    ));
                }
            }
        }
        if query.domain.is_empty() || query.descriptors.is_empty() {
            // Names no path, because several paths use this query.
            return Err("a domain and at least one descriptor are required: \
                        ?domain=d&descriptor=k=v,k2=v2"
                .to_owned());
        }
        Ok(query)
    }
}

fn parse_hits(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`hits` must be a whole number, got `{text}`"))
}

/// Explains how `config` would decide the check `query` at `now` with empty counters.
#[must_use]
pub fn explain(config: &Config, query: &ExplainQuery, now: Nanos) -> Explanation {
    let descriptors: Vec<Vec<(&str, &str)>> =
        query.descriptors.iter().map(|entries| borrow_entries(entries)).collect();
    config::explain::explain(config, &query.domain, &descriptors, Hits(query.hits), now)
}

/// Adds to `explanation` the requests in flight of each concurrency limit, and the actions of
/// operators.
pub(super) fn add_live_state(explanation: &mut Explanation, query: &ExplainQuery, engine: &Engine) {
    let actions: Vec<_> = engine.actions().into_iter().map(|active| active.action).collect();
    let config = engine.config();
    let domain = config.as_deref().and_then(|config| config.domains.get(&*query.domain));
    for (descriptor, entries) in explanation.descriptors.iter_mut().zip(&query.descriptors) {
        if let Some(concurrency) = &mut descriptor.concurrency {
            concurrency.now = engine
                .concurrency_snapshot(&query.domain, &borrow_entries(entries))
                .map(live_state);
        }
        let key =
            domain.and_then(|domain| domain.tree.rule_and_key(borrow_entries(entries).into_iter()));
        let key = key.map(|(_, key)| key).unwrap_or_default();
        for action in actions.iter().filter(|action| concerns(action, &query.domain)) {
            if applies(action, &key, descriptor) {
                show_action(descriptor, action);
            }
        }
    }
}

fn concerns(action: &Action, domain: &str) -> bool {
    action.target == ActionTarget::Everything || *action.domain == *domain
}

/// Returns `true` if an action applies to the descriptor, whose rule must have a limit.
fn applies(
    action: &Action,
    counter_key: &[(Box<str>, Box<str>)],
    descriptor: &DescriptorExplanation,
) -> bool {
    let limited_rule = descriptor.rule.as_ref().filter(|rule| rule.counter.is_some());
    limited_rule.is_some_and(|rule| match &action.target {
        ActionTarget::Everything => true,
        ActionTarget::Amount { .. } => false,
        ActionTarget::Rule(path) => **path == *rule.path,
        ActionTarget::Key(key) => {
            let entries = key.iter().map(|(key, value)| (&**key, &**value));
            entries.eq(counter_key.iter().map(|(key, value)| (&**key, &**value)))
        }
    })
}

/// Adds an action's effect and end to a descriptor's explanation. A forced decision counts no hits,
/// so the remaining hits are omitted.
fn show_action(descriptor: &mut DescriptorExplanation, action: &Action) {
    let until = format_time(action.until);
    let effect = match action.effect {
        _ if action.target == ActionTarget::Everything => "allows everything".to_owned(),
        ActionEffect::Force(verdict) => {
            show_forced_verdict(descriptor, verdict_name(verdict));
            format!("forces {}", verdict_name(verdict))
        }
        ActionEffect::Set(amount) => format!("sets the amount {amount}"),
        ActionEffect::Boost(size) => format!("boosts the limit of this key to {size}"),
    };
    descriptor.outcome = format!("{}; an operator {effect} until {until}", descriptor.outcome);
}

fn show_forced_verdict(descriptor: &mut DescriptorExplanation, verdict: &str) {
    for rule in descriptor.limits_mut() {
        let (remaining, reset_after) = (None, None);
        let hits = rule.fresh.hits;
        rule.fresh =
            FreshDecision { hits, verdict: verdict.to_owned().into(), remaining, reset_after };
    }
}

/// Formats an instant as RFC 3339 in UTC, rounded up to a whole second.
fn format_time(instant: Nanos) -> String {
    let seconds = i64::try_from(instant.as_secs_ceil()).ok();
    let instant = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    instant.map(|instant| instant.to_string()).unwrap_or_default()
}

fn live_state(metrics: BucketMetrics) -> BucketSnapshot {
    BucketSnapshot {
        in_flight: metrics.load.in_flight.into(),
        waiting: u64::try_from(metrics.load.waiting).unwrap_or(u64::MAX),
        limit: metrics.load.limit.into(),
        rate_per_second: metrics.pace.map(rate_per_second),
        rtt: metrics.rtt.map(|time| time.to_string()),
        min_rtt: metrics.min_rtt.map(|time| time.to_string()),
        gradient: metrics.gradient().map(to_ratio),
    }
}
