//! Serves `/force`, `/unforce`, `/boost`, `/unboost`, `/set`, `/unset`, `/actions` and `/whoami`.
//!
//! Guarantees:
//! - Every change has an operator and a reason, and an entry in the audit log.
//! - A reply reports the number of replicas that apply the change within two seconds.
//! - If the store is unavailable, the reply contains the store failure.
//! - An invalid query gets status 400 with the cause.
//!
//! Not covered:
//! - Sending the change to other replicas (see [`crate::engine::actions`]).

use axum::Extension;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::access::Caller;
use super::explain::ExplainQuery;
use super::port::Admin;
use crate::config::action::{ActionEffect, ActionTarget, BoostSize};
use crate::config::descriptor_text::format_entries;
use crate::config::resolve::duration::{self, DurationError};
use crate::config::tables::MAX_ID_BYTES;
use crate::engine::actions::{
    ActionError, ActionKind, ActionRequest, ActiveAction, AuditEntry, Operator, verdict_name,
};
use crate::engine::{Engine, Membership};
use crate::http::response::{JSON, PLAIN};
use crate::kernel::decision::{StoreFailure, Verdict};
use crate::kernel::units::Nanos;

/// The age from which a membership list no longer proves that its replicas are reachable.
const MAX_MEMBERSHIP_AGE: Nanos = Nanos::from_secs(5);

pub(super) type QueryPairs = Vec<(String, String)>;

/// The names of parameters that are not part of the check.
const PARAMETERS: [&str; 10] =
    ["as", "for", "scope", "factor", "limit", "reason", "table", "id", "column", "amount"];

/// A change that a caller requests: its parameters, and the check that names its target.
pub(super) struct ChangeQuery {
    caller: Caller,
    parameters: QueryPairs,
    /// The parameters that name the check.
    pub(super) check: QueryPairs,
}

impl FromRequestParts<Admin> for ChangeQuery {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, Response> {
        let caller = Extension::from_request_parts(parts, admin).await;
        let Extension(caller) = caller.map_err(IntoResponse::into_response)?;
        let query = Query::<QueryPairs>::from_request_parts(parts, admin).await;
        let Query(query) = query.map_err(IntoResponse::into_response)?;
        let (parameters, check) =
            query.into_iter().partition(|(name, _)| PARAMETERS.contains(&&**name));
        Ok(Self { caller, parameters, check })
    }
}

impl ChangeQuery {
    /// Returns an error if the query has another parameter than the check, `reason` and `names`.
    pub(super) fn allow_only(&self, names: &[&str]) -> Result<(), String> {
        let is_other = |name: &&str| *name != "reason" && !names.contains(name);
        match self.parameters.iter().map(|(name, _)| &**name).find(is_other) {
            None => Ok(()),
            Some(name) => {
                let known = [&["domain", "descriptor"], names, &["reason"]].concat().join(", ");
                Err(format!("the parameter `{name}` has no effect here; use {known}"))
            }
        }
    }

    fn find(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, text)| &**text)
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, String> {
        self.find(name).ok_or_else(|| format!("the parameter `{name}` is missing"))
    }

    /// Returns the caller as operator, with the reason in the query.
    pub(super) fn operator(&self) -> Operator<'_> {
        Operator { name: &self.caller.name, reason: self.find("reason").unwrap_or_default() }
    }

    fn verdict(&self) -> Result<Verdict, String> {
        match self.find("as") {
            Some("deny") => Ok(Verdict::Deny),
            Some("allow") => Ok(Verdict::Allow),
            Some(other) => Err(format!("`as` must be deny or allow, got `{other}`")),
            None => Err("the parameter `as` is missing: &as=deny&for=10m".to_owned()),
        }
    }

    fn duration(&self) -> Result<Nanos, String> {
        let text = self.find("for").ok_or("the parameter `for` is missing: &for=10m")?;
        match duration::parse(text) {
            Ok(duration) => Ok(duration),
            // Longer than the parser supports. The engine rejects every duration above a day.
            Err(DurationError::TooLong) => Ok(Nanos(u64::MAX)),
            Err(DurationError::NotADuration) => {
                Err(format!("`for` must be a duration such as 10m, got `{text}`"))
            }
        }
    }

    /// Returns the kind of a forced decision: of the rule, or of the key only.
    fn forced_kind(&self) -> Result<ActionKind, String> {
        match self.find("scope") {
            None | Some("rule") => Ok(ActionKind::ForceRule),
            Some("key") => Ok(ActionKind::ForceKey),
            Some("everything") => match self.find("as") {
                None | Some("allow") => Ok(ActionKind::AllowEverything),
                Some(_) => Err("with `scope=everything`, `as` must be allow".to_owned()),
            },
            Some(other) => Err(format!("`scope` must be rule, key or everything, got `{other}`")),
        }
    }

    fn boost_size(&self) -> Result<BoostSize, String> {
        let text = match (self.find("factor"), self.find("limit")) {
            (Some(factor), None) => format!("x{factor}"),
            (None, Some(limit)) => limit.to_owned(),
            _ => return Err("a boost needs either &factor=2 or &limit=600".to_owned()),
        };
        BoostSize::parse(&text).ok_or_else(|| {
            format!(
                "`factor` must be a whole number from 2 to {}, `limit` one from 1 to {}, got `{text}`",
                BoostSize::MAX_FACTOR,
                u32::MAX
            )
        })
    }

    /// Returns the one descriptor of the query.
    pub(super) fn single_descriptor(&self) -> Result<SingleDescriptor, String> {
        let ExplainQuery { domain, descriptors, .. } =
            ExplainQuery::from_query(self.check.clone())?;
        match <[QueryPairs; 1]>::try_from(descriptors) {
            Ok([entries]) => Ok(SingleDescriptor { domain, entries }),
            Err(several) => {
                Err(format!("exactly one descriptor is required, got {}", several.len()))
            }
        }
    }
}

