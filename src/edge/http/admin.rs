//! Serves the admin port: an operator inspects limits, counters and replicas, and changes them.
//!
//! Guarantees:
//! - If a token is set, pages without it need [`Admin::debug_pages`].
//! - GET requests charge no hits.
//! - Only `/reset`, `/grant`, `/freeze` and `/thaw` change state: by POST, with a log line.
//! - A reply reports success only if the change was made.
//!
//! Not covered:
//! - The listen address. An address that is not loopback requires a token.

mod counter;
mod explain;
mod freeze;
mod permits;
mod show;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};

use super::{JSON, PLAIN};
use crate::config::settings::SecretText;
use crate::engine::Engine;
use crate::telemetry::stats::StatSample;

use counter::{CounterAction, CounterError, reset_counters, run_action};
pub use explain::{ExplainQuery, explain};
pub use permits::permits;
pub use show::{ConfigLoads, LoadError, config, fleet, rlconfig};

/// The dependencies of the admin port.
#[derive(Clone)]
pub struct Admin {
    /// The setting `listen.admin_token`, which callers must send as `Authorization: Bearer …`.
    pub token: Option<SecretText>,
    /// Serves the pages that envoyproxy/ratelimit has too (`/`, `/rlconfig` and `/stats`)
    /// without a token. The other paths still need a token.
    pub debug_pages: bool,
    /// The engine whose limits and counters the pages show and change.
    pub engine: Arc<Engine>,
    /// Returns the results of all configuration loads, for `/config`.
    pub load_report: Arc<dyn Fn() -> ConfigLoads + Send + Sync>,
}

const PATHS: [(&str, &str); 13] = [
    ("/", "this list"),
    ("/rlconfig", "every limit, one a line"),
    ("/stats", "the process and what envoyproxy/ratelimit would have counted, as JSON"),
    ("/config", "what is loaded, what was refused and why, as JSON"),
    ("/explain", "what would match: ?domain=d&descriptor=k=v,k2=v2&hits=1, as JSON"),
    ("/counter", "what a counter holds: ?domain=d&descriptor=k=v,k2=v2, as JSON"),
    (
        "/grant",
        "POST, takes a token: gives &hits=n back to the counter of ?domain=d&descriptor=k=v",
    ),
    (
        "/freeze",
        "POST, takes a token: holds the limit of ?domain=d&descriptor=k=v&as=deny&for=10m (or as=allow)",
    ),
    ("/thaw", "POST, takes a token: lets the limit of ?domain=d&descriptor=k=v go"),
    ("/frozen", "the limits that are held at one answer, as JSON"),
    ("/reset", "POST, takes a token: empties the counters of ?domain=d&descriptor=k=v,k2=v2"),
    ("/fleet", "the replicas that share the store of counters, as JSON"),
    ("/permits", "requests in flight: the oldest permits, the busiest ceilings, as JSON"),
];

/// Serves the paths of the admin port. An unknown path gets the list of all paths,
/// and a path below `/debug/pprof` gets an error.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/config", get(show_config))
        .route("/counter", get(show_counter))
        .route("/explain", get(show_explain))
        .route("/fleet", get(show_fleet))
        .route("/frozen", get(freeze::frozen))
        .route("/permits", get(show_permits))
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

fn change_routes(admin: &Admin) -> Router<Admin> {
    Router::new()
        .route("/freeze", post(freeze::freeze))
        .route("/grant", post(grant))
        .route("/reset", post(reset))
        .route("/thaw", post(freeze::thaw))
        .layer(from_fn_with_state(admin.clone(), require_token_setting))
}

/// Replies to `/debug/pprof`, where envoyproxy/ratelimit serves Go profiles. The status
/// is an error, so that no profile collector stores the text as a profile.
async fn profiles_not_supported() -> Response {
    let why = "profiles are not built in: run `perf record -g -p PID` on the host\n";
    (StatusCode::NOT_IMPLEMENTED, PLAIN, why).into_response()
}

/// The number of paths that envoyproxy/ratelimit has too. They are the first in [`PATHS`].
const REFERENCE_PATHS: usize = 3;

async fn show_list(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let shown = if admin.is_authorized(&headers) { PATHS.len() } else { REFERENCE_PATHS };
    let line = |(path, help): &(&str, &str)| [*path, ": ", *help, "\n"].concat();
    let mut lines: Vec<_> = PATHS.iter().take(shown).map(line).collect();
    lines.sort_unstable();
    (PLAIN, lines.concat()).into_response()
}

