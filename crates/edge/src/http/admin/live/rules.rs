//! Renders `/rules` and `/rule`: rules with their limits and counts.
//!
//! Guarantees:
//! - `/rules` has at most [`MAX_RULES`] rules, and the number of omitted ones.
//! - A rate limit and a concurrency limit of one rule are one row.
//! - `replicas` has the names of the counted replicas, so that readers compare equal sums only.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::overview::replica_name;
use super::series::{series_json, used_ratio};
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::config::strategy_keyword;
use crate::config::{Config, Limit, LimitMode, Rule, RuleNumber};
use crate::engine::Engine;
use crate::engine::actions::verdict_name;
use crate::engine::fleet::live::TopLists;
use crate::engine::fleet::live_view::RulesView;
use crate::engine::rule_counters::{RuleActivity, rule_hash};
use crate::engine::top_keys::TopKeyList;
use crate::kernel::units::Nanos;
use crate::telemetry::label::RuleVerdict;

const MAX_RULES: usize = 1_000;

/// The largest number of top keys in a list of `/rule`.
const MAX_TOP_KEYS: usize = 20;

/// A rule of the configuration: its rate limits, its concurrency limit, or both.
#[derive(Clone, Copy, Default)]
pub(super) struct ConfiguredRule<'c> {
    domain: &'c str,
    path: &'c str,
    rule: Option<&'c Rule>,
    concurrency: Option<&'c ConcurrencyLimit>,
}

pub(super) fn rules(engine: &Engine) -> Value {
    let config = engine.config();
    let all = config.as_deref().map(configured_rules).unwrap_or_default();
    let reports = engine.fleet_reports();
    let RulesView { scope, activity, replicas_with_omitted_rules } = engine.rules_view(&reports);
    let shown: Vec<_> = all
        .values()
        .take(MAX_RULES)
        .map(|rule| {
            let activity = activity.get(&rule_hash(rule.domain, rule.path));
            rule_json(engine, rule, activity.copied().unwrap_or_default())
        })
        .collect();
    json!({
        "scope": scope.as_str(),
        "replicas": reports.counted_names(replica_name(engine), scope),
        "rules": shown,
        "omitted": all.len().saturating_sub(MAX_RULES),
        "replicas_with_omitted_rules": replicas_with_omitted_rules,
    })
}

pub(super) fn rule(engine: &Engine, rule: &ConfiguredRule<'_>) -> Value {
    let key = (rule.domain.into(), rule.path.into());
    let reports = engine.fleet_reports();
    let (scope, watched) = engine.rule_view(key, MAX_TOP_KEYS, &reports);
    let mut shown = rule_json(engine, rule, watched.activity);
    let history = series_json(&watched.history, &["allow", "deny", "shadow_deny", "used"]);
    let top = &watched.top;
    shown.extend([
        ("scope".to_owned(), scope.as_str().into()),
        ("replicas".to_owned(), reports.counted_names(replica_name(engine), scope).into()),
        ("history".to_owned(), history),
        (
            "top".to_owned(),
            json!({"minute": lists_json(&top.minute), "hour": lists_json(&top.hour)}),
        ),
    ]);
    shown.into()
}

/// Returns the rule with this path. `None` if the domain has none.
pub(super) fn find_rule<'c>(
    config: &'c Config,
    domain: &str,
    path: &str,
) -> Option<ConfiguredRule<'c>> {
    let rules = configured_rules(config);
    rules.into_values().find(|rule| rule.domain == domain && rule.path == path)
}

/// Returns the domain that has a rule with this path.
pub(super) fn domain_of<'c>(config: &'c Config, path: &str) -> Option<&'c str> {
    configured_rules(config).into_values().find(|rule| rule.path == path).map(|rule| rule.domain)
}

/// Returns the domain of each path that has a rule: the first one if several domains have the path.
pub(super) fn domains_by_path(config: &Config) -> HashMap<&str, &str> {
    let mut domains = HashMap::new();
    for rule in configured_rules(config).into_values() {
        domains.entry(rule.path).or_insert(rule.domain);
    }
    domains
}

