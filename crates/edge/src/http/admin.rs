//! Serves the admin port: an operator inspects limits, counters and replicas, and changes them.
//!
//! Guarantees:
//! - Only the console's files and, with `debug_pages`, pages of envoyproxy/ratelimit are public.
//! - GET requests charge no hits and change nothing.
//! - A change is a POST with an operator and a reason, and has an entry in the audit log.
//! - A reply reports success only if the change was made.

pub mod access;
mod actions;
mod amounts;
mod audit;
mod authorize;
mod bans;
mod browser;
mod budgets;
mod config_diff;
mod counter;
mod explain;
mod live;
mod permits;
mod port;
mod recent;
mod record;
mod show;
mod tables;
mod wrong_tokens;

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};

use super::response::{JSON, PLAIN};
use crate::telemetry::stats::StatSample;

pub use access::AdminAccess;
use access::Caller;
use actions::{ChangeQuery, QueryPairs};
pub use config_diff::ConfigDiff;
use counter::{CounterError, read_counter, refund_counter, reset_counters};
pub use explain::{ExplainQuery, explain};
pub use permits::permits;
pub use port::Admin;
pub use show::{ConfigLoads, LoadError, config, fleet, rlconfig};
pub use wrong_tokens::WrongTokens;

/// The paths and their purposes. A change needs a token with the role `operate`.
const PATHS: [(&str, &str); 34] = [
    ("/", "this list"),
    ("/rlconfig", "all limits, one per line"),
    ("/stats", "the process, and the statistics of envoyproxy/ratelimit, as JSON"),
    ("/config", "the loaded limits, and the errors of the last load, as JSON"),
    ("/config/diff", "the limits that the last reload added and removed, as JSON"),
    ("/explain", "the matching rule of ?domain=d&descriptor=k=v,k2=v2&hits=1, as JSON"),
    ("/counter", "the state of the counter of ?domain=d&descriptor=k=v,k2=v2, as JSON"),
    ("/refund", "POST: returns &hits=n to the counter of ?domain=d&descriptor=k=v&reason=text"),
    (
        "/force",
        "POST: forces the decision of ?domain=d&descriptor=k=v&as=deny&for=10m&reason=text \
         (or as=allow; or only for this key with scope=key)",
    ),
    ("/unforce", "POST: ends the forced decision of ?domain=d&descriptor=k=v&reason=text"),
    (
        "/boost",
        "POST: raises the limit of the key ?domain=d&descriptor=k=v&factor=2&for=1h&reason=text \
         (or limit=600)",
    ),
    ("/unboost", "POST: ends the boost of the key ?domain=d&descriptor=k=v&reason=text"),
    ("/reset", "POST: resets the counters of ?domain=d&descriptor=k=v,k2=v2&reason=text"),
    ("/actions", "the forced decisions and boosts that apply, as JSON"),
    ("/audit", "the changes of operators, newest first, as JSON"),
    ("/bans", "the keys that a `penalty` bans, of ?domain=d&limit=100, as JSON"),
    ("/lift", "POST: lifts the ban of ?domain=d&descriptor=k=v&reason=text"),
    ("/console", "the console for browsers"),
    ("/whoami", "the name and the role of the caller's token, as JSON"),
    ("/fleet", "the replicas of the fleet, their shares and the proxies, as JSON"),
    ("/recent", "the last 100 different descriptors that matched no rule, with counts, as JSON"),
    ("/mirror", "the checks that the service of mirror.to decided differently, as JSON"),
    (
        "/record",
        "POST: streams the checks of ?for=10m&reason=text, of &sample=1% of the keys, with \
         &keys=hashed (or clear)",
    ),
    (
        "/tables",
        "the tables that limits read, or rows of ?table=t&id=i (or &plan=p&limit=100, or \
         &amounts_of=i: each amount and its origin), as JSON",
    ),
    (
        "/set",
        "POST: sets the amount of ?table=t&id=i&column=c&amount=600&for=1h&reason=text in a table",
    ),
    ("/unset", "POST: ends the amount that was set for ?table=t&id=i&column=c&reason=text"),
    (
        "/budgets",
        "the budgets that requests of this replica met (?domain=d&limit=100), or those of \
         ?domain=d&descriptor=k=v,k2=v2, and their last periods, as JSON",
    ),
    (
        "/top_up",
        "POST: adds to the prepaid budget of ?domain=d&descriptor=k=v&amount=20+usd&id=invoice-2026-11-0001&reason=text",
    ),
    ("/permits", "requests in flight: the oldest permits, the busiest buckets, as JSON"),
    live::PATHS[0],
    live::PATHS[1],
    live::PATHS[2],
    live::PATHS[3],
    live::PATHS[4],
];

