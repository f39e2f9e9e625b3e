//! Serves one `Session` stream, on which a program acquires, renews and releases permits.
//!
//! Guarantees:
//! - Every acquire, renewal and release gets one reply.
//! - The client gets one message for each acquire whose permits are fenced.
//! - The acquires that wait take at most `listen.max_body_memory`; more are refused.
//! - The stream's end releases all permits, unless this process is draining.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - Each acquire is a trace span, a child of the span in the stream's metadata.
//!
//! Not covered:
//! - The order of the replies.
//! - The ids and their permits (see [`crate::permits::session`]).

use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::api::session_request::Request as StreamRequest;
use super::api::session_response::Response as StreamResponse;
use super::api::{
    AcquireRequest, Error, Fenced, ReleaseRequest, ReleaseResponse, RenewResponse, SessionRequest,
    SessionResponse,
};
use super::messages::{
    error_status, parse_outcome, shorter_timeout, to_acquire_response, to_micros,
    to_rate_limit_request,
};
use crate::body_memory::BodyLimits;
use crate::check_error_outcome;
use crate::engine::validate_id;
use crate::grpc::bounded_body::{count_unreadable, memory_full};
use crate::grpc::convert;
use crate::permits::session::{MAX_IDS, PermitSession, RefusedId, SessionEvent};
use crate::permits::{Holder, Permits, outcome_of_result};
use crate::telemetry::event::{EdgeOutcome as Counted, Protocol};
use crate::telemetry::trace;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

type SessionReplySender = mpsc::Sender<Result<SessionResponse, Status>>;

/// The session of one client.
pub(super) struct PermitStream<'s> {
    permits: Permits<'s>,
    bodies: &'s BodyLimits,
    headers: &'s MetadataMap,
    session: PermitSession<'s>,
}

impl<'s> PermitStream<'s> {
    pub(super) fn new(
        permits: Permits<'s>,
        bodies: &'s BodyLimits,
        headers: &'s MetadataMap,
    ) -> Self {
        Self { permits, bodies, headers, session: PermitSession::new(permits.engine) }
    }

    /// Serves the stream until its end, an error or the drain of this process.
    pub(super) async fn run(
        mut self,
        messages: &mut Streaming<SessionRequest>,
        replies: &SessionReplySender,
        mut draining: watch::Receiver<bool>,
    ) {
        loop {
            let reply = tokio::select! {
                _ = draining.wait_for(|leaving| *leaving) => return self.leave_permits_to_deadline(messages),
                (id, event) = self.session.next_event() => Some(to_event_response(id, event)),
                message = messages.message() => match message {
                    Ok(Some(SessionRequest { request })) => self.apply_request(request),
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
                _ = draining.wait_for(|leaving| *leaving) => return self.leave_permits_to_deadline(messages),
                () = tokio::time::sleep(REPLY_TIMEOUT) => false,
            };
            if !is_sent {
                return;
            }
        }
    }

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
        self.session.leave_to_deadlines();
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
                let held = self.session.renew(&asked.id);
                let reply = RenewResponse { renewed: held.was_held, fenced: held.is_fenced };
                (asked.id, Ok(StreamResponse::Renew(reply)))
            }
        };
        Some(to_session_response(id, reply))
    }

    fn start_acquire(&mut self, asked: AcquireRequest) -> Result<(), Status> {
        validate_id(&asked.id).map_err(Status::invalid_argument)?;
        self.session.check_id(&asked.id).map_err(refused_status)?;
        self.check_request_size(&asked)?;
        let permits = self.permits;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::Permits, &header);
        let (id, wait) = (asked.id.clone(), shorter_timeout(None, asked.max_wait_us));
        let request = to_rate_limit_request(asked);
        let memory = self.bodies.charge(convert::memory_bytes(&request)).map_err(memory_full)?;
        let acquire = permits.answer(async move {
            let _memory = memory;
            let admitted = permits.acquire(&request, Holder::CallerWithDeadline, wait).await;
            (outcome_of_result(&admitted), admitted)
        });
        self.session.start(id, span.scope(acquire));
        Ok(())
    }

    fn release(&mut self, asked: &ReleaseRequest) -> Result<ReleaseResponse, Status> {
        let how = parse_outcome(asked)?;
        self.permits.count(Counted::Allow);
        let held = self.session.release(&asked.id, how);
        Ok(ReleaseResponse { had_permits: held.was_held, fenced: held.is_fenced })
    }

    /// Returns an error if an acquire has too many descriptors or entries. Tested before the
    /// acquire waits in a queue, because many small entries take much memory.
    fn check_request_size(&self, asked: &AcquireRequest) -> Result<(), Status> {
        let entries = asked.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
        convert::check_counts(asked.descriptors.len(), entries).map_err(|why| {
            self.permits.count(check_error_outcome(&why));
            error_status(&why)
        })
    }
}

fn refused_status(why: RefusedId) -> Status {
    match why {
        RefusedId::InUse => {
            Status::already_exists("this id already has permits or waits for them on this stream")
        }
        RefusedId::TooMany => Status::resource_exhausted(format!(
            "too many ids on this stream: the maximum is {MAX_IDS}"
        )),
    }
}

fn to_event_response(id: String, event: SessionEvent) -> SessionResponse {
    let reply = match event {
        SessionEvent::Acquired(admitted, renew_within) => {
            Ok(StreamResponse::Acquire(to_acquire_response(&admitted, renew_within)))
        }
        SessionEvent::Failed(error) => Err(error_status(&error)),
        SessionEvent::Canceled => {
            Err(Status::cancelled("the id was released while its acquire waited"))
        }
        SessionEvent::Fenced(left) => {
            Ok(StreamResponse::Fenced(Fenced { abort_within_us: to_micros(left) }))
        }
    };
    to_session_response(id, reply)
}

fn to_session_response(id: String, reply: Result<StreamResponse, Status>) -> SessionResponse {
    let refused = |status: Status| {
        let code = u32::try_from(i32::from(status.code())).unwrap_or_default();
        StreamResponse::Error(Error { code, message: status.message().to_owned() })
    };
    SessionResponse { id, response: Some(reply.unwrap_or_else(refused)) }
}
