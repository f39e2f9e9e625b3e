//! Serves one `Hold` stream, on which a program acquires, renews and releases permits.
//!
//! Guarantees:
//! - An acquire that waits in a queue does not block later requests on the stream, so replies may
//!   have another order.
//! - Every acquire, renewal and release gets one reply.
//! - A release cancels an acquire of the same id that waits in a queue.
//! - The stream's end releases all permits, unless this process is draining.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - Each acquire is a trace span, a child of the span in the stream's metadata.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Aborted, BoxFuture, FutureExt as _, abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::api::hold_request::Ask;
use super::api::hold_response::Answer as Reply;
use super::api::{
    AcquireRequest, Error, HoldRequest, HoldResponse, ReleaseRequest, ReleaseResponse,
    RenewResponse,
};
use super::{
    PermitsService, count_outcome, error_status, parse_outcome, shorter_timeout,
    to_acquire_response, to_rate_limit_request,
};
use crate::edge::grpc::bounded_body::count_unreadable;
use crate::edge::grpc::convert;
use crate::edge::hook::{self, HookError};
use crate::engine::{AdmissionOutcome, RequestPermits, validate_id};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{EdgeOutcome as Counted, Protocol, RequestCompleted};
use crate::telemetry::trace;

/// The largest number of ids on one stream that wait for permits or have permits.
pub const MAX_IDS: usize = 10_000;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

type HoldReplySender = mpsc::Sender<Result<HoldResponse, Status>>;

type FinishedAcquire = (String, Result<Result<AdmissionOutcome, HookError>, Aborted>);

enum PermitState {
    Waiting(AbortHandle),
    InFlight(RequestPermits),
}

struct PermitStream<'s> {
    service: &'s PermitsService,
    headers: &'s MetadataMap,
    states: HashMap<String, PermitState>,
    acquiring: FuturesUnordered<BoxFuture<'s, FinishedAcquire>>,
}

pub(super) async fn run(
    (service, headers): (&PermitsService, &MetadataMap),
    mut messages: Streaming<HoldRequest>,
    replies: &HoldReplySender,
) {
    let mut draining = service.draining.clone();
    let (states, acquiring) = (HashMap::new(), FuturesUnordered::new());
    let mut stream = PermitStream { service, headers, states, acquiring };
    loop {
        let reply = tokio::select! {
            _ = draining.wait_for(|is_draining| *is_draining) => return stream.leave_permits_to_deadline(&mut messages),
            Some(acquired) = stream.acquiring.next() => Some(stream.finish_acquire(acquired)),
            message = messages.message() => match message {
                Ok(Some(HoldRequest { ask })) => stream.apply_request(ask),
                Ok(None) => return,
                Err(status) => {
                    // The error is dropped if the client has not read the previous replies.
                    let error = count_unreadable(&status, Protocol::Permits);
                    replies.try_send(Err(error)).ok();
                    return;
                }
            },
        };
        let Some(reply) = reply else { continue };
        let is_sent = tokio::select! {
            sent = replies.send(Ok(reply)) => sent.is_ok(),
            _ = draining.wait_for(|is_draining| *is_draining) => return stream.leave_permits_to_deadline(&mut messages),
            () = tokio::time::sleep(REPLY_TIMEOUT) => false,
        };
        if !is_sent {
            return;
        }
    }
}

