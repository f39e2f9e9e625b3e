//! Replicas tell each other of ends of requests that reached the wrong one.
//!
//! Guarantees: whom a parcel is from is known by the fleet's secret or its certificates, or it does not leave the machine;
//! no parcel is heeded twice, none that was for another life of this replica, and none from who does not live. Every wait
//! has an end, every queue a bound. A letter arrives at least once, or its time is over: heeding it twice does nothing.
//! Leaves out: what a letter means, which is [`crate::engine::peers`]'s, and who lives, which the store knows.

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

/// The messages, the service and its client, as `tests/edge/permits_code.rs` makes them of the proto.
#[allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/sluicegate/peer/v1/peer.rs"));
}

/// Most letters in a parcel.
pub const MOST: usize = 1_000;

/// The longest parcel: a thousand letters with the longest ids are half of it.
const LONGEST: usize = 512 * 1024;

/// Most parcels of one connection that are looked at together: a replica sends one at a time, and another one after it gave
/// the first up.
const AT_ONCE: usize = 8;

/// Most connections at one time: each other replica has one, and strangers must not take all files of the process.
const MOST_CONNECTIONS: usize = 2_048;

/// How long a parcel may take to come and be heeded, whoever sends it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Hears other replicas on `listener` until `shutdown`, then finishes what is under way.
///
/// # Errors
/// When the server cannot be set up.
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