pub(super) struct SingleDescriptor {
    pub(super) domain: String,
    entries: QueryPairs,
}

impl SingleDescriptor {
    pub(super) fn entries(&self) -> Vec<(&str, &str)> {
        self.entries.iter().map(|(key, value)| (&**key, &**value)).collect()
    }
}

pub(super) async fn force(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let started = query.allow_only(&["as", "for", "scope"]).and_then(|()| {
        let (kind, verdict) = (query.forced_kind()?, query.verdict()?);
        start(&admin, &query, kind, ActionEffect::Force(verdict))
    });
    reply(&admin, started).await
}

pub(super) async fn boost(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let started = query.allow_only(&["factor", "limit", "for"]).and_then(|()| {
        let size = query.boost_size()?;
        start(&admin, &query, ActionKind::BoostKey, ActionEffect::Boost(size))
    });
    reply(&admin, started).await
}

pub(super) async fn set(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let started = query.allow_only(&["table", "id", "column", "amount", "for"]).and_then(|()| {
        let text = query.required("amount")?;
        let amount = text.parse().map_err(|error| format!("`amount`: `{text}` {error}"))?;
        start(&admin, &query, ActionKind::SetAmount, ActionEffect::Set(amount))
    });
    reply(&admin, started).await
}

pub(super) async fn unset(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let ended = query
        .allow_only(&["table", "id", "column"])
        .and_then(|()| end(&admin, &query, ActionKind::SetAmount));
    reply(&admin, ended).await
}

pub(super) async fn unforce(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let ended =
        query.allow_only(&["scope"]).and_then(|()| end(&admin, &query, query.forced_kind()?));
    reply(&admin, ended).await
}

pub(super) async fn unboost(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    let ended = query.allow_only(&[]).and_then(|()| end(&admin, &query, ActionKind::BoostKey));
    reply(&admin, ended).await
}

fn start(
    admin: &Admin,
    query: &ChangeQuery,
    kind: ActionKind,
    effect: ActionEffect,
) -> Result<AuditEntry, String> {
    let duration = query.duration()?;
    with_request(query, kind, |request| admin.engine.start_action(request, effect, duration))
}

fn end(admin: &Admin, query: &ChangeQuery, kind: ActionKind) -> Result<AuditEntry, String> {
    with_request(query, kind, |request| admin.engine.end_action(request))
}

