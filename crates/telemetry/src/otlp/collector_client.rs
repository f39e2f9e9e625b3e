//! Connects to an OpenTelemetry collector over HTTP/1.1 or gRPC, in plain text or with TLS.
//!
//! Guarantees:
//! - The configured CA bundle, by default the system CAs, verifies the collector's certificate.
//! - Every call to the collector has a timeout.
//! - The size of an HTTP response is bounded (see [`HttpClient`]).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::{Bytes, HttpError, Request, Response};
use tokio::runtime::Handle;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::http_client::{ClientTlsFiles, HttpClient, tls_config};

#[derive(Debug)]
pub(super) struct OtlpHttpClient {
    client: HttpClient,
    /// The Tokio runtime that sends requests: the thread that exports spans has no runtime.
    runtime: Handle,
}

impl OtlpHttpClient {
    /// Creates a client of the collector. Must run within a Tokio runtime.
    pub(super) fn new(files: &ClientTlsFiles, timeout: Duration) -> Result<Self, String> {
        Ok(Self { client: HttpClient::new(files, timeout)?, runtime: Handle::current() })
    }
}

#[tonic::async_trait]
impl opentelemetry_http::HttpClient for OtlpHttpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        // Send in the spawned task, because the timeout needs a Tokio runtime.
        self.runtime.spawn(async move { client.send(request).await }).await?
    }
}

/// Creates a gRPC channel with TLS that connects at its first use. Must run within a Tokio runtime.
pub(super) fn tls_channel(
    endpoint: &str,
    files: &ClientTlsFiles,
    timeout: Duration,
) -> Result<Channel, String> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config(files)?);
    let connector = ForcedTlsConnector(connector.https_only().enable_http2().build());
    let origin: Uri = endpoint.parse().map_err(|error| invalid_endpoint(&error))?;
    let plain_uri = endpoint.replacen("https:", "http:", 1);
    let channel = Endpoint::from_shared(plain_uri).map_err(|error| invalid_endpoint(&error))?;
    let channel = channel.origin(origin).timeout(timeout).connect_timeout(timeout);
    Ok(channel.connect_with_connector_lazy(connector))
}

/// Returns the error for an endpoint, without its text, because that may contain a password.
fn invalid_endpoint(error: &dyn std::error::Error) -> String {
    format!("OTEL_EXPORTER_OTLP_ENDPOINT is an invalid URL: {error}; set it to https://HOST:PORT")
}

/// Connects with TLS to `http:` URIs, because Tonic rejects `https:` without its own TLS settings.
#[derive(Clone)]
struct ForcedTlsConnector(HttpsConnector<HttpConnector>);

type ConnectFuture = Pin<
    Box<
        dyn Future<
                Output = Result<
                    <HttpsConnector<HttpConnector> as Service<Uri>>::Response,
                    Box<dyn std::error::Error + Send + Sync>,
                >,
            > + Send,
    >,
>;

impl Service<Uri> for ForcedTlsConnector {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = ConnectFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> ConnectFuture {
        match uri.to_string().replacen("http:", "https:", 1).parse() {
            Ok(uri) => Box::pin(self.0.call(uri)),
            Err(error) => Box::pin(std::future::ready(Err(error.into()))),
        }
    }
}
