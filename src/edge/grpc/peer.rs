//! Forwards releases and renewals of permits between the replicas of a fleet.
//!
//! Guarantees:
//! - The fleet's secret or certificates authenticate
//!   batches; without them, only loopback is allowed.
//! - A replica applies a batch once, from a live replica, addressed to its own incarnation.
//! - Every wait has a timeout and every queue a bound.
//! - A message is delivered at least once, or expires. Applying it twice has no effect.
//!
//! Not covered:
//! - The effect of a message (see [`crate::engine::forwarding`]).
//! - The list of live replicas, which the store contains.
//!
//! A batch is a `Parcel` on the wire, and a message in it is a `Letter`.

mod connector;
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
use super::{PING_INTERVAL, PONG_TIMEOUT};
use crate::engine::Engine;

use api::peers_server::PeersServer;
pub use forwarder::ReleaseForwarder;
pub use receiver::PeerReceiver;
pub use trust::{BatchSigner, PeerTrust};

/// The messages, service and client, generated from the proto file by `tests/edge/permits_code.rs`.
#[allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/sluicegate/peer/v1/peer.rs"));
}

/// The largest number of messages in a batch.
pub const MAX_BATCH_MESSAGES: usize = 1_000;

/// The largest batch, in bytes. A thousand messages with the longest ids take half of it.
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// The largest number of concurrent batches on one connection.
/// A replica sends one at a time, plus retries after a timeout.
const MAX_CONCURRENT_BATCHES: usize = 8;

/// The largest number of connections. Each replica needs
/// one; strangers must not use up all file descriptors.
const MAX_PEER_CONNECTIONS: usize = 2_048;

const BATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves other replicas on `listener` until `shutdown`, then finishes the open calls.
///
/// # Errors
/// The server cannot be set up.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    trust: Arc<PeerTrust>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = IncomingConnections::new(
        GrpcListener::Tcp(listener),
        trust.tls(),
        None,
        MAX_PEER_CONNECTIONS,
    );
    let receiver = PeersServer::new(PeerReceiver::new(engine, trust))
        .max_decoding_message_size(MAX_BATCH_BYTES);
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PONG_TIMEOUT))
        .concurrency_limit_per_connection(MAX_CONCURRENT_BATCHES)
        .timeout(BATCH_TIMEOUT)
        .add_service(receiver)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}
