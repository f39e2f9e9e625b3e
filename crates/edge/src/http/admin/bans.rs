//! Serves `/bans` and `/lift`: lists the banned keys, and lifts a ban.
//!
//! Guarantees:
//! - A page has at most [`MAX_ROWS`] bans, those that end last first, and the number of all.
//! - Values have the form of the setting `telemetry.descriptor_values`.
//! - A lift is reported only if the store confirmed it, and has an entry in the audit log.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::actions::{ChangeQuery, changed_reply};
use super::port::Admin;
use crate::engine::bans::{Ban, LiftError};
use crate::http::response::{JSON, text_response};
use crate::kernel::units::Nanos;

const MAX_ROWS: usize = 1_000;

/// The parameters of `/bans`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BansQuery {
    domain: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    query: Result<Query<BansQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(BansQuery { domain, limit })) = query else {
        let usage = "use /bans?domain=d&limit=100; all parameters are optional";
        return text_response(StatusCode::BAD_REQUEST, &usage);
    };
    let mut bans = admin.engine.bans();
    bans.retain(|ban| domain.as_ref().is_none_or(|domain| **domain == *ban.domain));
    bans.sort_by_key(|ban| Reverse(ban.until));
    let row = |ban: &Ban| {
        json!({
            "domain": ban.domain,
            "descriptor": ban.descriptor,
            "rule": ban.rule,
            "limit": ban.limit,
            "until_unix_ms": ban.until.0 / Nanos::MILLI.0,
        })
    };
    let rows: Vec<_> = bans.iter().take(limit.unwrap_or(100).min(MAX_ROWS)).map(row).collect();
    let values = admin.engine.top_key_values().word();
    let body = json!({ "bans": rows, "count": bans.len(), "values": values });
    (JSON, body.to_string()).into_response()
}

pub(super) async fn lift(State(admin): State<Admin>, change: ChangeQuery) -> Response {
    let target = change.allow_only(&[]).and_then(|()| change.single_descriptor());
    let target = match target {
        Ok(target) => target,
        Err(message) => return text_response(StatusCode::BAD_REQUEST, &message),
    };
    let engine = Arc::clone(&admin.engine);
    // A task of its own, so that all bans of the key are lifted even if the client disconnects.
    let lifted = tokio::spawn(async move {
        let (domain, entries) = (&*target.domain, target.entries());
        engine.lift_bans(domain, &entries, change.operator()).await
    });
    match lifted.await {
        Ok(Ok(entry)) => changed_reply(&admin, entry).await,
        Ok(Err(why @ LiftError::StoreUnavailable(_))) => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, &why)
        }
        Ok(Err(why)) => text_response(StatusCode::BAD_REQUEST, &why),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
