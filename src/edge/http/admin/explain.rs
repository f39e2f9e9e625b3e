//! `/explain`: which rule a question's descriptors would meet, and by which steps.
//!
//! Guarantees: takes the steps that the decision takes; no counter is looked at or moved.
//! Leaves out: what the counters hold, so whether it would pass now.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::show::name;
use crate::config::tree::How;
use crate::config::tree::trace::{Outcome, Trace, Tried, Verdict};
use crate::config::{Config, Domain, Limit, Rule};
use crate::kernel::rate::Strategy;

/// What `/explain` is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// The domain.
    pub domain: String,
    /// The descriptors, each a list of keys and values.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// What the question would cost.
    pub hits: u64,
}

impl Explain {
    /// Reads the query's pairs.
    ///
    /// # Errors
    /// A sentence for the person who asked.
    pub fn read(query: Vec<(String, String)>) -> Result<Self, String> {
        let mut asked = Self { hits: 1, ..Self::default() };
        for (name, value) in query {
            match &*name {
                "domain" => asked.domain = value,
                "descriptor" => asked.descriptors.push(entries(&value)?),
                "hits" => asked.hits = hits(&value)?,
                _ => return Err(format!("`{name}` is not domain, descriptor or hits")),
            }
        }
        if asked.domain.is_empty() || asked.descriptors.is_empty() {
            return Err("a domain and at least one descriptor are needed: \
                        /explain?domain=d&descriptor=k=v,k2=v2"
                .to_owned());
        }
        Ok(asked)
    }
}

fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let entry = |part: &str| {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not an entry; one is written key=value"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').map(entry).collect()
}

fn hits(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("hits `{text}` is not a whole number"))
}

/// What `asked` would meet in `config`.
#[must_use]
pub fn explain(config: &Config, asked: &Explain) -> Value {
    let domain = config.domains.get(&*asked.domain);
    json!({
        "revision": config.revision.0,
        "domain": asked.domain,
        "known_domain": domain.is_some(),
        "hits": asked.hits,
        "descriptors": domain.map(|domain| descriptors(domain, asked)).unwrap_or_default(),
    })
}

fn descriptors(domain: &Domain, asked: &Explain) -> Vec<Value> {
    let walk = |entries: &Vec<(String, String)>| {
        let entries: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        domain.tree.explain(&entries)
    };
    let walks: Vec<Trace<'_>> = asked.descriptors.iter().map(walk).collect();
    let found = walks.iter().filter_map(rule);
    let replaced: HashSet<&str> =
        found.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect();
    walks.iter().map(|walk| descriptor(walk, &replaced, asked.hits)).collect()
}

fn rule<'t>(walk: &Trace<'t>) -> Option<&'t Rule> {
    match &walk.outcome {
        Outcome::Found(found) => Some(found.rule),
        _ => None,
    }
}

fn descriptor(walk: &Trace<'_>, replaced: &HashSet<&str>, hits: u64) -> Value {
    let steps = walk.steps.iter().map(|step| {
        let (key, value) = &step.entry;
        let tried = step.tried.iter().map(candidate).collect::<Value>();
        json!({"entry": format!("{key}={value}"), "tried": tried})
    });
    let steps = steps.collect::<Value>();
    let shown = rule(walk).map(|rule| {
        let replaced = rule.name.as_ref().is_some_and(|name| replaced.contains(&**name));
        shown(rule, replaced, hits)
    });
    json!({"steps": steps, "outcome": outcome(&walk.outcome), "rule": shown})
}

fn candidate(tried: &Tried<'_>) -> Value {
    let how = match tried.how {
        How::Exact => "exact",
        How::Wildcard => "wildcard",
        How::Bare => "bare",
    };
    let verdict = match tried.verdict {
        Verdict::Taken => "taken",
        Verdict::Absent => "absent",
        Verdict::Outranked => "outranked",
    };
    json!({"how": how, "name": tried.name, "verdict": verdict})
}

fn outcome(outcome: &Outcome<'_>) -> &'static str {
    match outcome {
        Outcome::Found(_) => "found",
        Outcome::NoEntries => "the descriptor has no entries",
        Outcome::NoNode => "nothing on this level matches",
        Outcome::NoChildren => "the descriptor goes deeper than the file",
        Outcome::NoLimit { has_children: true } => "the file goes deeper than the descriptor",
        Outcome::NoLimit { has_children: false } => "this node has no rate_limit",
    }
}

fn shown(rule: &Rule, replaced: bool, hits: u64) -> Value {
    json!({
        "path": rule.path,
        "place": rule.place,
        "name": rule.name.as_deref(),
        "limit": rule.limit.as_ref().map(|rule| limit(rule, hits)),
        "unlimited": rule.limit.is_none(),
        "shadow_mode": rule.shadow,
        "quota_mode": rule.quota,
        "replaces": rule.replaces.iter().map(|name| Value::from(&**name)).collect::<Value>(),
        "replaced": replaced,
    })
}

fn limit(limit: &Limit, hits: u64) -> Value {
    let strategy = match limit.strategy {
        Strategy::Gcra(_) => "gcra",
        Strategy::FixedWindow(_) => "fixed_window",
        Strategy::SlidingWindow(_) => "sliding_window",
        Strategy::SlidingLog(_) => "sliding_log",
    };
    let most = limit.strategy.most();
    json!({
        "requests": limit.requests,
        "unit": limit.window.unit().map(name),
        "period": limit.window.length().to_string(),
        "strategy": strategy,
        "at_one_instant": most,
        "passes_at_rest": hits <= most.into(),
        "tick": limit.strategy.tick().size().to_string(),
        "one_tick_is_worth": limit.strategy.worth().map(|worth| worth.to_string()),
    })
}
