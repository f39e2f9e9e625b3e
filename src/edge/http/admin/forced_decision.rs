//! Serves `/force`, `/unforce` and `/forced`: forced decisions of an operator.
//!
//! Guarantees:
//! - Every change is logged with the domain and the limit.
//! - A reply reports the number of replicas that apply the change within two seconds.
//! - If the store is unavailable, the reply contains the store failure.
//! - An invalid query gets status 400 with the cause.
//!
//! Not covered:
//! - Sending the change to other replicas (see [`crate::engine::forced_decisions`]).

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::explain::ExplainQuery;
use super::port::Admin;
use crate::config::forced_decision::ForcedRule;
use crate::config::resolve::duration::{self, DurationError};
use crate::edge::http::response::{JSON, PLAIN};
use crate::engine::forced_decisions::verdict_name;
use crate::engine::{Engine, Membership};
use crate::kernel::decision::{StoreFailure, Verdict};
use crate::kernel::units::Nanos;

/// The age from which a membership list no longer proves that its replicas are reachable.
const MAX_MEMBERSHIP_AGE: Nanos = Nanos::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ForceParams {
    verdict: Verdict,
    duration: Nanos,
}

type QueryPairs = Vec<(String, String)>;

pub(super) async fn force(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let (param_pairs, descriptor_pairs): (QueryPairs, QueryPairs) =
        query.into_iter().partition(|(name, _)| matches!(&**name, "as" | "for"));
    let result = parse_params(&param_pairs).and_then(|params| {
        let asked = parse_single_descriptor(descriptor_pairs)?;
        let entries = asked.entries();
        let forced =
            admin.engine.force_decision((&asked.domain, &entries), params.verdict, params.duration);
        forced.map_err(|why| why.to_string())
    });
    reply(result.map(|forced| {
        log_change("force", &forced.domain, &forced.path, Some(forced.decision.verdict));
        add_replica_count(&admin, forced_rule_json(&forced))
    }))
}

pub(super) async fn unforce(
    State(admin): State<Admin>,
    Query(query): Query<QueryPairs>,
) -> Response {
    let ended = parse_single_descriptor(query).and_then(|asked| {
        let ended = admin.engine.end_forced_decision(&asked.domain, &asked.entries());
        ended.map(|path| (asked.domain, path)).map_err(|why| why.to_string())
    });
    reply(ended.map(|(domain, path)| {
        log_change("unforce", &domain, &path, None);
        add_replica_count(&admin, json!({"domain": domain, "limit": path}))
    }))
}

pub(super) async fn list(State(admin): State<Admin>) -> Response {
    let forced: Vec<_> = admin.engine.forced_decisions().iter().map(forced_rule_json).collect();
    (JSON, json!({ "forced": forced }).to_string()).into_response()
}

fn reply(result: Result<Value, String>) -> Response {
    match result {
        Ok(shown) => (JSON, shown.to_string()).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    }
}

fn parse_params(query: &[(String, String)]) -> Result<ForceParams, String> {
    let text = |name: &str| {
        let found = query.iter().find(|(known, _)| known == name);
        found
            .map(|(_, text)| &**text)
            .ok_or_else(|| format!("the parameter `{name}` is missing: &as=deny&for=10m"))
    };
    let verdict = match text("as")? {
        "deny" => Verdict::Deny,
        "allow" => Verdict::Allow,
        other => return Err(format!("`as` must be deny or allow, got `{other}`")),
    };
    let duration_text = text("for")?;
    let duration = match duration::parse(duration_text) {
        Ok(long) => long,
        // Longer than the parser supports. The engine rejects every duration above a day.
        Err(DurationError::TooLong) => Nanos(u64::MAX),
        Err(DurationError::NotADuration) => {
            return Err(format!("`for` must be a duration such as 10m, got `{duration_text}`"));
        }
    };
    Ok(ForceParams { verdict, duration })
}

struct SingleDescriptor {
    domain: String,
    entries: QueryPairs,
}

impl SingleDescriptor {
    fn entries(&self) -> Vec<(&str, &str)> {
        self.entries.iter().map(|(key, value)| (&**key, &**value)).collect()
    }
}

fn parse_single_descriptor(query: QueryPairs) -> Result<SingleDescriptor, String> {
    let ExplainQuery { domain, descriptors, .. } = ExplainQuery::from_query(query)?;
    match <[QueryPairs; 1]>::try_from(descriptors) {
        Ok([entries]) => Ok(SingleDescriptor { domain, entries }),
        Err(several) => Err(format!("exactly one descriptor is required, got {}", several.len())),
    }
}

/// Adds to a reply the number of replicas, including this one, that
/// apply the change within two seconds.
fn add_replica_count(admin: &Admin, mut body: Value) -> Value {
    let snapshot = admin.engine.membership().and_then(Membership::snapshot);
    let unreachable = unreachable_reason(&admin.engine);
    let replicas = match (unreachable, snapshot) {
        (None, Some(seen)) => seen.replicas.len().max(1),
        (Some(_), _) | (None, None) => 1,
    };
    body["replicas"] = replicas.into();
    if let Some(cause) = unreachable {
        body["store_failure"] = cause.as_str().into();
    }
    body
}

/// Returns the store failure that keeps a change from other replicas, if any. An old
/// membership list counts as a timeout, because heartbeats renew it if the store is available.
fn unreachable_reason(engine: &Engine) -> Option<StoreFailure> {
    let membership = engine.membership()?;
    let snapshot = membership.snapshot();
    let is_outdated =
        snapshot.is_none_or(|seen| MAX_MEMBERSHIP_AGE < engine.clock().now().since(seen.taken_at));
    engine.store_failure().or(is_outdated.then_some(StoreFailure::TimedOut))
}

fn forced_rule_json(rule: &ForcedRule) -> Value {
    json!({
        "domain": rule.domain,
        "limit": rule.path,
        "verdict": verdict_name(rule.decision.verdict),
        "until_unix_ms": rule.decision.until.0 / Nanos::MILLI.0,
    })
}

fn log_change(act: &str, domain: &str, limit: &str, verdict: Option<Verdict>) {
    let verdict_text = verdict.map(verdict_name);
    tracing::warn!(
        action = act,
        domain,
        limit,
        verdict = verdict_text,
        "admin changed a forced decision"
    );
}
