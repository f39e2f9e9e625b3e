//! Calls the admin port of a running replica, without TLS.
//!
//! Guarantees:
//! - Returns a reply or an error within [`CALL_TIMEOUT`]; a download has its own timeout.
//! - Reads at most [`MAX_REPLY_BYTES`] bytes.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Method, Request, StatusCode, Uri};

use crate::cli::token_file;
use crate::config::explain::Explanation;
use crate::config::settings::SecretText;
use crate::telemetry::with_causes;

/// The admin port of a replica on this machine, with the default port.
pub(super) const LOCAL_ADMIN_PORT: &str = "http://127.0.0.1:6070";

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REPLY_BYTES: usize = 16 << 20;
/// The environment variable with the bearer token for the admin port. Every local user could see a
/// command-line flag.
const TOKEN_VARIABLE: &str = "SLUICEGATE_ADMIN_TOKEN";
/// The environment variable with the path of a file that contains the token.
const TOKEN_FILE_VARIABLE: &str = "SLUICEGATE_ADMIN_TOKEN_FILE";

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
    let body = block_on_body(server, &url, send(Method::GET, &url))?;
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
    let reply = block_on_body(server, &url, send(Method::POST, &url))?;
    let mut reply = String::from_utf8_lossy(&reply).into_owned();
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
    let url = page_url(server, path, parameters)?;
    block_on_body(server, &url, send(Method::GET, &url))
}

/// Reads the page `path` of the admin port `envoy` of an Envoy, without the service's token. Returns
/// its body.
///
/// # Errors
/// A message with the URL of the request and the reason of its failure.
pub(super) fn get_envoy_page(
    envoy: &str,
    path: &str,
    parameters: &[(&str, &str)],
) -> Result<Vec<u8>, String> {
    if !is_http(envoy) {
        return Err(format!(
            "--envoy `{envoy}` must be http://HOST:PORT, such as http://127.0.0.1:9901"
        ));
    }
    let url = add_parameters(format!("{}/{path}", envoy.trim_end_matches('/')), parameters);
    block_on_body(envoy, &url, send_with_token(Method::GET, &url, None))
}

fn page_url(server: &str, path: &str, parameters: &[(&str, &str)]) -> Result<String, String> {
    Ok(add_parameters(base_url(server, path)?, parameters))
}

fn add_parameters(mut url: String, parameters: &[(&str, &str)]) -> String {
    for (index, (name, value)) in parameters.iter().enumerate() {
        url.extend([if index == 0 { "?" } else { "&" }, name, "=", &percent_encode(value, b"")]);
    }
    url
}

/// Copies the reply to POST `path` of the admin port `server` to `out`, as its bytes arrive, for at
/// most `patience`.
///
/// # Errors
/// A message with the URL of the request and the reason of its failure.
pub(super) fn download(
    server: &str,
    (path, parameters): (&str, &[(&str, &str)]),
    patience: Duration,
    out: &mut impl std::io::Write,
) -> Result<(), String> {
    let url = page_url(server, path, parameters)?;
    let copy = async {
        let mut body = send(Method::POST, &url).await?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("{url}: {}", with_causes(&error)))?;
            if let Some(bytes) = frame.data_ref() {
                out.write_all(bytes).map_err(|error| format!("writing the reply: {error}"))?;
            }
        }
        Ok(())
    };
    block_on_reply(server, patience, copy)
}

fn is_http(server: &str) -> bool {
    server.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http"))
}

fn base_url(server: &str, path: &str) -> Result<String, String> {
    if !is_http(server) {
        return Err(format!(
            "--server `{server}` must be http://HOST:PORT, such as http://127.0.0.1:6070"
        ));
    }
    Ok(format!("{}/{path}", server.trim_end_matches('/')))
}

fn admin_url(
    server: &str,
    path: &str,
    domain: &str,
    descriptors: &[String],
    parameters: &[(&str, &str)],
) -> Result<String, String> {
    let domain = Some(("domain", domain)).filter(|(_, domain)| !domain.is_empty());
    let descriptors = descriptors.iter().map(|descriptor| ("descriptor", &**descriptor));
    let all = domain.into_iter().chain(parameters.iter().copied()).chain(descriptors);
    page_url(server, path, &all.collect::<Vec<_>>())
}

fn block_on_body(
    server: &str,
    url: &str,
    body: impl Future<Output = Result<Body, String>>,
) -> Result<Vec<u8>, String> {
    let read = async {
        to_bytes(body.await?, MAX_REPLY_BYTES)
            .await
            .map_err(|error| format!("{url}: {}", with_causes(&error)))
    };
    block_on_reply(server, CALL_TIMEOUT, read).map(Vec::from)
}

fn block_on_reply<T>(
    server: &str,
    patience: Duration,
    reply: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start: {error}"))?;
    runtime
        .block_on(async { tokio::time::timeout(patience, reply).await })
        .map_err(|_elapsed| format!("{server}: no reply within {patience:?}"))?
}

/// Sends a request to the service, with the bearer token if there is one. Returns the body of the
/// reply.
async fn send(method: Method, url: &str) -> Result<Body, String> {
    send_with_token(method, url, token()?).await
}

async fn send_with_token(
    method: Method,
    url: &str,
    token: Option<SecretText>,
) -> Result<Body, String> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some(token) = &token {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
    }
    let request = request.body(Body::empty()).map_err(|error| format!("{url}: {error}"))?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = client.request(request).await;
    let response = response.map_err(|error| format!("{url}: {}", with_causes(&error)))?;
    let status = response.status();
    let body = Body::new(response.into_body());
    if status == StatusCode::OK {
        return Ok(body);
    }
    let reason = to_bytes(body, MAX_REPLY_BYTES).await.unwrap_or_default();
    Err(status_error(url, status, &reason, token.is_some()))
}

/// Returns the token in the environment, or in the file that it names.
fn token() -> Result<Option<SecretText>, String> {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    match (variable(TOKEN_VARIABLE), variable(TOKEN_FILE_VARIABLE)) {
        (Some(token), _) => {
            let token = SecretText::new(&token);
            let invalid = || format!("{TOKEN_VARIABLE}: a token is printable ASCII without blanks");
            token.ok_or_else(invalid).map(Some)
        }
        (None, Some(path)) => token_file::read(path.as_ref()).map(Some),
        (None, None) => Ok(None),
    }
}

fn status_error(url: &str, status: StatusCode, body: &[u8], has_token: bool) -> String {
    match status {
        StatusCode::UNAUTHORIZED if has_token => format!(
            "{url}: wrong token in {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}; it must be a token of the \
             replica (setting admin)"
        ),
        StatusCode::UNAUTHORIZED => {
            format!("{url}: a token is required; set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}")
        }
        _ => format!("{url}: {status}: {}", String::from_utf8_lossy(body).trim()),
    }
}

/// Percent-encodes `text` for a URL, except letters, digits, `-._~` and the bytes `kept`.
pub(super) fn percent_encode(text: &str, kept: &[u8]) -> String {
    let is_kept =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte);
    text.bytes()
        .map(
            |byte| {
                if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}
