//! `sluicegate.v1.Permits`: programs without a proxy acquire, renew and release permits.
//!
//! Guarantees:
//! - Decisions are the same as in the other protocols.
//! - A call that is canceled while it waits acquires nothing.
//!
//! Not covered:
//! - The stream (see [`hold`]).
//!
//! The messages are documented in `proto/sluicegate/v1/permits.proto`.

pub mod hold;

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::rls;
use crate::edge::Reporting;
use crate::edge::hook::{self, Unanswered};
use crate::engine::admit::with_wait;
use crate::engine::peers::{Told, is_name};
use crate::engine::{Admitted, Answer, Engine, Refusal, Rejection, check_id};
use crate::kernel::concurrency::Outcome;
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Outcome as Counted, Protocol};
use crate::telemetry::trace;

use api::permits_server::Permits;
use api::{
    AcquireRequest, AcquireResponse, HoldRequest, HoldResponse, ReleaseRequest, ReleaseResponse,
    RenewRequest, RenewResponse,
};

/// The messages, service and client, generated from the proto file by `tests/edge/permits_code.rs`.
#[allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/sluicegate/v1/permits.rs"));
}

/// The largest number of unread replies of a stream. Above it, the stream reads no more requests.
const REPLIES: usize = 16;

/// The service that acquires, renews and releases permits.
#[derive(Clone, Debug)]
pub struct Places {
    engine: Arc<Engine>,
    reporting: Reporting,
    leaving: watch::Receiver<bool>,
}

impl Places {
    /// Creates the service over `engine`, which ends its streams when `leaving` becomes true.
    #[must_use]
    pub const fn new(
        engine: Arc<Engine>,
        reporting: Reporting,
        leaving: watch::Receiver<bool>,
    ) -> Self {
        Self { engine, reporting, leaving }
    }

    async fn asked(
        &self,
        asked: AcquireRequest,
        patience: Option<Nanos>,
    ) -> Result<AcquireResponse, Status> {
        let (id, wait) = (asked.id.clone(), shorter(patience, asked.max_wait_us));
        check_id(&id).map_err(Status::invalid_argument)?;
        let (request, began) = (question(asked), self.engine.clock().now());
        let (engine, reporting) = (&self.engine, &self.reporting);
        let asking = hook::ask(engine, reporting, Ok(&request), Some(&id), wait);
        let (admitted, queued) = with_wait(asking).await;
        count(&admitted);
        Answered { came: began, at: engine.clock().now(), queued }.emit();
        let held = engine.held_by(&id);
        let owner = engine.owner().unwrap_or_default().to_owned();
        let shown = |admitted| AcquireResponse { owner, ..shown(&admitted, held) };
        admitted.map(shown).map_err(|why| refusal(&why))
    }

    async fn released(
        &self,
        asked: &ReleaseRequest,
        source: Option<IpAddr>,
    ) -> Result<ReleaseResponse, Status> {
        check_id(&asked.id).map_err(Status::invalid_argument)?;
        let (outcome, rtt) = ended(asked)?;
        Asked { protocol: Protocol::Permits, outcome: Counted::Admit }.emit();
        let told = Told::ended(&asked.id, source, outcome, rtt);
        Ok(ReleaseResponse { held: self.engine.tell_and_hear(told, owner(&asked.owner)?).await })
    }
}

