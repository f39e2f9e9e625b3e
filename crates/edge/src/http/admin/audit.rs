//! Serves `/audit`: the changes of operators, newest first.
//!
//! Guarantees:
//! - A page has at most [`MAX_ROWS`] entries.
//! - If the store does not reply, the page has this process's entries and the cause.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::port::Admin;
use crate::engine::actions::{ActionKind, AuditEntry, AuditRow};
use crate::http::response::{JSON, PLAIN};
use crate::kernel::decision::StoreFailure;
use crate::kernel::units::Nanos;

const MAX_ROWS: usize = 500;

/// The parameters of `/audit`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    limit: Option<usize>,
    domain: Option<String>,
    descriptor: Option<String>,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(AuditQuery { limit, domain, descriptor })) = query else {
        let message = "use /audit?limit=100&domain=d&descriptor=k=v; all parameters are optional\n";
        return (StatusCode::BAD_REQUEST, PLAIN, message).into_response();
    };
    let page = admin.engine.read_audit().await;
    let is_wanted = |row: &&AuditRow| {
        let entry = &row.entry;
        domain.as_ref().is_none_or(|domain| **domain == *entry.domain)
            && descriptor.as_deref().is_none_or(|text| entry.descriptor.as_deref() == Some(text))
    };
    let max = limit.unwrap_or(100).min(MAX_ROWS);
    let rows: Vec<_> = page.rows.iter().filter(is_wanted).take(max).map(row_json).collect();
    let body = json!({
        "entries": rows,
        "survives_restart": page.survives_restart,
        "store_failure": page.store_failure.map(StoreFailure::as_str),
    });
    (JSON, body.to_string()).into_response()
}

fn row_json(AuditRow { entry, at }: &AuditRow) -> Value {
    let at_ms = at.0 / Nanos::MILLI.0;
    let until_ms = entry.duration_ms.map(|duration_ms| at_ms.saturating_add(duration_ms));
    json!({
        "at_unix_ms": at_ms,
        "by": entry.by,
        "replica": entry.replica,
        "action": entry.action,
        "scope": scope(entry),
        "domain": entry.domain,
        "limit": entry.limit,
        "descriptor": entry.descriptor,
        "detail": detail(entry),
        "until_unix_ms": until_ms,
        "reason": entry.reason,
    })
}

/// Returns the target of an action, as in [`ActionKind::scope`]; `null` for a change to a counter.
fn scope(entry: &AuditEntry) -> Option<&'static str> {
    ActionKind::parse(entry.kind.as_ref()?).map(ActionKind::scope)
}

/// Describes the effect: `deny for 10m`, `x2 for 1h` or `20 hits`.
fn detail(entry: &AuditEntry) -> String {
    match (&entry.value, entry.duration_ms, entry.hits) {
        (Some(value), Some(duration_ms), _) => {
            format!("{value} for {}", duration_text(duration_ms))
        }
        (Some(value), None, Some(hits)) => format!("{hits} hits, {value}"),
        (Some(value), None, None) => value.to_string(),
        (None, _, Some(hits)) => format!("{hits} hits"),
        _ => String::new(),
    }
}

/// Formats a duration in the largest unit in which it is whole.
fn duration_text(ms: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = UNITS.into_iter().find(|(unit_ms, _)| ms.is_multiple_of(*unit_ms));
    unit.map_or_else(|| format!("{ms}ms"), |(unit_ms, name)| format!("{}{name}", ms / unit_ms))
}
