//! Connects to an OpenTelemetry collector: HTTP/1.1, or HTTP/2 for gRPC, in plain text or with TLS.
//!
//! Guarantees:
//! - The configured CA bundle, by default the system CAs, verifies the collector's certificate.
//! - Every call to the collector has a timeout.
//! - At most [`MAX_RESPONSE_BYTES`] bytes of an HTTP response are read.
//!
//! Not covered:
//! - The content of requests and responses.

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

/// The maximum size of an HTTP response of the collector, in bytes.
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
    /// The Tokio runtime that sends requests, because the thread that exports spans has none.
    runtime: Handle,
    timeout: Duration,
}

impl OtlpHttpClient {
    /// Creates a client of the collector. Must run within a Tokio runtime.
    ///
    /// # Errors
    /// A TLS file cannot be read or has an invalid content.
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
        let response = self.client.request(request.map(Full::new));
        let whole = async move {
            let (head, body) = response.await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let timeout = self.timeout;
        // Create the timeout in the spawned task, because a timer needs a Tokio runtime.
        self.runtime.spawn(async move { tokio::time::timeout(timeout, whole).await? }).await?
    }
}

/// Creates a gRPC channel with TLS that connects at its first use. Must run within a Tokio runtime.
///
/// # Errors
/// The endpoint is not a URI, or a TLS file cannot be read or has an invalid content.
pub(super) fn tls_channel(
    endpoint: &str,
    files: &OtlpTlsFiles,
    timeout: Duration,
) -> Result<Channel, String> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config(files)?);
    let connector = ForcedTlsConnector(connector.https_only().enable_http2().build());
    let origin: Uri = endpoint.parse().map_err(|error| format!("{endpoint}: {error}"))?;
    let plain = endpoint.replacen("https:", "http:", 1);
    let at = Endpoint::from_shared(plain).map_err(|error| format!("{endpoint}: {error}"))?;
    let at = at.origin(origin).timeout(timeout).connect_timeout(timeout);
    Ok(at.connect_with_connector_lazy(connector))
}

/// Connects with TLS although the URI starts with `http:`. Tonic's channel would reject an `https:`
/// URI without a TLS configuration of its own.
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
    let named = files.ca_file.as_deref().map(Path::new);
    let roots = pem::trusted_cas_or_system(named, false).map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &files.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = pem::certificates(Path::new(certificate)).map_err(|error| error.to_string())?;
    let own = pem::private_key(Path::new(key)).map_err(|error| error.to_string())?;
    let unfit = |error| format!("{certificate} does not fit: {error}");
    builder.with_client_auth_cert(chain, own).map_err(unfit)
}
