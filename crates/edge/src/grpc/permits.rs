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

pub mod permit_stream;

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{bounded_body, convert, rls};
use crate::ReplyOptions;
use crate::body_memory::BodyLimits;
use crate::engine::concurrency::with_queue_time;
use crate::engine::fleet::forwarding::{PermitUpdate, is_incarnation_name};
use crate::engine::{
    AdmissionOutcome, CheckError, ConcurrencyRejection, Decision, Engine, validate_id,
};
use crate::hook::{self, HookError};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{
    CheckAnswered, EdgeOutcome as Counted, Event as _, Protocol, RequestCompleted,
};
use crate::telemetry::trace;

use api::permits_server::Permits;
use api::{
    AcquireRequest, AcquireResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
    SessionRequest, SessionResponse,
};

/// The protobuf messages, the gRPC service and its client.
/// `tests/edge/grpc/permits_code.rs` generates them from the proto file.
#[allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/sluicegate/v1/permits.rs"));
}

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

    async fn acquire_permits(
        &self,
        request: AcquireRequest,
        caller_timeout: Option<Nanos>,
    ) -> Result<AcquireResponse, Status> {
        let (id, timeout) =
            (request.id.clone(), shorter_timeout(caller_timeout, request.max_wait_us));
        validate_id(&id).map_err(Status::invalid_argument)?;
        let (request, received_at) = (to_rate_limit_request(request), self.engine.clock().now());
        let _memory = self
            .bodies
            .charge(convert::memory_bytes(&request))
            .map_err(bounded_body::memory_full)?;
        let (engine, reporting) = (&self.engine, &self.reporting);
        let decision = hook::decide(engine, reporting, Ok(&request), Some(&id), timeout);
        let (admitted, queue_time) = with_queue_time(decision).await;
        count_outcome(&admitted);
        CheckAnswered { received_at, replied_at: engine.clock().now(), queue_time }.emit();
        let renewal_interval = engine.renewal_interval(&id);
        let owner = engine.owner().unwrap_or_default().to_owned();
        let to_reply = |admitted| AcquireResponse {
            owner,
            ..to_acquire_response(&admitted, renewal_interval)
        };
        admitted.map(to_reply).map_err(|error| error_status(&error))
    }

    async fn release_permits(
        &self,
        request: &ReleaseRequest,
        source: Option<IpAddr>,
    ) -> Result<ReleaseResponse, Status> {
        validate_id(&request.id).map_err(Status::invalid_argument)?;
        let (outcome, rtt) = parse_outcome(request)?;
        RequestCompleted { protocol: Protocol::Permits, outcome: Counted::Allow }.emit();
        let update = PermitUpdate::release(&request.id, source, outcome, rtt);
        let owner = parse_owner(&request.owner)?;
        let fenced = self.engine.is_fenced(&request.id);
        let had_permits = self.engine.apply_or_forward_and_wait(update, owner).await;
        Ok(ReleaseResponse { had_permits, fenced })
    }
}

