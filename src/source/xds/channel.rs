//! Connects to the xDS server with plain text or TLS.
//!
//! Guarantees:
//! - A connection attempt fails after [`PATIENCE`].
//! - TCP keepalive detects a vanished server.
//! - TLS files are read again for each connection.
//! - The server's certificate must have a trusted issuer and the expected name.
//!
//! Not covered:
//! - The messages (see [`super`]).

use std::fmt;
use std::future::Future;
use std::io;
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

/// The timeout of a connection, including its TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// The idle time before the first TCP keepalive probe. HTTP/2 pings are
/// not used, because Go servers close connections that send many pings.
const SILENT: Duration = Duration::from_secs(20);

/// The address of the xDS server.
#[derive(Clone, Debug)]
pub struct Server {
    /// The host. An IPv6 address has no brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The TLS options. `None` means plain text.
    pub tls: Option<Tls>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.in_uri(), self.port)
    }
}

impl Server {
    /// Returns the host as in a URI, with brackets for IPv6.
    fn in_uri(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// The TLS options of the client.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The CA bundle (PEM) that verifies the server. Default: the system's CAs.
    pub ca: Option<PathBuf>,
    /// Trusts the system's CAs in addition to `ca`.
    pub system_roots: bool,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The expected name in the server's certificate. Default: the host.
    pub server_name: Option<String>,
}

/// The reasons for a failed connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is invalid.
    #[error("{0}")]
    Address(String),
    /// The transport failed.
    #[error("no connection: {}", chain(.0))]
    Transport(#[from] tonic::transport::Error),
}

/// Returns the error with its chain of causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some errors already end with the text of their cause.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Connects to `server`.
///
/// # Errors
/// [`Error::Address`] or [`Error::Transport`].
pub async fn connect(server: &Server) -> Result<Channel, Error> {
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    let uri = |scheme: &str| {
        format!("{scheme}://{server}")
            .parse::<Uri>()
            .map_err(|error| Error::Address(error.to_string()))
    };
    let endpoint = Endpoint::from(uri("http")?).origin(uri(scheme)?).connect_timeout(PATIENCE);
    Ok(endpoint.connect_with_connector(Connector(Arc::new(server.clone()))).await?)
}

struct Connector(Arc<Server>);

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Connecting {
        let server = Arc::clone(&self.0);
        Box::pin(async move { Ok(TokioIo::new(call(&server).await?)) })
    }
}

async fn call(server: &Server) -> io::Result<Stream> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    stream.set_nodelay(true)?;
    let asking = TcpKeepalive::new().with_time(SILENT).with_interval(SILENT / 2).with_retries(2);
    SockRef::from(&stream).set_tcp_keepalive(&asking)?;
    let Some(tls) = server.tls.clone() else { return Ok(Stream::Plain(stream)) };
    let name = tls.server_name.clone().unwrap_or_else(|| server.host.clone());
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let config = spawn_blocking(move || config(&tls)).await.map_err(io::Error::other)??;
    let connector = TlsConnector::from(Arc::new(config));
    Ok(Stream::Tls(Box::new(connector.connect(name, stream).await?)))
}

fn config(tls: &Tls) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(
            pem::roots_or_system(tls.ca.as_deref(), tls.system_roots).map_err(io::Error::other)?,
        );
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = pem::certificates(certificate).map_err(io::Error::other)?;
            let own = pem::key(key).map_err(io::Error::other)?;
            let unfit = |error| pem::Error::of(certificate, &format_args!("does not fit: {error}"));
            builder.with_client_auth_cert(chain, own).map_err(unfit).map_err(io::Error::other)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Applies the body to the stream inside of either variant.
macro_rules! either {
    ($stream:expr, $inner:ident => $body:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => $body,
            Stream::Tls($inner) => $body,
        }
    };
}

impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
