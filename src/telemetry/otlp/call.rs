//! How a collector is called: by HTTP/1.1, or by HTTP/2 for gRPC; in plain text or TLS.
//!
//! Guarantees: a collector's certificate must be signed by who was named, or by whom the system trusts where nobody was;
//! a call ends within its patience, and an answer is read up to [`MOST`] bytes.
//! Leaves out: what is said.

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

/// The longest answer that is read, in bytes.
const MOST: usize = 1 << 20;

/// Whom a collector must be, and who we are.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    /// PEM certificates of who may sign the collector's; the system's without.
    pub(super) certificate: Option<String>,
    /// Our certificate and its key.
    pub(super) identity: Option<(String, String)>,
}

/// A client of OTLP over HTTP.
#[derive(Debug)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Spans are told from a thread that has no runtime.
    runtime: Handle,
    patience: Duration,
}

impl Http {
    /// Within a runtime of tokio.
    ///
    /// # Errors
    /// A file cannot be read or holds something else.
    pub(super) fn new(files: &Files, patience: Duration) -> Result<Self, String> {
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls(files)?);
        let connector = connector.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, runtime: Handle::current(), patience })
    }
}

#[tonic::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let asked = self.client.request(request.map(Full::new));
        let whole = async move {
            let (head, body) = asked.await?.into_parts();
            let body = Limited::new(body, MOST).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let patience = self.patience;
        // Made there: a timer needs the runtime that it is made in.
        self.runtime.spawn(async move { tokio::time::timeout(patience, whole).await? }).await?
    }
}

/// A connection for gRPC in TLS, made when it is needed. Within a runtime of tokio.
///
/// # Errors
/// The endpoint is no address; a file cannot be read or holds something else.
pub(super) fn secure(endpoint: &str, files: &Files, patience: Duration) -> Result<Channel, String> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls(files)?);
    let connector = Secure(connector.https_only().enable_http2().build());
    let origin: Uri = endpoint.parse().map_err(|error| format!("{endpoint}: {error}"))?;
    let plain = endpoint.replacen("https:", "http:", 1);
    let at = Endpoint::from_shared(plain).map_err(|error| format!("{endpoint}: {error}"))?;
    let at = at.origin(origin).timeout(patience).connect_timeout(patience);
    Ok(at.connect_with_connector_lazy(connector))
}

/// Speaks TLS to what it is told to call in plain text: who makes the channel refuses to be told otherwise.
#[derive(Clone)]
struct Secure(HttpsConnector<HttpConnector>);

type Connecting = Pin<
    Box<
        dyn Future<
                Output = Result<
                    <HttpsConnector<HttpConnector> as Service<Uri>>::Response,
                    Box<dyn std::error::Error + Send + Sync>,
                >,
            > + Send,
    >,
>;

impl Service<Uri> for Secure {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        match uri.to_string().replacen("http:", "https:", 1).parse() {
            Ok(uri) => Box::pin(self.0.call(uri)),
            Err(error) => Box::pin(std::future::ready(Err(error.into()))),
        }
    }
}

fn tls(files: &Files) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| error.to_string())?;
    let named = files.certificate.as_deref().map(Path::new);
    let roots = pem::roots_or_system(named, false).map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &files.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = pem::certificates(Path::new(certificate)).map_err(|error| error.to_string())?;
    let own = pem::key(Path::new(key)).map_err(|error| error.to_string())?;
    let unfit = |error| format!("{certificate} does not fit: {error}");
    builder.with_client_auth_cert(chain, own).map_err(unfit)
}
