//! Serves the console: static files that show the admin port's JSON in a browser.
//!
//! Guarantees:
//! - The files contain no data of the service, so they need no token.
//! - Browsers ask for each file again and get status 304 if it is unchanged.
//! - Every file has a fixed content type that browsers may not guess.
//! - The files refer to no other host.
//!
//! Not covered:
//! - The data, which the console reads from the pages of [`super::admin`].
//! - The content security policy, which the admin port adds to all of its pages.

use std::hash::Hasher as _;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fnv::FnvHasher;

use super::response::{NO_SNIFF, PLAIN};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A static file.
struct ConsoleFile {
    /// The path below `/console/`; empty for the page itself.
    path: &'static str,
    content_type: &'static str,
    body: &'static str,
}

/// Lists files of the folder `console` with their content types.
macro_rules! files {
    ($($content_type:ident: $($path:literal)+;)+) => {
        &[$($(ConsoleFile {
            path: $path,
            content_type: $content_type,
            body: include_str!(concat!("console/", $path)),
        },)+)+]
    };
}

const INDEX: ConsoleFile =
    ConsoleFile { path: "", content_type: HTML, body: include_str!("console/index.html") };

static FILES: &[ConsoleFile] = files! {
    SCRIPT: "actions.js" "api.js" "app.js" "chart.js" "dom.js" "format.js" "poller.js" "rates.js"
        "tables.js" "theme.js" "pages/audit.js" "pages/bans.js" "pages/budgets.js"
        "pages/concurrency.js" "pages/configuration.js" "pages/key.js" "pages/overview.js"
        "pages/rule.js" "pages/rules.js" "pages/tables.js" "vendor/uPlot.iife.min.js";
    STYLE: "console.css" "vendor/uPlot.min.css";
    PICTURE: "icon.svg";
    TEXT: "vendor/LICENSE.uPlot";
};

/// Serves `/console` and the files below it, by GET and HEAD.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/console", get(async |headers: HeaderMap| file_response(&INDEX, &headers)))
        .route("/console/", get(redirect))
        .route("/console/{*path}", get(file))
}

/// The page's own addresses are relative to `/console`. The redirect is relative, too, so that it
/// works below a prefix of a reverse proxy.
async fn redirect() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../console")]).into_response()
}

async fn file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|file| file.path == path) {
        Some(file) => file_response(file, &headers),
        None => (StatusCode::NOT_FOUND, PLAIN, NO_SNIFF, "404 page not found\n").into_response(),
    }
}

fn file_response(file: &ConsoleFile, headers: &HeaderMap) -> Response {
    let tag = entity_tag(file.body);
    // `no-cache` lets the browser keep the file, but ask before each use: an upgraded
    // replica must not get the scripts of an old one.
    let caching = [(CACHE_CONTROL, "no-cache".to_owned()), (ETAG, tag.clone())];
    if has_tag(headers, &tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    let content: [(HeaderName, &str); 1] = [(CONTENT_TYPE, file.content_type)];
    (caching, content, NO_SNIFF, file.body).into_response()
}

/// Returns a tag that changes with the content. A hash of 64 bits suffices, because nobody else
/// chooses the content.
fn entity_tag(body: &str) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(body.as_bytes());
    format!("\"{:016x}\"", hasher.finish())
}

/// Returns `true` if the browser has the file with this tag. A proxy that compresses
/// replies makes the tag weak (`W/`).
fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    tags.flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}
