//! Serves the metrics port, from which Prometheus scrapes.
//!
//! Guarantees:
//! - The format is Prometheus text 0.0.4, or OpenMetrics 1.0 with exemplars if the client prefers
//!   it.
//! - A scrape changes no metric.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::not_found;
use super::response::StaticHeader;
use crate::telemetry::metrics::{METRICS, to_openmetrics};

const TEXT_FORMAT: StaticHeader = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
const OPENMETRICS_FORMAT: StaticHeader =
    [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];

/// Renders all metrics in Prometheus text format 0.0.4.
pub type PageRenderer = Arc<dyn Fn() -> String + Send + Sync>;

/// The metrics formats that the port offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormats {
    /// Prometheus text format 0.0.4 only.
    Text,
    /// Prometheus text format 0.0.4 and OpenMetrics 1.0.
    Both,
}

/// Serves the metrics at `path`, in one of `formats`.
pub fn router(path: &str, page: PageRenderer, formats: MetricsFormats) -> Router {
    let handler = async move |headers: HeaderMap| match formats {
        MetricsFormats::Both if prefers_openmetrics(&headers) => {
            page_response(OPENMETRICS_FORMAT, to_openmetrics(&page(), &METRICS))
        }
        MetricsFormats::Both | MetricsFormats::Text => page_response(TEXT_FORMAT, page()),
    };
    Router::new().route(path, get(handler)).fallback(not_found)
}

fn page_response(format: StaticHeader, text: String) -> Response {
    (format, [(VARY, "accept")], text).into_response()
}

/// Returns `true` if the `Accept` header prefers OpenMetrics, or weighs both formats equally.
/// Source: RFC 9110, section 12.5.1.
fn prefers_openmetrics(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open_weight, mut text_weight) = (0, 0);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |name: &str| {
            let parameter = parameters
                .iter()
                .find(|(parameter_name, _)| parameter_name.eq_ignore_ascii_case(name));
            parameter.map(|(_, value)| value.trim().trim_matches('"'))
        };
        let weight = parameter("q").map_or(1000, parse_weight);
        match (&*kind, parameter("version")) {
            ("application/openmetrics-text", None | Some("1.0.0")) => {
                open_weight = open_weight.max(weight);
            }
            ("text/plain", None | Some("0.0.4")) => text_weight = text_weight.max(weight),
            _ => {}
        }
    }
    0 < open_weight && text_weight <= open_weight
}

/// Parses an `Accept` weight in thousandths: `0.75` is 750. Returns 0 for an invalid weight.
fn parse_weight(weight: &str) -> u32 {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    let parsed = (whole.parse::<u32>().ok(), fraction.parse::<u32>().ok());
    let (Some(whole), Some(fraction)) = parsed else { return 0 };
    whole.saturating_mul(1000).saturating_add(fraction).min(1000)
}
