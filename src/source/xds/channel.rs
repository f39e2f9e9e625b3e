//! A connection to the management server, in plain text or TLS.
//!
//! Guarantees: a call is given up after [`PATIENCE`]; a server that vanished is noticed by the kernel; files are read
//! anew for each connection; a certificate must be signed and made out to the name.
//! Leaves out: what is said over it.

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

/// How long a connection may take, its handshake with it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may be silent before the kernel asks whether the server is
/// still there. Not HTTP/2's pings: servers
/// in Go take them for abuse and hang up.
const SILENT: Duration = Duration::from_secs(20);

/// Where the management server is.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its host, an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// TLS; plain text without.
    pub tls: Option<Tls>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.in_uri(), self.port)
    }
}

impl Server {
    /// Its host as a URI has it.
    fn in_uri(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// Who is believed, and who we are.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// PEM certificates of who may sign the server's; the system's without.
    pub ca: Option<PathBuf>,
    /// Whether the system's sign as well where `ca` is there.
    pub system_roots: bool,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whom the server's certificate must be made out to; its host without.
    pub server_name: Option<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be called.
    #[error("{0}")]
    Address(String),
    /// The connection failed.
    #[error("no connection: {}", chain(.0))]
    Transport(#[from] tonic::transport::Error),
}

/// An error with all that it came from.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some say again what they came from.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Calls `server`.
///
/// # Errors
/// There is no connection, and why.
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

/// A stream of bytes.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Does with the stream what the body says.
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