#[tonic::async_trait]
impl Permits for Places {
    type HoldStream = ReceiverStream<Result<HoldResponse, Status>>;

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let patience = rls::patience(request.metadata());
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::question(Protocol::Permits, &header);
        span.around(self.asked(request.into_inner(), patience)).await.map(Response::new)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let source = request.remote_addr().map(|address| address.ip());
        self.released(request.get_ref(), source).await.map(Response::new)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let asked = request.get_ref();
        check_id(&asked.id).map_err(Status::invalid_argument)?;
        let (told, owner) = (Told::goes_on(&asked.id), owner(&asked.owner)?);
        Ok(Response::new(RenewResponse { held: self.engine.tell_and_hear(told, owner).await }))
    }

    async fn hold(
        &self,
        request: Request<Streaming<HoldRequest>>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        let headers = request.metadata().clone();
        let (service, messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(REPLIES);
        tokio::spawn(async move {
            tokio::select! {
                // The client closed the stream. Dropping the other branch releases its permits.
                () = replies.closed() => {}
                () = hold::run((&service, &headers), messages, &replies) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Validates the owner's name; empty means that none is given.
fn owner(text: &str) -> Result<Option<&str>, Status> {
    let is_sound = text.is_empty() || is_name(text);
    let refused = || Status::invalid_argument("owner must be what the answer to the acquire says");
    is_sound.then_some(Some(text).filter(|text| !text.is_empty())).ok_or_else(refused)
}

fn count(admitted: &Result<Admitted, Unanswered>) {
    Asked { protocol: Protocol::Permits, outcome: hook::counted(admitted) }.emit();
}

fn question(asked: AcquireRequest) -> RateLimitRequest {
    let entry = |api::Entry { key, value }| Entry { key, value };
    let descriptor = |written: api::Descriptor| RateLimitDescriptor {
        entries: written.entries.into_iter().map(entry).collect(),
        hits_addend: Some(UInt64Value { value: written.hits.unwrap_or(1) }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = asked.descriptors.into_iter().map(descriptor).collect();
    RateLimitRequest { domain: asked.domain, descriptors, hits_addend: 0 }
}

fn shorter(patience: Option<Nanos>, max_wait_us: Option<u64>) -> Option<Nanos> {
    patience.into_iter().chain(max_wait_us.map(micros)).min()
}

const fn micros(us: u64) -> Nanos {
    Nanos(us.saturating_mul(1_000))
}

/// Converts to microseconds, rounded up: a retry must not come a microsecond too early.
const fn in_micros(time: Nanos) -> u64 {
    time.0.div_ceil(1_000)
}

fn ended(asked: &ReleaseRequest) -> Result<(Outcome, Option<Nanos>), Status> {
    let outcome = match api::Outcome::try_from(asked.outcome) {
        Ok(api::Outcome::Success) => Outcome::Success,
        Ok(api::Outcome::Ignored) => Outcome::Ignored,
        Ok(api::Outcome::Dropped) => Outcome::Dropped,
        Ok(api::Outcome::Unspecified) | Err(_) => {
            let message = "outcome must be SUCCESS (1), IGNORED (2) or DROPPED (3)";
            return Err(Status::invalid_argument(message));
        }
    };
    Ok((outcome, asked.rtt_us.map(micros)))
}

/// `held` is the permits' time to live without a renewal; `None` without permits.
fn shown(admitted: &Admitted, held: Option<Nanos>) -> AcquireResponse {
    match admitted {
        Admitted::Decided(answer, _) if answer.verdict == Verdict::Admit => AcquireResponse {
            verdict: api::acquire_response::Verdict::Admit.into(),
            held: held.is_some(),
            renew_within_us: held.map_or(0, in_micros),
            ..AcquireResponse::default()
        },
        Admitted::Decided(answer, _) => denied(answer),
        Admitted::Rejected(rejection) => rejected(rejection),
    }
}

fn denied(answer: &Answer) -> AcquireResponse {
    let denies = |status: &&crate::engine::Status| status.finding.verdict == Verdict::Deny;
    let reason = answer.statuses.iter().find(denies).map(|status| status.finding.reason.as_str());
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: reason.unwrap_or_default().to_owned(),
        status: 429,
        retry_after_us: answer.retry_after.map(in_micros),
        ..AcquireResponse::default()
    }
}

fn rejected(rejection: &Rejection) -> AcquireResponse {
    let reject = &rejection.reject;
    AcquireResponse {
        verdict: api::acquire_response::Verdict::Deny.into(),
        reason: rejection.reason.as_str().to_owned(),
        status: reject.status.into(),
        retry_after_us: reject.retry_after.map(in_micros),
        body: reject.body.to_string(),
        ..AcquireResponse::default()
    }
}

fn refusal(why: &Unanswered) -> Status {
    let message = why.to_string();
    match why {
        // The id's format was validated before, so it must be in use.
        Unanswered::BadId(_) => Status::already_exists(message),
        Unanswered::Refused(Refusal::NoConfig | Refusal::BackendDown(_)) => {
            Status::unavailable(message)
        }
        _ => Status::invalid_argument(message),
    }
}