fn with_request(
    query: &ChangeQuery,
    kind: ActionKind,
    change: impl FnOnce(&ActionRequest<'_>) -> Result<AuditEntry, ActionError>,
) -> Result<AuditEntry, String> {
    if kind == ActionKind::AllowEverything {
        if let Some((name, _)) = query.check.first() {
            return Err(format!("`scope=everything` has no `{name}`"));
        }
        let request = ActionRequest { domain: "", entries: &[], kind, operator: query.operator() };
        return change(&request).map_err(|why| why.to_string());
    }
    let operator = query.operator();
    if kind == ActionKind::SetAmount {
        let (table, id) = (query.required("table")?, query.required("id")?);
        if MAX_ID_BYTES < id.len() {
            return Err(format!("`id` is longer than {MAX_ID_BYTES} bytes"));
        }
        let entries = &[("id", id), ("column", query.required("column")?)];
        let request = ActionRequest { domain: table, entries, kind, operator };
        return change(&request).map_err(|why| why.to_string());
    }
    let target = query.single_descriptor()?;
    let (domain, entries) = (&*target.domain, &*target.entries());
    change(&ActionRequest { domain, entries, kind, operator }).map_err(|why| why.to_string())
}

async fn reply(admin: &Admin, changed: Result<AuditEntry, String>) -> Response {
    match changed {
        Ok(entry) => changed_reply(admin, entry).await,
        Err(why) => (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    }
}

/// Appends a change to the audit log, and replies with it.
pub(super) async fn changed_reply(admin: &Admin, entry: AuditEntry) -> Response {
    let body = changed_json(admin, &entry);
    admin.engine.append_audit(entry).await;
    (JSON, add_replica_count(&admin.engine, body).to_string()).into_response()
}

fn changed_json(admin: &Admin, entry: &AuditEntry) -> Value {
    let AuditEntry { domain, limit, descriptor, value, duration_ms, .. } = entry;
    let now_ms = admin.engine.clock().now().0 / Nanos::MILLI.0;
    json!({
        "domain": domain,
        "limit": limit,
        "descriptor": descriptor,
        "value": value,
        "until_unix_ms": duration_ms.map(|duration_ms| now_ms.saturating_add(duration_ms)),
    })
}

/// Serves `/actions`.
pub(super) async fn list(State(admin): State<Admin>) -> Response {
    let actions: Vec<_> = admin.engine.actions().iter().map(action_json).collect();
    (JSON, json!({ "actions": actions }).to_string()).into_response()
}

fn action_json(active: &ActiveAction) -> Value {
    let ActiveAction { action, by, reason } = active;
    let (scope, limit, descriptor) = match &action.target {
        ActionTarget::Everything => ("everything", None, None),
        ActionTarget::Rule(path) => ("rule", Some(&**path), None),
        ActionTarget::Amount { id, column } => {
            ("table", None, Some(format_entries([("id", &**id), ("column", &**column)])))
        }
        ActionTarget::Key(entries) => {
            let entries = entries.iter().map(|(key, value)| (&**key, &**value));
            ("key", None, Some(format_entries(entries)))
        }
    };
    let (name, verdict, boost) = match action.effect {
        ActionEffect::Force(verdict) => ("force", Some(verdict_name(verdict)), None),
        ActionEffect::Set(amount) => ("set", None, Some(json!({ "amount": amount.to_string() }))),
        ActionEffect::Boost(BoostSize::Factor(factor)) => {
            ("boost", None, Some(json!({ "factor": factor })))
        }
        ActionEffect::Boost(BoostSize::Requests(limit)) => {
            ("boost", None, Some(json!({ "limit": limit })))
        }
    };
    json!({
        "action": name,
        "scope": scope,
        "domain": action.domain,
        "limit": limit,
        "descriptor": descriptor,
        "verdict": verdict,
        "boost": boost,
        "until_unix_ms": action.until.0 / Nanos::MILLI.0,
        "by": by,
        "reason": reason,
    })
}

/// Serves `/whoami`: the caller's name and role.
pub(super) async fn whoami(Extension(caller): Extension<Caller>) -> Response {
    let body = json!({
        "name": &*caller.name,
        "role": caller.role.as_str(),
        "can_change": caller.why_read_only.is_none(),
        "why_not": caller.why_read_only.as_deref(),
    });
    (JSON, body.to_string()).into_response()
}

/// Adds to a reply the number of replicas, including this one, that apply the change within two
/// seconds.
fn add_replica_count(engine: &Engine, mut body: Value) -> Value {
    let snapshot = engine.membership().and_then(Membership::snapshot);
    let unreachable = unreachable_reason(engine);
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

/// Returns the store failure that keeps a change from other replicas, if any. An old membership
/// list counts as a timeout, because heartbeats renew it if the store is available.
fn unreachable_reason(engine: &Engine) -> Option<StoreFailure> {
    let membership = engine.membership()?;
    let snapshot = membership.snapshot();
    let is_outdated =
        snapshot.is_none_or(|seen| MAX_MEMBERSHIP_AGE < engine.clock().now().since(seen.taken_at));
    engine.store_failure().or(is_outdated.then_some(StoreFailure::TimedOut))
}
