//! Serves one `Session` stream, on which a program acquires, renews and releases permits.
//!
//! Guarantees:
//! - An acquire that waits in a queue does not block later requests on the stream.
//! - Every acquire, renewal and release gets one reply.
//! - The client gets one message for each acquire whose permits are fenced.
//! - A release cancels an acquire of the same id that waits in a queue.
//! - The acquires that wait take at most `listen.max_body_memory`; more are refused.
//! - The stream's end releases all permits, unless this process is draining.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - Each acquire is a trace span, a child of the span in the stream's metadata.
//!
//! Not covered:
//! - The order of the replies.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Aborted, BoxFuture, FutureExt as _, abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::api::session_request::Request as StreamRequest;
use super::api::session_response::Response as StreamResponse;
use super::api::{
    AcquireRequest, Error, Fenced, ReleaseRequest, ReleaseResponse, RenewResponse, SessionRequest,
    SessionResponse,
};
use super::{
    PermitsService, count_outcome, error_status, parse_outcome, shorter_timeout,
    to_acquire_response, to_micros, to_rate_limit_request,
};
use crate::engine::{AdmissionOutcome, RequestPermits, validate_id};
use crate::grpc::bounded_body::{count_unreadable, memory_full};
use crate::grpc::convert;
use crate::hook::{self, HookError};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{EdgeOutcome as Counted, Event as _, Protocol, RequestCompleted};
use crate::telemetry::trace;

/// The largest number of ids on one stream that wait for permits or have them.
pub const MAX_IDS: usize = 10_000;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

type SessionReplySender = mpsc::Sender<Result<SessionResponse, Status>>;

type FinishedAcquire = (String, Result<Result<AdmissionOutcome, HookError>, Aborted>);

enum PermitState {
    Waiting(AbortHandle),
    InFlight(RequestPermits),
    /// Like `InFlight`, with the message about the fence sent or in `fenced_ids`.
    Fenced(RequestPermits),
}

impl PermitState {
    const fn permits(&self) -> Option<&RequestPermits> {
        match self {
            Self::InFlight(permits) | Self::Fenced(permits) => Some(permits),
            Self::Waiting(_) => None,
        }
    }
}

struct PermitStream<'s> {
    service: &'s PermitsService,
    headers: &'s MetadataMap,
    states: HashMap<String, PermitState>,
    acquiring: FuturesUnordered<BoxFuture<'s, FinishedAcquire>>,
    /// The ids with fenced permits whose message is not sent yet.
    fenced_ids: Vec<String>,
}

pub(super) async fn run(
    (service, headers): (&PermitsService, &MetadataMap),
    mut messages: Streaming<SessionRequest>,
    replies: &SessionReplySender,
) {
    let mut draining = service.draining.clone();
    let mut fences = service.engine.watch_fences();
    let (places, acquiring) = (HashMap::new(), FuturesUnordered::new());
    let mut stream =
        PermitStream { service, headers, states: places, acquiring, fenced_ids: Vec::new() };
    loop {
        let has_fenced = !stream.fenced_ids.is_empty();
        let reply = tokio::select! {
            _ = draining.wait_for(|leaving| *leaving) => return stream.leave_permits_to_deadline(&mut messages),
            Some(acquired) = stream.acquiring.next() => Some(stream.finish_acquire(acquired)),
            () = std::future::ready(()), if has_fenced => stream.next_fenced(),
            () = wait_for_fence(&mut fences) => {
                stream.find_fenced();
                None
            }
            message = messages.message() => match message {
                Ok(Some(SessionRequest { request })) => stream.apply_request(request),
                Ok(None) => return,
                Err(status) => {
                    // The error is dropped if the client has not read the previous replies.
                    let _sent = replies.try_send(Err(count_unreadable(&status, Protocol::Permits)));
                    return;
                }
            },
        };
        let Some(reply) = reply else { continue };
        let is_sent = tokio::select! {
            sent = replies.send(Ok(reply)) => sent.is_ok(),
            _ = draining.wait_for(|leaving| *leaving) => return stream.leave_permits_to_deadline(&mut messages),
            () = tokio::time::sleep(REPLY_TIMEOUT) => false,
        };
        if !is_sent {
            return;
        }
    }
}

