//! The metrics port: `/metrics` for Prometheus.
//!
//! Guarantees: text format 0.0.4; asking changes nothing.
//! Leaves out: what is counted, which is in [`crate::telemetry::metrics`].

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use super::{Typed, not_found};
use crate::telemetry::metrics::{Gauges, METRICS};

const EXPOSITION: Typed = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];

/// What looks up the numbers that are not counted but read.
pub type Look = Arc<dyn Fn() -> Gauges + Send + Sync>;

/// `/metrics`.
pub fn router(look: Look) -> Router {
    let page = async move || (EXPOSITION, METRICS.page(look()).to_string()).into_response();
    Router::new().route("/metrics", get(page)).fallback(not_found)
}
