//! The admin port: what is loaded, and why a question would be answered as it would.
//!
//! Guarantees: with a token, nothing is shown without it; asking changes nothing and charges
//! nothing.
//! Leaves out: which address it listens on. Whoever binds it beyond loopback must set a token.

mod explain;
mod show;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::{JSON, PLAIN};
use crate::config::settings::Secret;
use crate::engine::Engine;

pub use explain::{Explain, explain};
pub use show::{LastError, Loads, config, fleet, rlconfig};

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    /// What callers send as `Authorization: Bearer …`, if they must.
    pub token: Option<Secret>,
    /// Whose configuration is shown.
    pub engine: Arc<Engine>,
    /// What looks up how loads went.
    pub loads: Arc<dyn Fn() -> Loads + Send + Sync>,
}

/// The paths and what they are for, as `/` lists them.
const PATHS: [(&str, &str); 5] = [
    ("/", "this list"),
    ("/config", "what is loaded, what was refused and why, as JSON"),
    ("/explain", "what would match: ?domain=d&descriptor=k=v,k2=v2&hits=1, as JSON"),
    ("/fleet", "the replicas that share the store of counters, as JSON"),
    ("/rlconfig", "every limit, one a line"),
];

/// `/config`, `/rlconfig`, `/explain`, `/fleet`; every other path lists them.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/config", get(show_config))
        .route("/explain", get(show_explain))
        .route("/fleet", get(show_fleet))
        .route("/rlconfig", get(show_rlconfig))
        .fallback(async || (PLAIN, list()))
        .layer(from_fn_with_state(admin.clone(), admit))
        .with_state(admin)
}

fn list() -> String {
    let line = |(path, help): &(&str, &str)| [*path, ": ", *help, "\n"].concat();
    PATHS.iter().map(line).collect()
}

async fn show_config(State(admin): State<Admin>) -> Response {
    let shown = config(&(admin.loads)(), admin.engine.config().as_deref());
    (JSON, shown.to_string()).into_response()
}

async fn show_fleet(State(admin): State<Admin>) -> Response {
    let clock = admin.engine.clock();
    let shares = show::shares(admin.engine.ceilings().fleet(), clock);
    let shown = fleet(admin.engine.membership(), &shares, clock.now());
    (JSON, shown.to_string()).into_response()
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
    match (Explain::read(query), admin.engine.config()) {
        (Err(why), _) => refused(why),
        (Ok(_), None) => refused("no limits are loaded yet".to_owned()),
        (Ok(asked), Some(config)) => {
            let explained = explain(&config, &asked, admin.engine.clock().now());
            (JSON, serde_json::to_string(&explained).unwrap_or_default()).into_response()
        }
    }
}

async fn admit(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let known = admin.token.is_none_or(|token| bears(request.headers(), &token));
    if known {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, PLAIN, "a bearer token is needed\n").into_response()
}

fn bears(headers: &HeaderMap, token: &Secret) -> bool {
    let shown =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    shown.is_some_and(|shown| token.matches(shown))
}
