//! Serves `sluicegate.v1.Leases`: proxies enforce limits themselves, from leased hits and shares.
//!
//! Guarantees:
//! - At most [`MAX_PROXY_STREAMS`] streams are open; more get `RESOURCE_EXHAUSTED`.
//! - All streams end when the process drains.
//!
//! Not covered:
//! - The messages of a stream (see [`lease_stream`]).
//!
//! The protobuf messages are documented in `proto/sluicegate/v1/leases.proto`.

pub mod lease_stream;
mod replies;
mod requests;

use std::sync::Arc;

use sluicegate_lease_protocol::api::leases_server::Leases;
use sluicegate_lease_protocol::api::{LeaseMessage, ProxyMessage};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::engine::Engine;
use crate::engine::proxies::MAX_PROXY_STREAMS;

/// The largest number of replies on a stream that the proxy has not read. At this number, the
/// stream reads no more messages.
const REPLY_QUEUE_CAPACITY: usize = 64;

/// The gRPC service for proxies that enforce limits themselves.
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
        let Some(slot) = self.engine.proxies().open_stream() else {
            let message = format!("too many proxies: the maximum is {MAX_PROXY_STREAMS}");
            return Err(Status::resource_exhausted(message));
        };
        let (peer, Self { engine, draining }) = (request.remote_addr(), self.clone());
        let messages = request.into_inner();
        let (replies, stream) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        tokio::spawn(async move {
            let _slot = slot;
            tokio::select! {
                // The proxy closed the stream.
                () = replies.closed() => {}
                () = lease_stream::run((&engine, peer), draining, messages, &replies) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
