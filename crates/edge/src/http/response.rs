//! Text responses and their headers.
//!
//! Not covered:
//! - Responses to checks (see [`mod@super::json`] and [`super::nginx`]).

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};

pub(super) type StaticHeader = [(HeaderName, &'static str); 1];

pub(super) const JSON: StaticHeader = [(CONTENT_TYPE, "application/json")];

pub(super) const PLAIN: StaticHeader = [(CONTENT_TYPE, "text/plain; charset=utf-8")];

/// The header that keeps browsers from rendering the text of an error as HTML.
pub(super) const NO_SNIFF: StaticHeader = [(X_CONTENT_TYPE_OPTIONS, "nosniff")];

/// Returns an error response whose text is the name of the status, as in envoyproxy/ratelimit.
pub(super) fn status_response(status: StatusCode) -> Response {
    let name = status.canonical_reason().unwrap_or("Error");
    (status, PLAIN, NO_SNIFF, format!("{name}\n")).into_response()
}

pub(super) fn text_response(status: StatusCode, why: &impl std::fmt::Display) -> Response {
    (status, PLAIN, NO_SNIFF, format!("{why}\n")).into_response()
}
