//! Connects to the xDS server, in plain text or with TLS.
//!
//! Guarantees:
//! - A connection attempt fails after [`CONNECT_TIMEOUT`].
//! - TCP keepalive detects a vanished server.
//! - TLS files are read again for each connection.
//! - The server's certificate must have a trusted issuer and the expected name.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::pem;
use crate::telemetry::with_causes;

/// The timeout of a connection attempt, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The idle time before the first TCP keepalive probe. Go servers would reject frequent HTTP/2
/// pings.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);

/// The address and the TLS options of the xDS server.
#[derive(Clone, Debug)]
pub struct XdsServer {
    /// The host name or IP address. An IPv6 address has no brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The TLS options of the connection. `None` means plain text.
    pub tls: Option<XdsTls>,
}

impl fmt::Display for XdsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uri_host(), self.port)
    }
}

impl XdsServer {
    fn uri_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Warns if others on the network can change the limits.
    pub(super) fn warn_without_tls(&self) {
        let is_loopback = self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if self.tls.is_none() && !is_loopback {
            tracing::warn!(
                server = %self,
                "the connection to the xDS server has no TLS, so others on the network can change \
                 the limits: set limits.xds.use_tls"
            );
        }
    }

    fn endpoint(&self) -> Result<Endpoint, XdsConnectError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = |scheme: &str| {
            format!("{scheme}://{self}")
                .parse::<Uri>()
                .map_err(|error| XdsConnectError::Address(error.to_string()))
        };
        Ok(Endpoint::from(uri("http")?).origin(uri(scheme)?).connect_timeout(CONNECT_TIMEOUT))
    }
}

/// The TLS options of a connection to the xDS server.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// The CA bundle (PEM) that verifies the server's certificate. Default: the system CAs.
    pub ca_file: Option<PathBuf>,
    /// `true` to trust the system CAs in addition to `ca_file`.
    pub trust_system_cas: bool,
    /// The PEM files of the client certificate and of its private key.
    pub client_identity: Option<(PathBuf, PathBuf)>,
    /// The expected name in the server's certificate. Default: the host of the address.
    pub server_name: Option<String>,
}

/// The reasons for a failed connection attempt.
#[derive(Debug, thiserror::Error)]
pub enum XdsConnectError {
    /// The address of the server is invalid.
    #[error("{0}")]
    Address(String),
    /// The TCP connection or the TLS handshake failed.
    #[error("connection failed: {}", transport_cause(.0))]
    Transport(#[from] tonic::transport::Error),
}

/// Returns the error and its causes without tonic's own text, which is always "transport error".
fn transport_cause(error: &tonic::transport::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => with_causes(cause),
        None => error.to_string(),
    }
}

/// Connects to `server`.
///
/// # Errors
/// The address is invalid, or the TCP connection or the TLS handshake failed.
pub async fn connect(server: &XdsServer) -> Result<Channel, XdsConnectError> {
    let endpoint = server.endpoint()?;
    Ok(endpoint.connect_with_connector(XdsConnector(Arc::new(server.clone()))).await?)
}

/// Returns a connection to `server` that is made at the first call, and again after each loss. Must
/// run within a Tokio runtime.
///
/// # Errors
/// The address is invalid.
pub fn connect_lazily(server: &XdsServer) -> Result<Channel, XdsConnectError> {
    let endpoint = server.endpoint()?;
    Ok(endpoint.connect_with_connector_lazy(XdsConnector(Arc::new(server.clone()))))
}

struct XdsConnector(Arc<XdsServer>);

type XdsConnectFuture = Pin<Box<dyn Future<Output = io::Result<TokioIo<XdsByteStream>>> + Send>>;

impl Service<Uri> for XdsConnector {
    type Response = TokioIo<XdsByteStream>;
    type Error = io::Error;
    type Future = XdsConnectFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> XdsConnectFuture {
        let server = Arc::clone(&self.0);
        Box::pin(async move { Ok(TokioIo::new(open_stream(&server).await?)) })
    }
}

async fn open_stream(server: &XdsServer) -> io::Result<XdsByteStream> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_IDLE / 2)
        .with_retries(2);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let Some(tls) = server.tls.clone() else { return Ok(XdsByteStream::Plain(stream)) };
    let name = tls.server_name.clone().unwrap_or_else(|| server.host.clone());
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let config = spawn_blocking(move || client_config(&tls)).await.map_err(io::Error::other)??;
    let connector = TlsConnector::from(Arc::new(config));
    Ok(XdsByteStream::Tls(Box::new(connector.connect(name, stream).await?)))
}

fn client_config(tls: &XdsTls) -> io::Result<ClientConfig> {
    let identity = tls.client_identity.as_ref();
    let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let mut config = pem::trusted_cas_or_system(tls.ca_file.as_deref(), tls.trust_system_cas)
        .and_then(|roots| pem::client_config(roots, identity))
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

pub(super) enum XdsByteStream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

macro_rules! with_inner {
    ($stream:expr, $inner:ident => $body:expr) => {
        match $stream.get_mut() {
            XdsByteStream::Plain($inner) => $body,
            XdsByteStream::Tls($inner) => $body,
        }
    };
}

impl tokio::io::AsyncRead for XdsByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_inner!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl tokio::io::AsyncWrite for XdsByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        with_inner!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_inner!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_inner!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
