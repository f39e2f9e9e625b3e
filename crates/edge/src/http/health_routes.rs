//! Serves health over HTTP: `/livez`, `/readyz` and `/healthcheck`.
//!
//! Not covered:
//! - The readiness itself (see [`crate::health`]).

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use super::response::PLAIN;
use crate::engine::Engine;
use crate::health::{Health, Readiness};
use crate::kernel::decision::StoreFailure;

#[derive(Clone)]
struct HealthState {
    engine: Arc<Engine>,
    health: Health,
}

/// Returns `true` if [`health_routes`] serves `path`.
#[must_use]
pub fn is_health_path(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/healthcheck")
}

/// Creates the routes of health probes. Every method is allowed.
pub fn health_routes(engine: Arc<Engine>, health: Health) -> Router {
    Router::new()
        .route("/healthcheck", any(healthcheck))
        .route("/livez", any(async || (PLAIN, "alive\n")))
        .route("/readyz", any(readyz))
        .with_state(HealthState { engine, health })
}

/// Replies like envoyproxy/ratelimit: with status 200 or 500, and without a reason.
async fn healthcheck(State(HealthState { health, .. }): State<HealthState>) -> Response {
    match health.readiness() {
        Readiness::Ready => (PLAIN, "OK").into_response(),
        Readiness::NoConfig | Readiness::StoreUnavailable | Readiness::Draining => {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn readyz(State(HealthState { engine, health }): State<HealthState>) -> Response {
    let ready = health.readiness();
    let status = match ready {
        Readiness::Ready => StatusCode::OK,
        Readiness::NoConfig | Readiness::StoreUnavailable | Readiness::Draining => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    (status, PLAIN, format!("{ready}{}\n", StoreFailureText(engine.store_failure())))
        .into_response()
}

/// The text of `/readyz` about an unavailable store.
///
/// The process stays ready, because fallbacks still decide. If all replicas became
/// unready at once, the load balancer would have no replica left.
struct StoreFailureText(Option<StoreFailure>);

impl fmt::Display for StoreFailureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = self.0 else { return Ok(()) };
        if cause == StoreFailure::NotSaved {
            return f.write_str("; counters cannot be saved, see the log");
        }
        write!(f, "; the store is unavailable ({}): ", cause.as_str())?;
        f.write_str("each limit's on_store_failure decides")
    }
}
