//! Serves `sluicegate.v1.Leases`: proxies enforce limits themselves, from leased hits and shares.
//!
//! Guarantees:
//! - Only clients that [`ProxyAccess`] admits open streams; others get `PERMISSION_DENIED`.
//! - At most [`MAX_PROXY_STREAMS`] streams are open, and [`MAX_PEER_STREAMS`] of one peer; more get
//!   `RESOURCE_EXHAUSTED`.
//! - All streams end when the process drains.
//!
//! Not covered:
//! - The messages of a stream (see [`lease_stream`]).
//!
//! The protobuf messages are documented in `proto/sluicegate/v1/leases.proto`.

mod answers;
pub mod lease_stream;
mod replies;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_lease_protocol::api::leases_server::Leases;
use sluicegate_lease_protocol::api::{LeaseMessage, ProxyMessage};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::config::settings::ProxyAccess;
use crate::engine::Engine;
use crate::engine::proxies::{MAX_PEER_STREAMS, MAX_PROXY_STREAMS};
use crate::grpc::incoming::ClientIdentity;
use crate::telemetry::reason_log::{DueLine, QuietLog};

/// The largest number of replies on a stream that the proxy has not read. At this number, the
/// stream reads no more messages.
const REPLY_QUEUE_CAPACITY: usize = 64;

/// The gRPC service for proxies that enforce limits themselves.
#[derive(Clone, Debug)]
pub struct LeasesService {
    engine: Arc<Engine>,
    access: ProxyAccess,
    refusals: Arc<Mutex<QuietLog>>,
    draining: watch::Receiver<bool>,
}

impl LeasesService {
    /// Creates the service. It ends all streams when the process drains.
    #[must_use]
    pub fn new(engine: Arc<Engine>, access: ProxyAccess, draining: watch::Receiver<bool>) -> Self {
        Self { engine, access, refusals: Arc::default(), draining }
    }

    /// Returns an error if `client` may not lease limits.
    fn check_access(
        &self,
        client: &ClientIdentity,
        address: Option<SocketAddr>,
    ) -> Result<(), Status> {
        let is_admitted = match self.access {
            ProxyAccess::On => true,
            ProxyAccess::Auto => client.is_trusted,
            ProxyAccess::Off => false,
        };
        if is_admitted {
            return Ok(());
        }
        let address = address.map_or_else(String::new, |address| address.ip().to_string());
        if let Some(DueLine { times }) = self.refusals.lock().count(&address, Instant::now()) {
            let setting = self.access.word();
            let help = "give proxies client certificates (listen.tls.client_ca_file), or set \
                        listen.proxies: on if only trusted proxies reach this port";
            tracing::warn!(
                address,
                times,
                setting,
                help,
                "refused a proxy: listen.proxies does not admit it"
            );
        }
        Err(Status::permission_denied(match self.access {
            ProxyAccess::Off => "no limits are leased to proxies here (listen.proxies: off)",
            _ => {
                "limits are leased only to proxies with a client certificate (listen.proxies: auto)"
            }
        }))
    }
}

#[tonic::async_trait]
impl Leases for LeasesService {
    type ExchangeStream = ReceiverStream<Result<LeaseMessage, Status>>;

    async fn exchange(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let peer = request.remote_addr();
        let client = request.extensions().get::<ClientIdentity>().cloned();
        let client = client.ok_or_else(|| Status::internal("the client is unknown"))?;
        self.check_access(&client, peer)?;
        let Some(slot) = self.engine.proxies().open_stream(client.peer) else {
            let message = format!(
                "too many proxies: the maximum is {MAX_PROXY_STREAMS}, and {MAX_PEER_STREAMS} with \
                 one certificate, or with one address without certificates"
            );
            return Err(Status::resource_exhausted(message));
        };
        let Self { engine, draining, .. } = self.clone();
        let messages = request.into_inner();
        let (replies, stream) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        tokio::spawn(async move {
            let stream = lease_stream::run((&engine, peer, slot), draining, messages, &replies);
            tokio::select! {
                // The proxy closed the stream.
                () = replies.closed() => {}
                () = stream => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