/// Serves the admin port. An unknown path gets the list of all paths.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/actions", get(actions::list))
        .route("/audit", get(audit::show))
        .route("/bans", get(bans::show))
        .route("/budgets", get(budgets::show))
        .route("/config", get(show_config))
        .route("/config/diff", get(show_config_diff))
        .route("/counter", get(show_counter))
        .route("/explain", get(show_explain))
        .route("/fleet", get(show_fleet))
        .route("/mirror", get(show_mirror))
        .route("/permits", get(show_permits))
        .route("/recent", get(show_recent))
        .route("/rlconfig", get(show_rlconfig))
        .route("/set", post(actions::set))
        .route("/stats", get(show_stats))
        .route("/tables", get(tables::show))
        .route("/whoami", get(actions::whoami))
        .route("/boost", post(actions::boost))
        .route("/force", post(actions::force))
        .route("/lift", post(bans::lift))
        .route("/record", post(record::record))
        .route("/refund", post(refund))
        .route("/reset", post(reset))
        .route("/top_up", post(budgets::top_up))
        .route("/unboost", post(actions::unboost))
        .route("/unset", post(actions::unset))
        .route("/unforce", post(actions::unforce))
        .fallback(show_list)
        .route("/debug/pprof", any(profiles_not_supported))
        .route("/debug/pprof/", any(profiles_not_supported))
        .route("/debug/pprof/{*profile}", any(profiles_not_supported))
        .merge(live::routes())
        .layer(from_fn_with_state(admin.clone(), authorize::authorize))
        .merge(super::console::router())
        .layer(map_response(browser::add_security_headers))
        .with_state(admin)
}

impl Admin {
    /// Returns `true` if `path` needs no token: with `debug_pages`, the pages of envoyproxy/ratelimit.
    /// Unknown paths are such pages too, because they show the list of paths.
    fn is_public(&self, path: &str) -> bool {
        let is_own_path = PATHS.iter().skip(REFERENCE_PATHS).any(|(ours, _)| *ours == path);
        self.access.debug_pages && !is_own_path
    }
}

/// Replies to `/debug/pprof`, where envoyproxy/ratelimit serves Go profiles. The status is an
/// error, so that no collector stores the text as a profile.
async fn profiles_not_supported() -> Response {
    let message = "profiles are not built in: run `perf record -g -p PID` on the host\n";
    (StatusCode::NOT_IMPLEMENTED, PLAIN, message).into_response()
}

/// The number of paths in [`PATHS`] that envoyproxy/ratelimit has, too. They come first.
const REFERENCE_PATHS: usize = 3;

async fn show_list(caller: Option<Extension<Caller>>) -> Response {
    let count = if caller.is_some() { PATHS.len() } else { REFERENCE_PATHS };
    let line = |(path, help): &(&str, &str)| [*path, ": ", *help, "\n"].concat();
    let mut lines: Vec<_> = PATHS.iter().take(count).map(line).collect();
    lines.sort_unstable();
    (PLAIN, lines.concat()).into_response()
}

async fn show_stats(State(admin): State<Admin>) -> Response {
    let mut counters = serde_json::Map::new();
    if let Some(stats) = admin.engine.stats() {
        stats.for_each(&[], |sample| {
            if let StatSample::Counter(name, count) = sample {
                counters.insert(name.to_owned(), count.into());
            }
        });
    }
    let command: Vec<_> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    // Only the program's name, because the arguments may contain a token.
    let body = serde_json::json!({
        "cmdline": command.first(),
        "version": env!("CARGO_PKG_VERSION"),
        "stats": counters,
    });
    (JSON, body.to_string()).into_response()
}