fn configured_rules(config: &Config) -> BTreeMap<RuleNumber, ConfiguredRule<'_>> {
    let mut all = BTreeMap::<RuleNumber, ConfiguredRule<'_>>::new();
    for domain in config.domains.values() {
        for rule in domain.tree.rules() {
            let entry = all.entry(rule.number).or_default();
            (entry.domain, entry.path, entry.rule) = (&domain.name, &rule.path, Some(rule));
        }
        for limit in domain.tree.concurrency_limits() {
            let entry = all.entry(limit.number).or_default();
            (entry.domain, entry.path) = (&domain.name, &limit.path);
            entry.concurrency = Some(limit);
        }
    }
    all
}

fn rule_json(
    engine: &Engine,
    configured: &ConfiguredRule<'_>,
    activity: RuleActivity,
) -> Map<String, Value> {
    let ConfiguredRule { domain, path, rule, concurrency } = *configured;
    let limits = rule.map_or(&[][..], |rule| &rule.limits);
    let has_limits = !limits.is_empty();
    let now = engine.clock().now();
    let forced = rule.and_then(|rule| rule.forced_decision).filter(|forced| now < forced.until);
    let location = rule.map(|rule| &*rule.location).or(concurrency.map(|limit| &*limit.location));
    let counts: Map<_, _> = RuleVerdict::ALL
        .iter()
        .zip(activity.counts)
        .map(|(verdict, count)| (verdict.as_str().to_owned(), count.into()))
        .collect();
    let fields = [
        ("domain", domain.into()),
        ("path", path.into()),
        ("location", location.into()),
        ("limits", limits.iter().map(|limit| limit_json(rule, limit)).collect()),
        ("concurrency", concurrency.map_or(Value::Null, |limit| concurrency_json(engine, limit))),
        (
            "shadow",
            rule.map_or_else(|| concurrency.is_some_and(|it| it.shadow), |it| it.shadow).into(),
        ),
        ("quota", rule.is_some_and(|rule| rule.quota).into()),
        ("counts", counts.into()),
        ("used", has_limits.then(|| used_ratio(activity.used.into())).into()),
        (
            "forced",
            forced.map_or(Value::Null, |forced| {
                json!({
                    "verdict": verdict_name(forced.verdict),
                    "until_unix_ms": forced.until.0 / Nanos::MILLI.0,
                })
            }),
        ),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn limit_json(rule: Option<&Rule>, limit: &Limit) -> Value {
    let mode = match limit.mode {
        LimitMode::Strict => "exact",
        LimitMode::CachedDeny => "cached_deny",
        LimitMode::Leased(_) => "leased",
    };
    json!({
        "name": rule.and_then(|rule| rule.name_of(limit)).map(|name| &**name),
        "requests": limit.requests,
        "period_s": std::time::Duration::from_nanos(limit.window.length().0).as_secs_f64(),
        "unit": limit.window.unit().map(|unit| unit.to_string()),
        "strategy": strategy_keyword(&limit.strategy),
        "mode": mode,
        "on_store_failure": limit.on_store_failure.to_string(),
    })
}

fn concurrency_json(engine: &Engine, limit: &ConcurrencyLimit) -> Value {
    let is_alone = engine.concurrency_limits().fleet_reporter().is_none();
    let mode = match limit.mode {
        _ if is_alone => "local",
        Some(ConcurrencyMode::Local) => "local",
        Some(ConcurrencyMode::Strict) => "strict",
        _ => "shared",
    };
    let fixed = limit.rules.adaptive.is_none().then_some(limit.rules.limit);
    json!({"limit": fixed, "mode": mode})
}

fn lists_json(TopLists { all, denied }: &TopLists) -> Value {
    json!({"all": keys_json(all), "denied": keys_json(denied)})
}

fn keys_json(list: &TopKeyList) -> Value {
    let rows = list.rows.iter();
    rows.map(|row| json!({"descriptor": row.descriptor, "hits": row.hits, "error": row.error}))
        .collect()
}
