//! Serves the pages with live counts: `/overview`, `/rules`, `/rule`, `/top` and `/concurrency`.
//!
//! Guarantees:
//! - Counts are totals since the start of the process, so that two reads give a rate.
//! - `scope` is `fleet` if a page counts all live replicas, and `replica` if it counts this one.
//! - The other replicas report their counts only while a page is read.
//! - An invalid query gets status 400, and an unknown rule 404, with the cause.
//!
//! Not covered:
//! - The sums over the fleet (see [`crate::engine::fleet::live_view`]).

mod concurrency;
mod overview;
mod query;
mod rules;
mod series;
mod top;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

use super::port::Admin;
use crate::engine::fleet::live::WatchedPage;
use crate::http::response::{JSON, text_response};
use query::{QueryPairs, RuleParams, TopParams};

/// The paths of these pages, with their descriptions.
pub(super) const PATHS: [(&str, &str); 5] = [
    ("/overview", "checks, latency, store, replicas and connections, as JSON"),
    ("/rules", "all rules with their limits and counts, as JSON"),
    ("/rule", "counts, the last hour and top keys of the rule ?domain=d&path=p, as JSON"),
    (
        "/top",
        "the keys with the most hits, ?window=minute (or hour), &domain=d&path=p&limit=20, as JSON",
    ),
    ("/concurrency", "the concurrency limits in use and their last hour, as JSON"),
];

/// Returns the routes of these pages.
pub(super) fn routes() -> Router<Admin> {
    Router::new()
        .route("/overview", get(show_overview))
        .route("/rules", get(show_rules))
        .route("/rule", get(show_rule))
        .route("/top", get(show_top))
        .route("/concurrency", get(show_concurrency))
}

async fn show_overview(State(admin): State<Admin>) -> Response {
    admin.engine.watch_page(WatchedPage::Overview);
    let has_failed = (admin.load_report)().last_error.is_some();
    json_response(&overview::overview(&admin.engine, has_failed))
}

async fn show_rules(State(admin): State<Admin>) -> Response {
    admin.engine.watch_page(WatchedPage::Rules);
    json_response(&rules::rules(&admin.engine))
}

async fn show_rule(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let RuleParams { domain, path } = match RuleParams::from_query(query) {
        Ok(params) => params,
        Err(why) => return text_response(StatusCode::BAD_REQUEST, &why),
    };
    let Some(config) = admin.engine.config() else {
        return text_response(StatusCode::NOT_FOUND, &"no limits are loaded");
    };
    let Some(rule) = rules::find_rule(&config, &domain, &path) else {
        let why = format!("domain `{domain}` has no rule `{path}`; /rules lists all rules");
        return text_response(StatusCode::NOT_FOUND, &why);
    };
    admin.engine.watch_page(WatchedPage::Rule(domain.into(), path.into()));
    json_response(&rules::rule(&admin.engine, &rule))
}

async fn show_top(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let params = match TopParams::from_query(query) {
        Ok(params) => params,
        Err(why) => return text_response(StatusCode::BAD_REQUEST, &why),
    };
    match top::top(&admin.engine, params) {
        Ok(page) => json_response(&page),
        Err(why) => text_response(StatusCode::NOT_FOUND, &why),
    }
}

async fn show_concurrency(State(admin): State<Admin>) -> Response {
    json_response(&concurrency::concurrency(&admin.engine))
}

fn json_response(body: &Value) -> Response {
    (JSON, body.to_string()).into_response()
}