async fn show_stats(State(admin): State<Admin>) -> Response {
    let mut counted = serde_json::Map::new();
    if let Some(stats) = admin.engine.stats() {
        stats.for_each(&[], |sample| {
            if let StatSample::Counter(name, count) = sample {
                counted.insert(name.to_owned(), count.into());
            }
        });
    }
    let command: Vec<_> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    // The command line's arguments may contain a token, so only the program's name is shown.
    let shown = serde_json::json!({
        "cmdline": command.first(),
        "version": env!("CARGO_PKG_VERSION"),
        "stats": counted,
    });
    (JSON, shown.to_string()).into_response()
}

async fn show_config(State(admin): State<Admin>) -> Response {
    let shown = config(&(admin.load_report)(), admin.engine.config().as_deref());
    (JSON, shown.to_string()).into_response()
}

async fn show_fleet(State(admin): State<Admin>) -> Response {
    let clock = admin.engine.clock();
    let shares = show::shares_json(admin.engine.concurrency_limits().fleet_reporter(), clock);
    let shown = fleet(admin.engine.membership(), &shares, clock.now());
    (JSON, shown.to_string()).into_response()
}

async fn show_permits(State(admin): State<Admin>) -> Response {
    (JSON, permits(admin.engine.concurrency_limits()).to_string()).into_response()
}

async fn show_rlconfig(State(admin): State<Admin>) -> Response {
    let lines = admin.engine.config().map_or_else(String::new, |config| rlconfig(&config));
    (PLAIN, lines).into_response()
}

async fn show_explain(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let refused = |why: String| (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response();
    match (ExplainQuery::from_query(query), admin.engine.config()) {
        (Err(why), _) => refused(why),
        (Ok(_), None) => refused("no limits are loaded".to_owned()),
        (Ok(asked), Some(config)) => {
            let mut explained = explain(&config, &asked, admin.engine.clock().now());
            explain::add_live_state(&mut explained, &asked, &admin.engine);
            (JSON, serde_json::to_string(&explained).unwrap_or_default()).into_response()
        }
    }
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

async fn show_counter(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    run_counter_action(&admin, query, CounterAction::Read).await
}

async fn grant(State(admin): State<Admin>, Query(query): Query<Vec<(String, String)>>) -> Response {
    run_counter_action(&admin, query, CounterAction::Grant).await
}

/// Rejects changes if `listen.admin_token` is not set. Otherwise every local user could change
/// counters.
async fn require_token_setting(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if admin.token.is_some() {
        return next.run(request).await;
    }
    let why = "counters and limits are changed only where listen.admin_token is set\n";
    (StatusCode::FORBIDDEN, PLAIN, why).into_response()
}

async fn run_counter_action(
    admin: &Admin,
    query: Vec<(String, String)>,
    action: CounterAction,
) -> Response {
    let asked = match ExplainQuery::from_query(query) {
        Ok(asked) => asked,
        Err(why) => return (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    };
    match run_action(&admin.engine, &asked, action).await {
        Ok(shown) => (JSON, shown.to_string()).into_response(),
        Err(why) => counter_error_response(&why),
    }
}

async fn reset(State(admin): State<Admin>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let asked = match ExplainQuery::from_query(query) {
        Ok(asked) => asked,
        Err(why) => return (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    };
    match reset_counters(&admin.engine, &asked).await {
        Ok(1) => (PLAIN, "1 counter is empty\n").into_response(),
        Ok(some) => (PLAIN, format!("{some} counters are empty\n")).into_response(),
        Err(why) => counter_error_response(&why),
    }
}

fn counter_error_response(why: &CounterError) -> Response {
    (why.status(), PLAIN, format!("{why}\n")).into_response()
}

async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if admin.is_authorized(request.headers()) || admin.is_public(request.uri().path()) {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    let why = match admin.token {
        Some(_) => "a bearer token is needed\n",
        None => "a bearer token is needed, which listen.admin_token sets; none is set\n",
    };
    (StatusCode::UNAUTHORIZED, challenge, PLAIN, why).into_response()
}

fn has_token(headers: &HeaderMap, token: &SecretText) -> bool {
    let shown =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    shown.is_some_and(|shown| token.matches(shown))
}
