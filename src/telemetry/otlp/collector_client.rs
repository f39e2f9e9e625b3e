//! Connects to an OpenTelemetry collector over HTTP/1.1 or gRPC, in plain text or with TLS.
//!
//! Guarantees:
//! - The configured CA bundle, by default the system CAs, verifies the collector's certificate.
//! - Every call to the collector has a timeout.
//! - At most [`MAX_RESPONSE_BYTES`] bytes of an HTTP response are read.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::pem;

const MAX_RESPONSE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct OtlpTlsFiles {
    /// The CA bundle (PEM) that verifies the collector's certificate. Default: the system CAs.
    pub(super) ca_file: Option<String>,
    /// The PEM files of the client certificate and of its private key.
    pub(super) identity: Option<(String, String)>,
}

#[derive(Debug)]
pub(super) struct OtlpHttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The Tokio runtime that sends requests: the thread that exports spans has no runtime.
    runtime: Handle,
    timeout: Duration,
}

impl OtlpHttpClient {
    /// Creates a client of the collector. Must run within a Tokio runtime.
    pub(super) fn new(files: &OtlpTlsFiles, timeout: Duration) -> Result<Self, String> {
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config(files)?);
        let connector = connector.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, runtime: Handle::current(), timeout })
    }
}

#[tonic::async_trait]
impl HttpClient for OtlpHttpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let pending = self.client.request(request.map(Full::new));
        let response = async move {
            let (head, body) = pending.await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let timeout = self.timeout;
        // Create the timer in the spawned task, because it needs a Tokio runtime.
        self.runtime.spawn(async move { tokio::time::timeout(timeout, response).await? }).await?
    }
}

/// Creates a gRPC channel with TLS that connects at its first use. Must run within a Tokio runtime.
pub(super) fn tls_channel(
    endpoint: &str,
    files: &OtlpTlsFiles,
    timeout: Duration,
) -> Result<Channel, String> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config(files)?);
    let connector = ForcedTlsConnector(connector.https_only().enable_http2().build());
    let origin: Uri = endpoint.parse().map_err(|error| format!("{endpoint}: {error}"))?;
    let plain_uri = endpoint.replacen("https:", "http:", 1);
    let channel =
        Endpoint::from_shared(plain_uri).map_err(|error| format!("{endpoint}: {error}"))?;
    let channel = channel.origin(origin).timeout(timeout).connect_timeout(timeout);
    Ok(channel.connect_with_connector_lazy(connector))
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

fn tls_config(files: &OtlpTlsFiles) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| error.to_string())?;
    let ca_file = files.ca_file.as_deref().map(Path::new);
    let roots = pem::trusted_cas_or_system(ca_file, false).map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &files.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = pem::certificates(Path::new(certificate)).map_err(|error| error.to_string())?;
    let private_key = pem::private_key(Path::new(key)).map_err(|error| error.to_string())?;
    builder.with_client_auth_cert(chain, private_key).map_err(|error| {
        pem::PemError::unusable_certificate(Path::new(certificate), &error).to_string()
    })
}
