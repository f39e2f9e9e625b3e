//! The metrics port: one page for Prometheus.
//!
//! Guarantees: text format 0.0.4; asking changes nothing.
//! Leaves out: what is counted, which is in [`crate::telemetry`].

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use super::{Typed, not_found};

const EXPOSITION: Typed = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];

/// What makes the page.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// The page at `path`.
pub fn router(path: &str, page: Page) -> Router {
    let page = async move || (EXPOSITION, page()).into_response();
    Router::new().route(path, get(page)).fallback(not_found)
}