impl PermitStream<'_> {
    /// Ends the stream in a drain: applies the releases that have already
    /// arrived, and lets the other permits count until their deadlines.
    fn leave_permits_to_deadline(mut self, messages: &mut Streaming<SessionRequest>) {
        for _ in 0..MAX_IDS {
            match messages.message().now_or_never() {
                Some(Ok(Some(SessionRequest { request: Some(StreamRequest::Release(asked)) }))) => {
                    let _result = self.release(&asked);
                }
                Some(Ok(Some(_))) => {}
                _ => break,
            }
        }
        for state in self.states.into_values() {
            if let PermitState::InFlight(permits) | PermitState::Fenced(permits) = state {
                permits.leave_to_deadlines();
            }
        }
    }

    /// Applies one message of the client and returns the reply. Returns `None` for an
    /// acquire, which gets its reply when it is decided.
    fn apply_request(&mut self, request: Option<StreamRequest>) -> Option<SessionResponse> {
        let (id, reply) = match request {
            None => {
                let message = "the message must be an acquire, a release or a renewal";
                (String::new(), Err(Status::invalid_argument(message)))
            }
            Some(StreamRequest::Acquire(asked)) => {
                let id = asked.id.clone();
                match self.start_acquire(asked) {
                    Ok(()) => return None,
                    Err(why) => (id, Err(why)),
                }
            }
            Some(StreamRequest::Release(asked)) => {
                let result = self.release(&asked).map(StreamResponse::Release);
                (asked.id, result)
            }
            Some(StreamRequest::Renew(asked)) => {
                let permits = self.states.get(&asked.id).and_then(PermitState::permits);
                let renewed = permits.is_some_and(RequestPermits::renew);
                let fenced = permits.is_some_and(RequestPermits::is_fenced);
                (asked.id, Ok(StreamResponse::Renew(RenewResponse { renewed, fenced })))
            }
        };
        Some(to_session_response(id, reply))
    }

    fn start_acquire(&mut self, asked: AcquireRequest) -> Result<(), Status> {
        validate_id(&asked.id).map_err(Status::invalid_argument)?;
        // If a permit of this id has expired, the id is free again, and its other permits are
        // released here.
        let is_expired =
            |place: &PermitState| place.permits().is_some_and(|permits| !permits.is_valid());
        if self.states.get(&asked.id).is_some_and(is_expired) {
            self.states.remove(&asked.id);
        }
        if self.states.contains_key(&asked.id) {
            return Err(Status::already_exists(
                "this id already has permits or waits for them on this stream",
            ));
        }
        if MAX_IDS <= self.states.len() {
            let message = format!("too many ids on this stream: the maximum is {MAX_IDS}");
            return Err(Status::resource_exhausted(message));
        }
        check_request_size(&asked)?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::Permits, &header);
        let (id, wait) = (asked.id.clone(), shorter_timeout(None, asked.max_wait_us));
        let request = to_rate_limit_request(asked);
        let memory = self.service.bodies.charge(convert::memory_bytes(&request));
        let memory = memory.map_err(memory_full)?;
        let (acquire, handle) = abortable(span.scope(admit(self.service, request, wait)));
        self.states.insert(id.clone(), PermitState::Waiting(handle));
        self.acquiring.push(
            async move {
                let _memory = memory;
                (id, acquire.await)
            }
            .boxed(),
        );
        Ok(())
    }

    fn finish_acquire(&mut self, (id, acquired): FinishedAcquire) -> SessionResponse {
        let Ok(admitted) = acquired else {
            // The release already removed this id from `states`, and a new acquire may use it.
            return to_session_response(
                id,
                Err(Status::cancelled("the id was released while its acquire waited")),
            );
        };
        self.states.remove(&id);
        let reply = match admitted {
            Err(why) => Err(error_status(&why)),
            Ok(admitted) => {
                let renew_within = renew_within(&admitted);
                let shown = to_acquire_response(&admitted, renew_within);
                if let AdmissionOutcome::Decided(_, permits) = admitted
                    && !permits.is_empty()
                {
                    // The share may have expired before this reply.
                    let is_fenced = permits.is_fenced();
                    let state = if is_fenced { PermitState::Fenced } else { PermitState::InFlight };
                    self.states.insert(id.clone(), state(permits));
                    self.fenced_ids.extend(is_fenced.then(|| id.clone()));
                }
                Ok(StreamResponse::Acquire(shown))
            }
        };
        to_session_response(id, reply)
    }

    fn release(&mut self, asked: &ReleaseRequest) -> Result<ReleaseResponse, Status> {
        let (outcome, rtt) = parse_outcome(asked)?;
        RequestCompleted { protocol: Protocol::Permits, outcome: Counted::Allow }.emit();
        Ok(match self.states.remove(&asked.id) {
            Some(PermitState::InFlight(permits) | PermitState::Fenced(permits)) => {
                let fenced = permits.is_fenced();
                ReleaseResponse { had_permits: permits.release_all(outcome, rtt), fenced }
            }
            Some(PermitState::Waiting(handle)) => {
                handle.abort();
                ReleaseResponse::default()
            }
            None => ReleaseResponse::default(),
        })
    }

    /// Finds the permits that were fenced since the last call.
    fn find_fenced(&mut self) {
        for (id, state) in &mut self.states {
            if let PermitState::InFlight(permits) = state
                && permits.is_fenced()
            {
                *state = PermitState::Fenced(std::mem::take(permits));
                self.fenced_ids.push(id.clone());
            }
        }
    }

    /// Returns the next message about fenced permits; `None` if they were released since.
    fn next_fenced(&mut self) -> Option<SessionResponse> {
        let id = self.fenced_ids.pop()?;
        let Some(PermitState::Fenced(permits)) = self.states.get(&id) else { return None };
        let fenced = Fenced { abort_within_us: to_micros(permits.fenced_time_left()) };
        Some(to_session_response(id, Ok(StreamResponse::Fenced(fenced))))
    }
}

