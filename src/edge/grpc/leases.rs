//! Serves `sluicegate.v1.Leases`: proxies lease hits, and decide requests themselves.
//!
//! Guarantees:
//! - Lease messages are applied to the same counters as those of replicas.
//! - A change of the limits is sent to every proxy at once.
//!
//! Not covered:
//! - The messages of one stream (see [`proxy_stream`]).
//!
//! The protobuf messages are documented in `proto/sluicegate/v1/leases.proto`.

pub mod proxy_stream;
mod replies;

use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate_lease_protocol::api::leases_server::Leases;
use sluicegate_lease_protocol::api::{LeaseMessage, ProxyMessage};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::engine::Engine;

/// The largest number of replies that the proxy has not read. At this number, the stream reads no
/// more messages.
const REPLY_QUEUE_CAPACITY: usize = 256;

/// The gRPC service from which proxies lease hits.
#[derive(Clone, Debug)]
pub struct LeasesService {
    engine: Arc<Engine>,
    draining: watch::Receiver<bool>,
}

impl LeasesService {
    /// Creates the service. It ends all streams when the process drains.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, draining: watch::Receiver<bool>) -> Self {
        Self { engine, draining }
    }
}

#[tonic::async_trait]
impl Leases for LeasesService {
    type ExchangeStream = ReceiverStream<Result<LeaseMessage, Status>>;

    async fn exchange(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let address: Option<SocketAddr> = request.remote_addr();
        let (engine, messages) = (Arc::clone(&self.engine), request.into_inner());
        let proxy = (address, self.draining.clone());
        let (replies, stream) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        tokio::spawn(async move {
            tokio::select! {
                // The proxy closed the stream.
                () = replies.closed() => {}
                () = proxy_stream::run(&engine, proxy, messages, &replies) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
