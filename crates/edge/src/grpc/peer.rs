//! Sends releases and renewals of permits to the replica that owns the permits.
//!
//! A message is one release or renewal, on the wire an `Update`. A batch of
//! messages is one gRPC call, on the wire a `Batch`.
//!
//! Guarantees:
//! - A secret or certificates authenticate batches; without them, only loopback is allowed.
//! - A replica applies a batch only once, from a live replica, and only if the batch names the
//!   incarnation of the receiver.
//! - Every wait has a timeout and every queue has a maximum length.
//! - A message is delivered at least once, or expires. A second delivery has no effect.

pub mod api;
mod connector;
mod delivery_log;
mod forwarder;
mod message_codec;
mod receiver;
mod route;
mod trust;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::incoming::{GrpcListener, IncomingConnections};
use super::timeouts::{IDLE_PING_INTERVAL, PONG_TIMEOUT};
use crate::connection_gate::{ConnectionGate, ListenPort};
use crate::engine::Engine;

use api::peers_server::PeersServer;
pub use forwarder::ReleaseForwarder;
pub use message_codec::MAX_BATCH_MESSAGES;
pub use receiver::PeerReceiver;
pub use trust::{BatchSigner, PeerTrust};

/// The largest batch, in bytes. [`MAX_BATCH_MESSAGES`] messages with the
/// longest request ids take half of it.
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// The largest number of concurrent batches on one connection. A replica sends one at a time, but
/// batches that timed out may still be in progress.
const MAX_CONCURRENT_BATCHES: usize = 8;

/// The largest number of connections to the peer port, so that clients cannot use up all file
/// descriptors. Each replica needs one.
const MAX_PEER_CONNECTIONS: usize = 2_048;

const BATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves the peer port for other replicas on `listener` until `shutdown`, then finishes the open
/// calls.
///
/// # Errors
/// The gRPC server cannot start.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    trust: Arc<PeerTrust>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let gate = ConnectionGate::new(ListenPort::Peer, MAX_PEER_CONNECTIONS);
    let incoming = IncomingConnections::new(GrpcListener::Tcp(listener), trust.tls(), None, gate);
    let receiver = PeersServer::new(PeerReceiver::new(engine, trust))
        .max_decoding_message_size(MAX_BATCH_BYTES);
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(IDLE_PING_INTERVAL))
        .http2_keepalive_timeout(Some(PONG_TIMEOUT))
        .concurrency_limit_per_connection(MAX_CONCURRENT_BATCHES)
        .timeout(BATCH_TIMEOUT)
        .add_service(receiver)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}
