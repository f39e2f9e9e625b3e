//! Serves `sluicegate.v1.Permits`: programs without a proxy acquire, renew and release permits.
//!
//! Guarantees:
//! - Decisions are the same as in the other protocols.
//! - A call that is canceled while it waits in a queue acquires no permit.
//!
//! Not covered:
//! - The requests on a `Session` stream (see [`permit_stream`]).
//!
//! The protobuf messages are documented in `proto/sluicegate/v1/permits.proto`.

pub mod api;
pub(super) mod messages;
pub mod permit_stream;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{bounded_body, call_timeout, convert};
use crate::ReplyOptions;
use crate::body_memory::BodyLimits;
use crate::engine::fleet::forwarding::PermitUpdate;
use crate::engine::{Engine, validate_id};
use crate::kernel::units::Nanos;
use crate::permits::{Holder, Permits, outcome_of_result};
use crate::telemetry::event::{EdgeOutcome as Counted, Protocol};
use crate::telemetry::trace;

use api::{
    AcquireRequest, AcquireResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
    SessionRequest, SessionResponse,
};
use messages::{
    error_status, parse_outcome, parse_owner, shorter_timeout, to_acquire_response,
    to_rate_limit_request,
};
use permit_stream::PermitStream;

/// The largest number of replies on a `Session` stream that the client has not read. At this
/// number, the stream reads no more requests.
const REPLY_QUEUE_CAPACITY: usize = 16;

/// The gRPC service that acquires, renews and releases permits.
#[derive(Clone, Debug)]
pub struct PermitsService {
    engine: Arc<Engine>,
    reporting: ReplyOptions,
    bodies: BodyLimits,
    draining: watch::Receiver<bool>,
}

impl PermitsService {
    /// Creates the service. Acquires that wait on a stream take memory of `bodies`. The service ends
    /// all streams when the process drains.
    #[must_use]
    pub const fn new(
        engine: Arc<Engine>,
        reporting: ReplyOptions,
        bodies: BodyLimits,
        draining: watch::Receiver<bool>,
    ) -> Self {
        Self { engine, reporting, bodies, draining }
    }

    fn permits(&self) -> Permits<'_> {
        Permits::new(&self.engine, &self.reporting, Protocol::Permits)
    }

    async fn acquire_permits(
        &self,
        request: AcquireRequest,
        caller_timeout: Option<Nanos>,
    ) -> Result<AcquireResponse, Status> {
        let (id, timeout) =
            (request.id.clone(), shorter_timeout(caller_timeout, request.max_wait_us));
        validate_id(&id).map_err(Status::invalid_argument)?;
        let request = to_rate_limit_request(request);
        let _memory = self
            .bodies
            .charge(convert::memory_bytes(&request))
            .map_err(bounded_body::memory_full)?;
        let (permits, holder) = (self.permits(), Holder::of_id(&id));
        let admitted = permits.answer(async {
            let admitted = permits.acquire(&request, holder, timeout).await;
            (outcome_of_result(&admitted), admitted)
        });
        let admitted = admitted.await.map_err(|error| error_status(&error))?;
        let owner = self.engine.owner().unwrap_or_default().to_owned();
        let reply = to_acquire_response(&admitted, self.engine.renewal_interval(&id));
        Ok(AcquireResponse { owner, ..reply })
    }

    async fn release_permits(
        &self,
        request: &ReleaseRequest,
        source: Option<IpAddr>,
    ) -> Result<ReleaseResponse, Status> {
        validate_id(&request.id).map_err(Status::invalid_argument)?;
        let (outcome, rtt) = parse_outcome(request)?;
        self.permits().count(Counted::Allow);
        let update = PermitUpdate::release(&request.id, source, outcome, rtt);
        let owner = parse_owner(&request.owner)?;
        let fenced = self.engine.is_fenced(&request.id);
        let had_permits = self.engine.apply_or_forward_and_wait(update, owner).await;
        Ok(ReleaseResponse { had_permits, fenced })
    }
}

#[tonic::async_trait]
impl api::permits_server::Permits for PermitsService {
    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let caller_timeout = call_timeout::caller_timeout(request.metadata());
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::Permits, &header);
        span.scope(self.acquire_permits(request.into_inner(), caller_timeout))
            .await
            .map(Response::new)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let source = request.remote_addr().map(|address| address.ip());
        self.release_permits(request.get_ref(), source).await.map(Response::new)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let message = request.get_ref();
        validate_id(&message.id).map_err(Status::invalid_argument)?;
        let (update, owner) = (PermitUpdate::renewal(&message.id), parse_owner(&message.owner)?);
        let renewed = self.engine.apply_or_forward_and_wait(update, owner).await;
        Ok(Response::new(RenewResponse { renewed, fenced: self.engine.is_fenced(&message.id) }))
    }

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let headers = request.metadata().clone();
        let (service, mut messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        tokio::spawn(async move {
            let session = PermitStream::new(service.permits(), &service.bodies, &headers);
            tokio::select! {
                // The client closed the stream. Dropping the other branch releases the permits.
                () = replies.closed() => {}
                () = session.run(&mut messages, &replies, service.draining.clone()) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