impl PermitStream<'_> {
    /// Ends the stream in a drain: applies the releases that have arrived, and leaves the other
    /// permits counted until their deadlines.
    fn leave_permits_to_deadline(mut self, messages: &mut Streaming<HoldRequest>) {
        for _ in 0..MAX_IDS {
            match messages.message().now_or_never() {
                Some(Ok(Some(HoldRequest { ask: Some(Ask::Release(request)) }))) => {
                    let _reply = self.release(&request);
                }
                Some(Ok(Some(_))) => {}
                _ => break,
            }
        }
        for state in self.states.into_values() {
            if let PermitState::InFlight(permits) = state {
                permits.leave_to_deadlines();
            }
        }
    }

    /// Applies one message of the client and returns the reply. An acquire returns `None` and gets
    /// its reply later.
    fn apply_request(&mut self, ask: Option<Ask>) -> Option<HoldResponse> {
        let (id, reply) = match ask {
            None => {
                let message = "the message must be an acquire, a release or a renewal";
                (String::new(), Err(Status::invalid_argument(message)))
            }
            Some(Ask::Acquire(request)) => {
                let id = request.id.clone();
                match self.start_acquire(request) {
                    Ok(()) => return None,
                    Err(error) => (id, Err(error)),
                }
            }
            Some(Ask::Release(request)) => {
                let reply = self.release(&request).map(Reply::Release);
                (request.id, reply)
            }
            Some(Ask::Renew(request)) => {
                let held = match self.states.get(&request.id) {
                    Some(PermitState::InFlight(permits)) => permits.renew(),
                    Some(PermitState::Waiting(_)) | None => false,
                };
                (request.id, Ok(Reply::Renew(RenewResponse { held })))
            }
        };
        Some(to_hold_response(id, reply))
    }

    fn start_acquire(&mut self, request: AcquireRequest) -> Result<(), Status> {
        validate_id(&request.id).map_err(Status::invalid_argument)?;
        // If a permit of this id has expired, the id is free again. Its other permits are then
        // released here.
        let is_expired = |state: &PermitState| matches!(state, PermitState::InFlight(permits) if !permits.is_valid());
        if self.states.get(&request.id).is_some_and(is_expired) {
            self.states.remove(&request.id);
        }
        if self.states.contains_key(&request.id) {
            return Err(Status::already_exists(
                "this id already waits for permits or has permits on this stream",
            ));
        }
        if MAX_IDS <= self.states.len() {
            let message =
                format!("the stream has the maximum of {MAX_IDS} ids; release some first");
            return Err(Status::resource_exhausted(message));
        }
        check_request_size(&request)?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::Permits, &header);
        let id = request.id.clone();
        let (acquire, handle) = abortable(span.scope(admit(self.service, request)));
        self.states.insert(id.clone(), PermitState::Waiting(handle));
        self.acquiring.push(async move { (id, acquire.await) }.boxed());
        Ok(())
    }

    fn finish_acquire(&mut self, (id, acquired): FinishedAcquire) -> HoldResponse {
        let Ok(admitted) = acquired else {
            // The release has removed this id from `states`, and a new acquire may use it.
            return to_hold_response(
                id,
                Err(Status::cancelled("released while waiting in the queue")),
            );
        };
        self.states.remove(&id);
        let result = match admitted {
            Err(error) => Err(error_status(&error)),
            Ok(admitted) => {
                let renew_within = renew_within(&admitted);
                let reply = to_acquire_response(&admitted, renew_within);
                if let AdmissionOutcome::Decided(_, permits) = admitted
                    && !permits.is_empty()
                {
                    self.states.insert(id.clone(), PermitState::InFlight(permits));
                }
                Ok(Reply::Acquire(reply))
            }
        };
        to_hold_response(id, result)
    }

    fn release(&mut self, request: &ReleaseRequest) -> Result<ReleaseResponse, Status> {
        let (outcome, rtt) = parse_outcome(request)?;
        RequestCompleted { protocol: Protocol::Permits, outcome: Counted::Allow }.emit();
        let held = match self.states.remove(&request.id) {
            Some(PermitState::InFlight(permits)) => permits.release_all(outcome, rtt),
            Some(PermitState::Waiting(handle)) => {
                handle.abort();
                false
            }
            None => false,
        };
        Ok(ReleaseResponse { held })
    }
}

/// Returns an error if an acquire has too many descriptors or entries. Called before the acquire
/// waits in a queue, because many small entries take much memory.
fn check_request_size(request: &AcquireRequest) -> Result<(), Status> {
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    convert::check_counts(request.descriptors.len(), entries).map_err(|error| {
        let error = HookError::from(error);
        RequestCompleted { protocol: Protocol::Permits, outcome: hook::hook_error_outcome(&error) }
            .emit();
        error_status(&error)
    })
}

async fn admit(
    service: &PermitsService,
    request: AcquireRequest,
) -> Result<AdmissionOutcome, HookError> {
    let timeout = shorter_timeout(None, request.max_wait_us);
    let rate_limit_request = to_rate_limit_request(request);
    let admitted = match convert::to_check(&rate_limit_request, &service.reporting) {
        Ok(check) => {
            service.engine.admit_with_deadline(&check, timeout).await.map_err(HookError::from)
        }
        Err(error) => Err(error.into()),
    };
    count_outcome(&admitted);
    admitted
}

fn renew_within(admitted: &AdmissionOutcome) -> Option<Nanos> {
    match admitted {
        AdmissionOutcome::Decided(_, permits) => permits.shortest_lifetime(),
        AdmissionOutcome::Rejected(_) => None,
    }
}

fn to_hold_response(id: String, reply: Result<Reply, Status>) -> HoldResponse {
    let to_error = |status: Status| {
        let code = u32::try_from(i32::from(status.code())).unwrap_or_default();
        Reply::Error(Error { code, message: status.message().to_owned() })
    };
    HoldResponse { id, answer: Some(reply.unwrap_or_else(to_error)) }
}
