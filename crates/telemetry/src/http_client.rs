//! An HTTP/1.1 client, in plain text or with TLS: for programs that receive telemetry, and for tables.
//!
//! Guarantees:
//! - The configured CA bundle, by default the system CAs, verifies the server's certificate.
//! - Every request has a timeout.
//! - [`HttpClient::send`] reads at most [`MAX_RESPONSE_BYTES`] bytes of a response.
//!
//! Not covered:
//! - Redirects, which are returned to the caller.
//! - The size and the timeout of a body that [`HttpClient::start`] returns.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use crate::pem;

const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The error of a request, with its causes.
pub type RequestError = Box<dyn std::error::Error + Send + Sync>;

/// The TLS files of a connection.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsFiles {
    /// The CA bundle (PEM) that verifies the server's certificate. Default: the system CAs.
    pub ca_file: Option<String>,
    /// The PEM files of the client certificate and of its private key.
    pub identity: Option<(String, String)>,
}

/// A client with its own connections.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

impl HttpClient {
    /// Creates a client. Reads the TLS files once.
    ///
    /// # Errors
    /// The problem with a TLS file.
    pub fn new(files: &ClientTlsFiles, timeout: Duration) -> Result<Self, String> {
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls_config(files)?);
        let connector = connector.https_or_http().enable_http1().build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), timeout })
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// The connection failed, the timeout passed, or the response is too large.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, RequestError> {
        let response = async {
            let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        tokio::time::timeout(self.timeout, response).await?
    }

    /// Sends a request and reads the head of the response.
    ///
    /// # Errors
    /// The connection failed, or the timeout passed.
    pub async fn start(&self, request: Request<Bytes>) -> Result<Response<Incoming>, RequestError> {
        let response = self.client.request(request.map(Full::new));
        Ok(tokio::time::timeout(self.timeout, response).await??)
    }
}

/// Returns the TLS configuration of a client.
///
/// # Errors
/// The problem with a TLS file.
pub fn tls_config(files: &ClientTlsFiles) -> Result<ClientConfig, String> {
    let ca_file = files.ca_file.as_deref().map(Path::new);
    let identity = files.identity.as_ref();
    let identity = identity.map(|(certificate, key)| (Path::new(certificate), Path::new(key)));
    pem::trusted_cas_or_system(ca_file, false)
        .and_then(|roots| pem::client_config(roots, identity))
        .map_err(|error| error.to_string())
}