#[tonic::async_trait]
impl Permits for PermitsService {
    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let caller_timeout = rls::caller_timeout(request.metadata());
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
        let (service, messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        tokio::spawn(async move {
            tokio::select! {
                // The client closed the stream. Dropping the other branch releases the permits.
                () = replies.closed() => {}
                () = permit_stream::run((&service, &headers), messages, &replies) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Validates the name of the owner. An empty text means that the request names no owner.
fn parse_owner(text: &str) -> Result<Option<&str>, Status> {
    let is_sound = text.is_empty() || is_incarnation_name(text);
    let refused =
        || Status::invalid_argument("owner must be the `owner` of the response to the acquire");
    is_sound.then_some(Some(text).filter(|text| !text.is_empty())).ok_or_else(refused)
}

fn count_outcome(admitted: &Result<AdmissionOutcome, HookError>) {
    RequestCompleted { protocol: Protocol::Permits, outcome: hook::admission_outcome(admitted) }
        .emit();
}

fn to_rate_limit_request(request: AcquireRequest) -> RateLimitRequest {
    let entry = |api::Entry { key, value }| Entry { key, value };
    let to_descriptor = |descriptor: api::Descriptor| RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        hits_addend: Some(UInt64Value { value: descriptor.hits.unwrap_or(1) }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = request.descriptors.into_iter().map(to_descriptor).collect();
    RateLimitRequest { domain: request.domain, descriptors, hits_addend: 0 }
}

fn shorter_timeout(caller_timeout: Option<Nanos>, max_wait_us: Option<u64>) -> Option<Nanos> {
    caller_timeout.into_iter().chain(max_wait_us.map(from_micros)).min()
}

const fn from_micros(us: u64) -> Nanos {
    Nanos(us.saturating_mul(1_000))
}

/// Converts to microseconds, rounded up, so that clients do not retry too early.
const fn to_micros(time: Nanos) -> u64 {
    time.0.div_ceil(1_000)
}

fn parse_outcome(request: &ReleaseRequest) -> Result<(ReportedOutcome, Option<Nanos>), Status> {
    let rtt = request.rtt_us.map(from_micros);
    if let Some(answer) = &request.answer {
        return Ok((ReportedOutcome::Answered(parse_answer(answer)?), rtt));
    }
    let outcome = match api::Outcome::try_from(request.outcome) {
        Ok(api::Outcome::Success) => RequestOutcome::Success,
        Ok(api::Outcome::Ignored) => RequestOutcome::Ignored,
        Ok(api::Outcome::Dropped) => RequestOutcome::Dropped,
        Ok(api::Outcome::Unspecified) | Err(_) => {
            let message = "without answer, outcome must be SUCCESS (1), IGNORED (2) or DROPPED (3)";
            return Err(Status::invalid_argument(message));
        }
    };
    Ok((outcome.into(), rtt))
}

fn parse_answer(answer: &api::Answer) -> Result<UpstreamAnswer, Status> {
    let http = answer.http_status.and_then(|status| u16::try_from(status).ok());
    if answer.http_status.is_some() && !http.is_some_and(|http| (100..600).contains(&http)) {
        return Err(Status::invalid_argument("answer.http_status must be from 100 to 599"));
    }
    if http.is_none() && answer.grpc_status.is_none() {
        return Err(Status::invalid_argument("answer needs http_status or grpc_status"));
    }
    let grpc = answer.grpc_status.and_then(|code| u8::try_from(code).ok());
    if answer.grpc_status.is_some() && grpc.is_none_or(|code| 16 < code) {
        return Err(Status::invalid_argument("answer.grpc_status must be from 0 to 16"));
    }
    let retry_after = answer.retry_after_us.map(from_micros);
    Ok(UpstreamAnswer { http, grpc, has_latency: true, retry_after })
}

/// Converts the engine's result to a reply. A client with permits must renew them within
/// `renew_within`; `None` if it has no permits.
fn to_acquire_response(
    admitted: &AdmissionOutcome,
    renew_within: Option<Nanos>,
) -> AcquireResponse {
    match admitted {
        AdmissionOutcome::Decided(decision, _) if decision.verdict == Verdict::Allow => {
            AcquireResponse {
                verdict: api::acquire_response::Verdict::Allow.into(),
                has_permits: renew_within.is_some(),
                renew_within_us: renew_within.map_or(0, to_micros),
                ..AcquireResponse::default()
            }
        }
        AdmissionOutcome::Decided(decision, _) => denied_response(decision),
        AdmissionOutcome::Rejected(rejection) => rejected_response(rejection),
    }
}

fn denied_response(decision: &Decision) -> AcquireResponse {
    let denies = |status: &&crate::engine::LimitStatus| status.decision.verdict == Verdict::Deny;
    let reason =
        decision.statuses.iter().find(denies).map(|status| status.decision.reason.as_str());
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: reason.unwrap_or_default().to_owned(),
        status: 429,
        retry_after_us: decision.retry_after.map(to_micros),
        ..AcquireResponse::default()
    }
}

fn rejected_response(rejection: &ConcurrencyRejection) -> AcquireResponse {
    let reject = &rejection.reject;
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: rejection.reason.as_str().to_owned(),
        status: reject.status.into(),
        retry_after_us: reject.retry_after.map(to_micros),
        body: reject.body.to_string(),
        ..AcquireResponse::default()
    }
}

fn error_status(error: &HookError) -> Status {
    let message = error.to_string();
    match error {
        // The id's format was validated before, so another request in flight has this id.
        HookError::BadId(_) => Status::already_exists(message),
        HookError::Rejected(CheckError::NoConfig | CheckError::StoreUnavailable(_)) => {
            Status::unavailable(message)
        }
        _ => Status::invalid_argument(message),
    }
}
