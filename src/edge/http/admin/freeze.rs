//! Serves `/freeze`, `/thaw` and `/frozen`: forced decisions of an operator.
//!
//! Guarantees:
//! - Every change is logged with the domain and the limit.
//! - A reply reports the number of replicas that apply the change within two seconds.
//! - If the store is unavailable, the reply contains the store failure.
//! - An invalid query gets status 400 with the cause.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::explain::ExplainQuery;
use super::{Admin, JSON, PLAIN};
use crate::config::forced_decision::ForcedRule;
use crate::config::resolve::duration::{self, DurationError};
use crate::engine::forced_decisions::verdict_name;
use crate::engine::{Engine, Membership};
use crate::kernel::decision::{StoreFailure, Verdict};
use crate::kernel::units::Nanos;

/// A membership list of this age no longer proves that its replicas are reachable.
const MAX_MEMBERSHIP_AGE: Nanos = Nanos::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreezeParams {
    verdict: Verdict,
    duration: Nanos,
}

type QueryPairs = Vec<(String, String)>;

pub(super) async fn freeze(
    State(admin): State<Admin>,
    Query(query): Query<QueryPairs>,
) -> Response {
    let (freeze_pairs, descriptor_pairs): (QueryPairs, QueryPairs) =
        query.into_iter().partition(|(name, _)| matches!(&**name, "as" | "for"));
    let result = parse_params(&freeze_pairs).and_then(|params| {
        let query = parse_single_descriptor(descriptor_pairs)?;
        let entries = query.entries();
        let forced =
            admin.engine.force_decision((&query.domain, &entries), params.verdict, params.duration);
        forced.map_err(|error| error.to_string())
    });
    reply(result.map(|forced| {
        log_change("freeze", &forced.domain, &forced.path, Some(forced.decision.verdict));
        add_replica_count(&admin, forced_rule_json(&forced))
    }))
}

pub(super) async fn thaw(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let ended = parse_single_descriptor(query).and_then(|query| {
        let ended = admin.engine.end_forced_decision(&query.domain, &query.entries());
        ended.map(|path| (query.domain, path)).map_err(|error| error.to_string())
    });
    reply(ended.map(|(domain, path)| {
        log_change("thaw", &domain, &path, None);
        add_replica_count(&admin, json!({"domain": domain, "limit": path}))
    }))
}

pub(super) async fn frozen(State(admin): State<Admin>) -> Response {
    let rules: Vec<_> = admin.engine.forced_decisions().iter().map(forced_rule_json).collect();
    (JSON, json!({ "frozen": rules }).to_string()).into_response()
}

fn reply(result: Result<Value, String>) -> Response {
    match result {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(message) => (StatusCode::BAD_REQUEST, PLAIN, message + "\n").into_response(),
    }
}

fn parse_params(query: &[(String, String)]) -> Result<FreezeParams, String> {
    let text = |name: &str| {
        let found = query.iter().find(|(pair_name, _)| pair_name == name);
        found
            .map(|(_, text)| &**text)
            .ok_or_else(|| format!("`{name}` is needed: &as=deny&for=10m"))
    };
    let verdict = match text("as")? {
        "deny" => Verdict::Deny,
        "allow" => Verdict::Allow,
        other => return Err(format!("as `{other}` is neither deny nor allow")),
    };
    let duration_text = text("for")?;
    let duration = match duration::parse(duration_text) {
        Ok(duration) => duration,
        // The engine rejects every duration above a day.
        Err(DurationError::TooLong) => Nanos(u64::MAX),
        Err(DurationError::NotADuration) => {
            return Err(format!("for `{duration_text}` is no duration; use one like 10m"));
        }
    };
    Ok(FreezeParams { verdict, duration })
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
        Err(descriptors) => {
            Err(format!("one descriptor is needed, but the query has {}", descriptors.len()))
        }
    }
}

/// Adds the number of replicas that apply the change within two seconds, including this one.
fn add_replica_count(admin: &Admin, mut body: Value) -> Value {
    let snapshot = admin.engine.membership().and_then(Membership::snapshot);
    let unreachable = unreachable_reason(&admin.engine);
    let replicas = match (unreachable, snapshot) {
        (None, Some(fleet)) => fleet.replicas.len().max(1),
        (Some(_), _) | (None, None) => 1,
    };
    body["replicas"] = replicas.into();
    if let Some(cause) = unreachable {
        body["store_away"] = cause.as_str().into();
    }
    body
}

/// Returns the store failure that keeps a change from other replicas, if any. An old membership
/// list counts as a timeout, because each heartbeat renews it.
fn unreachable_reason(engine: &Engine) -> Option<StoreFailure> {
    let membership = engine.membership()?;
    let snapshot = membership.snapshot();
    let is_outdated = snapshot
        .is_none_or(|fleet| MAX_MEMBERSHIP_AGE < engine.clock().now().since(fleet.taken_at));
    engine.store_failure().or(is_outdated.then_some(StoreFailure::TimedOut))
}

fn forced_rule_json(rule: &ForcedRule) -> Value {
    json!({
        "domain": rule.domain,
        "limit": rule.path,
        "as": verdict_name(rule.decision.verdict),
        "until_unix_ms": rule.decision.until.0 / Nanos::MILLI.0,
    })
}

fn log_change(action: &str, domain: &str, limit: &str, verdict: Option<Verdict>) {
    let verdict_text = verdict.map(verdict_name);
    tracing::warn!(
        action,
        domain,
        limit,
        verdict = verdict_text,
        "admin changed a forced decision"
    );
}
