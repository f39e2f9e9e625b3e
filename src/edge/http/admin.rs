//! Serves the admin port: an operator inspects limits, counters and replicas, and changes them.
//!
//! Guarantees:
//! - If a token is set, pages without it need [`Admin::debug_pages`].
//! - GET requests charge no hits.
//! - Only `/reset`, `/refund`, `/force` and `/unforce` change state: by POST, with a log line.
//! - A reply reports success only if the change was made.

mod counter;
mod explain;
mod forced_decision;
mod permits;
mod port;
mod recent;
mod record;
mod show;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};

use super::response::{JSON, PLAIN};
use crate::config::settings::SecretText;
use crate::telemetry::stats::StatSample;

use counter::{CounterAction, CounterError, reset_counters, run_action};
pub use explain::{ExplainQuery, explain};
pub use permits::permits;
pub use port::Admin;
pub use show::{ConfigLoads, LoadError, config, fleet, rlconfig};

const PATHS: [(&str, &str); 15] = [
    ("/", "this list"),
    ("/rlconfig", "all limits, one per line"),
    ("/stats", "the process, and the statistics of envoyproxy/ratelimit, as JSON"),
    ("/config", "the loaded limits, and the errors of the last load, as JSON"),
    ("/explain", "the matching rule of ?domain=d&descriptor=k=v,k2=v2&hits=1, as JSON"),
    ("/counter", "the state of the counter of ?domain=d&descriptor=k=v,k2=v2, as JSON"),
    (
        "/refund",
        "POST, requires a token: returns &hits=n to the counter of ?domain=d&descriptor=k=v",
    ),
    (
        "/force",
        "POST, requires a token: forces the decision of \
         ?domain=d&descriptor=k=v&as=deny&for=10m (or as=allow)",
    ),
    ("/unforce", "POST, requires a token: ends the forced decision of ?domain=d&descriptor=k=v"),
    ("/forced", "the forced decisions, as JSON"),
    ("/reset", "POST, requires a token: resets the counters of ?domain=d&descriptor=k=v,k2=v2"),
    ("/fleet", "the replicas of the fleet and their shares, as JSON"),
    ("/recent", "the last 100 different descriptors that matched no rule, with counts, as JSON"),
    (
        "/record",
        "requires a token: streams the checks of &for=10m, of &sample=1% of the keys, with \
         &keys=hashed (or clear)",
    ),
    ("/permits", "requests in flight: the oldest permits, the busiest buckets, as JSON"),
];

/// Serves the admin port. An unknown path gets the list of all paths.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/config", get(show_config))
        .route("/counter", get(show_counter))
        .route("/explain", get(show_explain))
        .route("/fleet", get(show_fleet))
        .route("/forced", get(forced_decision::list))
        .route("/permits", get(show_permits))
        .route("/recent", get(show_recent))
        .route("/rlconfig", get(show_rlconfig))
        .route("/stats", get(show_stats))
        .fallback(show_list)
        .route("/debug/pprof", any(profiles_not_supported))
        .route("/debug/pprof/", any(profiles_not_supported))
        .route("/debug/pprof/{*profile}", any(profiles_not_supported))
        .merge(change_routes(&admin))
        .layer(from_fn_with_state(admin.clone(), authorize))
        .with_state(admin)
}

impl Admin {
    /// Returns `true` if a request with these headers may use every path.
    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        match &self.token {
            Some(token) => has_token(headers, token),
            None => !self.debug_pages,
        }
    }

    /// Returns `true` if `path` needs no token: a page of envoyproxy/ratelimit with
    /// `debug_pages`. Unknown paths are such pages too, because they show the list of paths.
    fn is_public(&self, path: &str) -> bool {
        let is_own_path = PATHS.iter().skip(REFERENCE_PATHS).any(|(ours, _)| *ours == path);
        self.debug_pages && !is_own_path
    }
}

fn change_routes(admin: &Admin) -> Router<Admin> {
    Router::new()
        .route("/force", post(forced_decision::force))
        .route("/record", get(record::record))
        .route("/refund", post(refund))
        .route("/reset", post(reset))
        .route("/unforce", post(forced_decision::unforce))
        .layer(from_fn_with_state(admin.clone(), require_token_setting))
}

/// Replies to `/debug/pprof`, where envoyproxy/ratelimit serves Go profiles. The status is an
/// error, so that no collector stores the text as a profile.
async fn profiles_not_supported() -> Response {
    let message = "profiles are not built in: run `perf record -g -p PID` on the host\n";
    (StatusCode::NOT_IMPLEMENTED, PLAIN, message).into_response()
}

/// The number of paths in [`PATHS`] that envoyproxy/ratelimit has, too. They come first.
const REFERENCE_PATHS: usize = 3;

async fn show_list(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let count = if admin.is_authorized(&headers) { PATHS.len() } else { REFERENCE_PATHS };
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

async fn show_fleet(State(admin): State<Admin>) -> Response {
    let clock = admin.engine.clock();
    let shares = show::shares_json(admin.engine.concurrency_limits().fleet_reporter(), clock);
    let body = fleet(admin.engine.membership(), &shares, clock.now());
    (JSON, body.to_string()).into_response()
}

async fn show_permits(State(admin): State<Admin>) -> Response {
    (JSON, permits(admin.engine.concurrency_limits()).to_string()).into_response()
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
    let bad_request =
        |message: String| (StatusCode::BAD_REQUEST, PLAIN, message + "\n").into_response();
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

async fn show_counter(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    run_counter_action(&admin, query, CounterAction::Read).await
}

async fn refund(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    run_counter_action(&admin, query, CounterAction::Refund).await
}

/// Rejects changes if `listen.admin_token` is not set. Otherwise every local user could make
/// changes.
async fn require_token_setting(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if admin.token.is_some() {
        return next.run(request).await;
    }
    let message = "changes are forbidden, because the setting listen.admin_token is not set\n";
    (StatusCode::FORBIDDEN, PLAIN, message).into_response()
}

async fn run_counter_action(
    admin: &Admin,
    query: Vec<(String, String)>,
    action: CounterAction,
) -> Response {
    let query = match ExplainQuery::from_query(query) {
        Ok(query) => query,
        Err(error) => return (StatusCode::BAD_REQUEST, PLAIN, error + "\n").into_response(),
    };
    match run_action(&admin.engine, &query, action).await {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(error) => counter_error_response(&error),
    }
}

async fn reset(State(admin): State<Admin>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let query = match ExplainQuery::from_query(query) {
        Ok(query) => query,
        Err(error) => return (StatusCode::BAD_REQUEST, PLAIN, error + "\n").into_response(),
    };
    match reset_counters(&admin.engine, &query).await {
        Ok(1) => (PLAIN, "1 counter reset\n").into_response(),
        Ok(count) => (PLAIN, format!("{count} counters reset\n")).into_response(),
        Err(error) => counter_error_response(&error),
    }
}

fn counter_error_response(error: &CounterError) -> Response {
    (error.status(), PLAIN, format!("{error}\n")).into_response()
}

async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if admin.is_authorized(request.headers()) || admin.is_public(request.uri().path()) {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    let message = match admin.token {
        Some(_) => "a bearer token is required\n",
        None => "a bearer token is required, but the setting listen.admin_token is not set\n",
    };
    (StatusCode::UNAUTHORIZED, challenge, PLAIN, message).into_response()
}

fn has_token(headers: &HeaderMap, token: &SecretText) -> bool {
    let token_bytes =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    token_bytes.is_some_and(|token_bytes| token.matches(token_bytes))
}
