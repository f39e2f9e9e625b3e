//! Posts one event, signed as in Standard Webhooks.
//!
//! Guarantees:
//! - A request ends after [`REQUEST_TIMEOUT`].
//! - The secret file is read for each request. If it cannot be read, the event is retried later.
//! - No error and no log line contains the secret, or the path of the URL.
//!
//! Source: <https://github.com/standard-webhooks/standard-webhooks>, and the HTTP binding of
//! CloudEvents 1.0 (structured mode).

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use hyper::http::{HeaderMap, Request, StatusCode};
use ring::hmac;

use crate::http_client::{ClientTlsFiles, HttpClient};
use crate::kernel::units::Nanos;
use crate::{pem, with_causes};

/// The time from the first attempt after which an event is dropped.
pub(super) const MAX_AGE: Duration = Duration::from_secs(600);

/// The timeout of one request, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The prefix of a secret in base64, as Standard Webhooks writes it.
const ENCODED_SECRET_PREFIX: &str = "whsec_";

const SHORTEST_SECRET: usize = 16;

/// The receiver of events.
#[derive(Clone)]
pub struct WebhookOptions {
    /// The URL of the receiver, `http` or `https`. It may contain a secret.
    pub url: String,
    /// The scheme and host of `url`, for the log.
    pub shown_url: String,
    /// The attribute `source` of all events.
    pub source: String,
    /// The file with the secret that signs events. `None`: events are not signed.
    pub secret_file: Option<PathBuf>,
    /// The CA bundle (PEM) that verifies the receiver's certificate. Default: the system CAs.
    pub ca_file: Option<PathBuf>,
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookOptions({})", self.shown_url)
    }
}

/// The reason why events cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The CA bundle is not usable.
    #[error("{0} (setting events.ca_file)")]
    Tls(String),
    /// The secret file is not usable.
    #[error("{0} (setting events.secret_file)")]
    Secret(String),
}

/// The result of one request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PostResult {
    Accepted,
    /// The receiver refused the event with this status. A retry would not help.
    Refused(StatusCode),
    /// The request failed, and may be retried after this wait at the earliest.
    Failed(String, Option<Duration>),
}

#[derive(Debug)]
pub(super) struct Webhook {
    client: HttpClient,
    pub(super) options: WebhookOptions,
}

impl Webhook {
    pub(super) fn new(options: WebhookOptions) -> Result<Self, WebhookError> {
        let ca_file = options.ca_file.as_ref().map(|path| path.to_string_lossy().into_owned());
        let files = ClientTlsFiles { ca_file, identity: None };
        let client = HttpClient::new(&files, REQUEST_TIMEOUT).map_err(WebhookError::Tls)?;
        if let Some(path) = &options.secret_file {
            read_secret(path)?;
        }
        Ok(Self { client, options })
    }

    /// Posts the event once. `now` is the time since the Unix epoch.
    pub(super) async fn post(&self, id: &str, body: &Bytes, now: Nanos) -> PostResult {
        let request = match self.request(id, body, now).await {
            Ok(request) => request,
            Err(error) => return PostResult::Failed(error, None),
        };
        match self.client.send(request).await {
            Ok(response) => classify(response.status(), response.headers()),
            Err(error) => PostResult::Failed(with_causes(&*error), None),
        }
    }

    async fn request(&self, id: &str, body: &Bytes, now: Nanos) -> Result<Request<Bytes>, String> {
        let timestamp = (now.0 / Nanos::SECOND.0).to_string();
        let mut request = Request::post(&self.options.url)
            .header(CONTENT_TYPE, "application/cloudevents+json; charset=utf-8")
            .header(USER_AGENT, concat!("sluicegate/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = self.options.secret_file.clone() {
            let read = tokio::task::spawn_blocking(move || read_secret(&path)).await;
            let secret = read.map_err(|error| error.to_string())?;
            let secret = secret.map_err(|error| error.to_string())?;
            request = request.header("webhook-signature", sign(&secret, (id, &timestamp), body));
        }
        let request = request.header("webhook-id", id).header("webhook-timestamp", timestamp);
        request.body(body.clone()).map_err(|error| error.to_string())
    }
}

fn classify(status: StatusCode, headers: &HeaderMap) -> PostResult {
    let is_temporary = status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY
        );
    match status {
        _ if status.is_success() => PostResult::Accepted,
        _ if is_temporary => {
            let seconds = headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok());
            let seconds: Option<u64> = seconds.and_then(|text| text.trim().parse().ok());
            // One second more than the largest age: the event expires without a retry.
            let longest = MAX_AGE + Duration::from_secs(1);
            let wait = seconds.map(|seconds| Duration::from_secs(seconds).min(longest));
            PostResult::Failed(format!("status {status}"), wait)
        }
        _ => PostResult::Refused(status),
    }
}

fn read_secret(path: &Path) -> Result<Vec<u8>, WebhookError> {
    let wrong = |what: &str| WebhookError::Secret(format!("{}: {what}", path.display()));
    let bytes = pem::read_file(path).map_err(|error| WebhookError::Secret(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong("contains no text"))?.trim();
    let secret = match text.strip_prefix(ENCODED_SECRET_PREFIX) {
        Some(encoded) => STANDARD.decode(encoded).map_err(|_| wrong("no base64 after `whsec_`"))?,
        None => text.as_bytes().to_vec(),
    };
    if secret.len() < SHORTEST_SECRET {
        return Err(wrong("the secret is shorter than 16 bytes; create one: openssl rand -hex 16"));
    }
    Ok(secret)
}

/// Returns the header `webhook-signature`: version 1, HMAC-SHA256 in base64.
fn sign(secret: &[u8], (id, timestamp): (&str, &str), body: &[u8]) -> String {
    let mut signing = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        signing.update(part);
    }
    format!("v1,{}", STANDARD.encode(signing.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the specification of Standard Webhooks and in its reference libraries.
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let secret = read_secret(&path).unwrap();
        let head = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330");
        let signature = sign(&secret, head, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn an_unusable_secret_names_its_file_and_setting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for content in ["", "too short", "whsec_MfKQ9r8G", "whsec_!!!"] {
            std::fs::write(&path, content).unwrap();
            let error = read_secret(&path).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
            assert!(error.ends_with("(setting events.secret_file)"), "{error}");
        }
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"0123456789abcdef");
    }

    #[test]
    fn only_temporary_statuses_are_retried() {
        let no_headers = HeaderMap::new();
        let result = |status| classify(StatusCode::from_u16(status).unwrap(), &no_headers);
        for status in [200, 202, 204] {
            assert_eq!(result(status), PostResult::Accepted);
        }
        for status in [301, 400, 401, 404, 410, 413] {
            assert!(matches!(result(status), PostResult::Refused(_)), "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(matches!(result(status), PostResult::Failed(_, None)), "{status}");
        }
        let headers = HeaderMap::from_iter([(RETRY_AFTER, "7".parse().unwrap())]);
        let limited = classify(StatusCode::TOO_MANY_REQUESTS, &headers);
        assert!(
            matches!(limited, PostResult::Failed(_, Some(wait)) if wait == Duration::from_secs(7))
        );
    }
}