async fn show_config(State(admin): State<Admin>) -> Response {
    let body = config(&(admin.load_report)(), admin.engine.config().as_deref());
    (JSON, body.to_string()).into_response()
}

async fn show_config_diff(State(admin): State<Admin>) -> Response {
    (JSON, admin.config_diff.to_json().to_string()).into_response()
}

async fn show_fleet(State(admin): State<Admin>) -> Response {
    let clock = admin.engine.clock();
    let shares = show::shares_json(admin.engine.concurrency_limits().fleet_reporter(), clock);
    let proxies = show::proxies_json(&admin.engine);
    let body = fleet(admin.engine.membership(), (&shares, &proxies), clock.now());
    (JSON, body.to_string()).into_response()
}

async fn show_mirror(State(admin): State<Admin>) -> Response {
    let Some(mirror) = &admin.mirror else {
        let message = "there is no mirror: set mirror.to\n";
        return (StatusCode::NOT_FOUND, PLAIN, message).into_response();
    };
    (JSON, mirror.to_json().to_string()).into_response()
}

async fn show_permits(State(admin): State<Admin>) -> Response {
    (JSON, permits(&admin.engine).to_string()).into_response()
}

async fn show_recent(State(admin): State<Admin>) -> Response {
    (JSON, recent::unmatched(&admin.engine).to_string()).into_response()
}

async fn show_rlconfig(State(admin): State<Admin>) -> Response {
    let lines = admin.engine.config().map_or_else(String::new, |config| rlconfig(&config));
    (PLAIN, lines).into_response()
}

async fn show_explain(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    match (ExplainQuery::from_query(query), admin.engine.config()) {
        (Err(message), _) => bad_request(message),
        (Ok(_), None) => bad_request("no limits are loaded".to_owned()),
        (Ok(query), Some(config)) => {
            let mut explanation = explain(&config, &query, admin.engine.clock().now());
            explain::add_live_state(&mut explanation, &query, &admin.engine);
            (JSON, serde_json::to_string(&explanation).unwrap_or_default()).into_response()
        }
    }
}

async fn show_counter(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let query = match ExplainQuery::from_query(query) {
        Ok(query) => query,
        Err(error) => return bad_request(error),
    };
    match read_counter(&admin.engine, &query).await {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(error) => counter_error_response(&error),
    }
}

async fn refund(State(admin): State<Admin>, change: ChangeQuery) -> Response {
    let query = match counter_query(&change) {
        Ok(query) => query,
        Err(error) => return bad_request(error),
    };
    let engine = Arc::clone(&admin.engine);
    // A task of its own, so that the audit log has the change even if the client disconnects.
    let refunded =
        tokio::spawn(async move { refund_counter(&engine, &query, change.operator()).await });
    match refunded.await.unwrap_or(Err(CounterError::Aborted)) {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(error) => counter_error_response(&error),
    }
}

async fn reset(State(admin): State<Admin>, change: ChangeQuery) -> Response {
    let query = match counter_query(&change) {
        Ok(query) => query,
        Err(error) => return bad_request(error),
    };
    let engine = Arc::clone(&admin.engine);
    let reset =
        tokio::spawn(async move { reset_counters(&engine, &query, change.operator()).await });
    match reset.await.unwrap_or(Err(CounterError::Aborted)) {
        Ok(1) => (PLAIN, "1 counter reset\n").into_response(),
        Ok(count) => (PLAIN, format!("{count} counters reset\n")).into_response(),
        Err(error) => counter_error_response(&error),
    }
}

/// Returns the check that names the counters of a refund or reset.
fn counter_query(change: &ChangeQuery) -> Result<ExplainQuery, String> {
    change.allow_only(&[])?;
    ExplainQuery::from_query(change.check.clone())
}

fn bad_request(message: String) -> Response {
    (StatusCode::BAD_REQUEST, PLAIN, message + "\n").into_response()
}

fn counter_error_response(error: &CounterError) -> Response {
    (error.status(), PLAIN, format!("{error}\n")).into_response()
}
