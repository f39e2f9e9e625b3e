//! Sends checks over HTTP/1.1: POST of proto3 JSON, as for `/check` and `/json`.

use axum::body::{Body, to_bytes};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{HeaderValue, Method, Request, Uri};

use super::answer::AnswerCode;
use super::checks::{BenchCheck, Entries};

/// The largest reply. A longer one is no decision.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// Sends checks over one HTTP connection, one after the other.
#[derive(Clone, Debug)]
pub struct HttpSender {
    client: Client<HttpConnector, Body>,
    url: Uri,
}

impl HttpSender {
    /// Creates a sender of checks to `url`, which connects at its first check.
    #[must_use]
    pub fn new(url: Uri) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector);
        Self { client, url }
    }

    /// Sends a check and waits for its reply.
    pub async fn send(&mut self, check: BenchCheck) -> AnswerCode {
        let mut request = Request::new(Body::from(to_json(check).to_string()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let Ok(reply) = self.client.request(request).await else {
            return AnswerCode::TransportError;
        };
        let status = reply.status().as_u16();
        match to_bytes(Body::new(reply.into_body()), MAX_REPLY_BYTES).await {
            Ok(body) => AnswerCode::from_http(status, &body),
            Err(_) => AnswerCode::TransportError,
        }
    }
}

fn to_json(check: BenchCheck) -> Value {
    let entry = |(key, value)| json!({"key": key, "value": value});
    let descriptor =
        |entries: Entries| json!({"entries": entries.into_iter().map(entry).collect::<Vec<_>>()});
    let descriptors: Vec<_> = check.descriptors.into_iter().map(descriptor).collect();
    json!({"domain": check.domain, "descriptors": descriptors, "hitsAddend": check.hits})
}
