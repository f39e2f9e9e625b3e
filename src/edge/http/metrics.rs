//! Serves the metrics port: one page for Prometheus.
//!
//! Guarantees:
//! - The format is text 0.0.4, or OpenMetrics 1.0 with exemplars for clients that prefer it.
//! - A scrape changes no value.
//!
//! Not covered:
//! - The metrics themselves (see [`crate::telemetry`]).

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::{Typed, not_found};
use crate::telemetry::metrics::{METRICS, open};

const TEXT: Typed = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
const OPEN: Typed = [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];

/// A function that renders the page in text format 0.0.4.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// The formats that the port offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// The text format only.
    Text,
    /// The text format and OpenMetrics.
    Both,
}

/// Serves the page at `path`.
pub fn router(path: &str, page: Page, formats: Formats) -> Router {
    let shown = async move |headers: HeaderMap| match formats {
        Formats::Both if prefers_open(&headers) => told(OPEN, open(&page(), &METRICS)),
        Formats::Both | Formats::Text => told(TEXT, page()),
    };
    Router::new().route(path, get(shown)).fallback(not_found)
}

fn told(format: Typed, text: String) -> Response {
    (format, [(VARY, "accept")], text).into_response()
}

/// Returns `true` if the client accepts OpenMetrics and prefers it at
/// least as much as the text format. Source: RFC 9110, section 12.5.1.
fn prefers_open(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut text) = (0, 0);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let of = |name: &str| {
            let found = parameters.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().trim_matches('"'))
        };
        let weight = of("q").map_or(1000, thousandths);
        match (&*kind, of("version")) {
            ("application/openmetrics-text", None | Some("1.0.0")) => open = open.max(weight),
            ("text/plain", None | Some("0.0.4")) => text = text.max(weight),
            _ => {}
        }
    }
    0 < open && text <= open
}

/// Parses a weight in thousandths: `0.75` is 750. Returns 0 for an invalid weight.
fn thousandths(weight: &str) -> u32 {
    let (whole, part) = weight.split_once('.').unwrap_or((weight, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    let read = (whole.parse::<u32>().ok(), part.parse::<u32>().ok());
    let (Some(whole), Some(part)) = read else { return 0 };
    whole.saturating_mul(1000).saturating_add(part).min(1000)
}
