//! Calls the admin port of a running replica, without TLS.
//!
//! Guarantees:
//! - Returns a reply or an error within [`CALL_TIMEOUT`].
//! - Reads at most [`MAX_REPLY_BYTES`] bytes.

use std::iter::{once, repeat};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Method, Request, StatusCode, Uri};

use crate::config::explain::Explanation;
use crate::source::xds::with_causes;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REPLY_BYTES: usize = 16 << 20;
const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";
/// The environment variable with the bearer token for the admin port. Every local user could see a
/// command-line flag.
const TOKEN_VARIABLE: &str = "SLUICEGATE_LISTEN_ADMIN_TOKEN";

/// Asks the replica at `server` which limits a check of these descriptors matches.
///
/// # Errors
/// A message with the URL of the request and the reason of its failure.
pub(super) fn explain(
    server: &str,
    domain: &str,
    descriptors: &[String],
    hits: u64,
) -> Result<Explanation, String> {
    let hits = hits.to_string();
    let url = admin_url(server, "explain", domain, descriptors, &[("hits", &hits)])?;
    let body = block_on_reply(server, send_request(Method::GET, &url))?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("{server}: invalid reply to /explain: {error}"))
}

/// Sends `action`, such as `reset`, for the counter or limit of these descriptors to the admin port
/// `server`. Returns the text of the reply.
///
/// # Errors
/// A message with the URL of the request and the reason of its failure.
pub(super) fn post_change(
    server: &str,
    action: &str,
    domain: &str,
    descriptors: &[String],
    parameters: &[(&str, &str)],
) -> Result<String, String> {
    let url = admin_url(server, action, domain, descriptors, parameters)?;
    let mut reply =
        String::from_utf8_lossy(&block_on_reply(server, send_request(Method::POST, &url))?)
            .into_owned();
    if !reply.ends_with('\n') {
        reply.push('\n');
    }
    Ok(reply)
}

/// Reads the page `path` of the admin port `server`. Returns its body.
///
/// # Errors
/// A message with the URL of the request and the reason of its failure.
pub(super) fn get_page(
    server: &str,
    path: &str,
    parameters: &[(&str, &str)],
) -> Result<Vec<u8>, String> {
    check_server(server)?;
    let mut url = format!("{}/{path}", server.trim_end_matches('/'));
    for ((name, value), joint) in parameters.iter().zip(once("?").chain(repeat("&"))) {
        url.extend([joint, name, "=", &percent_encode(value)]);
    }
    block_on_reply(server, send_request(Method::GET, &url))
}

fn check_server(server: &str) -> Result<(), String> {
    if server.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http")) {
        return Ok(());
    }
    Err(format!("--server `{server}` must be http://HOST:PORT, such as http://127.0.0.1:6070"))
}

fn admin_url(
    server: &str,
    path: &str,
    domain: &str,
    descriptors: &[String],
    parameters: &[(&str, &str)],
) -> Result<String, String> {
    check_server(server)?;
    let mut url =
        format!("{}/{path}?domain={}", server.trim_end_matches('/'), percent_encode(domain));
    for (name, value) in parameters {
        url.extend(["&", name, "=", &percent_encode(value)]);
    }
    for descriptor in descriptors {
        url.extend(["&descriptor=", &percent_encode(descriptor)]);
    }
    Ok(url)
}

fn block_on_reply<T>(
    server: &str,
    reply: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start: {error}"))?;
    runtime
        .block_on(async { tokio::time::timeout(CALL_TIMEOUT, reply).await })
        .map_err(|_elapsed| format!("{server}: no reply within {CALL_TIMEOUT:?}"))?
}

async fn send_request(method: Method, url: &str) -> Result<Vec<u8>, String> {
    let mut request = Request::builder().method(method).uri(url);
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    if let Some(token) = &token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).map_err(|error| format!("{url}: {error}"))?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request_error = |error: &dyn std::error::Error| format!("{url}: {}", with_causes(error));
    let response = client.request(request).await.map_err(|error| request_error(&error))?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), MAX_REPLY_BYTES).await;
    let body = body.map_err(|error| request_error(&error))?;
    match status {
        StatusCode::OK => Ok(body.into()),
        StatusCode::UNAUTHORIZED if token.is_some() => Err(format!(
            "{url}: wrong token in {TOKEN_VARIABLE}; it must be the replica's listen.admin_token"
        )),
        StatusCode::UNAUTHORIZED => {
            Err(format!("{url}: a token is required; set {TOKEN_VARIABLE}"))
        }
        _ => Err(format!("{url}: {status}: {}", String::from_utf8_lossy(&body).trim())),
    }
}

/// Percent-encodes `text` for the query of a URL, except letters, digits and `-._~`.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            byte => {
                encoded.push('%');
                encoded.extend(
                    [byte >> 4, byte & 15].map(|half| char::from(HEX_DIGITS[usize::from(half)])),
                );
            }
        }
    }
    encoded
}