/// Waits until a share of this replica expires.
async fn wait_for_fence(fences: &mut Option<watch::Receiver<u64>>) {
    let changed = match fences {
        Some(fences) => fences.changed().await,
        None => std::future::pending().await,
    };
    if changed.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns an error if an acquire has too many descriptors or entries. Tested before the
/// acquire waits in a queue, because many small entries take much memory.
fn check_request_size(asked: &AcquireRequest) -> Result<(), Status> {
    let entries = asked.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    convert::check_counts(asked.descriptors.len(), entries).map_err(|why| {
        let why = HookError::from(why);
        RequestCompleted { protocol: Protocol::Permits, outcome: hook::hook_error_outcome(&why) }
            .emit();
        error_status(&why)
    })
}

async fn admit(
    service: &PermitsService,
    request: RateLimitRequest,
    wait: Option<Nanos>,
) -> Result<AdmissionOutcome, HookError> {
    let admitted = match convert::to_check(&request, &service.reporting) {
        Ok(check) => {
            service.engine.admit_with_deadline(&check, wait).await.map_err(HookError::from)
        }
        Err(why) => Err(why.into()),
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

fn to_session_response(id: String, reply: Result<StreamResponse, Status>) -> SessionResponse {
    let refused = |status: Status| {
        let code = u32::try_from(i32::from(status.code())).unwrap_or_default();
        StreamResponse::Error(Error { code, message: status.message().to_owned() })
    };
    SessionResponse { id, response: Some(reply.unwrap_or_else(refused)) }
}
