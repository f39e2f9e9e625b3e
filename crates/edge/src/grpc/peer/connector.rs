//! Connects to another replica, in plain text or TLS.
//!
//! Guarantees:
//! - The connection is opened at its first use, and again after a failure.
//! - HTTP/2 pings detect a replica that vanished.
//! - The TLS files are read again for each connection.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::super::timeouts::{PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL};
use super::trust::{PeerCertificates, PeerTrust};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a gRPC channel to the replica at `address`. It connects at its first use.
pub(super) fn channel(address: SocketAddr, trust: Arc<PeerTrust>) -> Channel {
    let scheme = if trust.certificates.is_some() { "https" } else { "http" };
    let origin = format!("{scheme}://{address}").parse::<Uri>().unwrap_or_default();
    Endpoint::from(Uri::from_static("http://peer"))
        .origin(origin)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        // hyper's client closes the connection after this time without a reply to the ping, even if
        // other bytes arrive. Batches are then sent again.
        .keep_alive_timeout(PERMIT_STREAM_PONG_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(PeerConnector { address, trust })
}

struct PeerConnector {
    address: SocketAddr,
    trust: Arc<PeerTrust>,
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

type PeerStream = TokioIo<Box<dyn ByteStream>>;

impl Service<Uri> for PeerConnector {
    type Response = PeerStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PeerStream>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let (address, trust) = (self.address, Arc::clone(&self.trust));
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let Some(certificates) = &trust.certificates else {
                return Ok(TokioIo::new(Box::new(stream) as Box<dyn ByteStream>));
            };
            Ok(TokioIo::new(Box::new(tls_handshake(certificates, stream).await?)))
        })
    }
}

async fn tls_handshake(
    certificates: &PeerCertificates,
    stream: TcpStream,
) -> io::Result<impl ByteStream + use<>> {
    let files = certificates.files.clone();
    let config = spawn_blocking(move || files.client_config()).await.map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config.map_err(io::Error::other)?));
    let name = ServerName::try_from(certificates.name.clone()).map_err(io::Error::other)?;
    connector.connect(name, stream).await
}
