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
//! - The effect of a message (see [`crate::engine::peers`]).
//! - The list of live replicas, which the store contains.
//!
//! A batch is a `Parcel` on the wire, and a message in it is a `Letter`.

mod calling;
mod courier;
mod desk;
mod letters;
mod route;
mod trust;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::incoming::{Incoming, Listener};
use super::{PING_AFTER, PONG_AT_LAST};
use crate::engine::Engine;

use api::peers_server::PeersServer;
pub use courier::Courier;
pub use desk::Desk;
pub use trust::{Seal, Trust};

/// The messages, service and client, generated from the proto file by `tests/edge/permits_code.rs`.
#[allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/sluicegate/peer/v1/peer.rs"));
}

/// The largest number of messages in a batch.
pub const MOST: usize = 1_000;

/// The largest batch, in bytes. A thousand messages with the longest ids take half of it.
const LONGEST: usize = 512 * 1024;

/// The largest number of concurrent batches on one connection.
/// A replica sends one at a time, plus retries after a timeout.
const AT_ONCE: usize = 8;

/// The largest number of connections. Each replica needs
/// one; strangers must not use up all file descriptors.
const MOST_CONNECTIONS: usize = 2_048;

const PATIENCE: Duration = Duration::from_secs(1);

/// Serves other replicas on `listener` until `shutdown`, then finishes the open calls.
///
/// # Errors
/// The server cannot be set up.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    trust: Arc<Trust>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = Incoming::new(Listener::Tcp(listener), trust.tls(), None, MOST_CONNECTIONS);
    let desk = PeersServer::new(Desk::new(engine, trust)).max_decoding_message_size(LONGEST);
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PONG_AT_LAST))
        .concurrency_limit_per_connection(AT_ONCE)
        .timeout(PATIENCE)
        .add_service(desk)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}
