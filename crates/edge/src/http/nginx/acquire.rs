//! Serves `/acquire`: a permit that lasts as long as the HTTP connection on which it was acquired.
//!
//! Lua code in NGINX (`OpenResty`) opens the connection and closes it at the end of its request.
//!
//! Guarantees:
//! - Request headers and statuses are those of `/check` ([`super`]); a request id is ignored.
//! - A reply with a permit stays open until the caller closes the connection.
//! - The end of the connection releases the permit, also if NGINX crashes.
//! - After `max_duration` the permit and the connection end, even if NGINX is suspended.
//! - After a drain, permits count until `max_duration`, because their requests continue.
//! - Requests in queues and on `/acquire` use at most three quarters of the connections.
//!
//! Not covered:
//! - The request outcome: each request counts as a success, with the connection's
//!   duration as latency.
//! - The disconnect of a client whose unread data fills the socket's receive buffer.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::long_requests::LongRequestSlots;
use super::{OriginalRequest, hook_response};
use crate::engine::concurrency::with_queue_time;
use crate::engine::{AdmissionOutcome, RequestPermits};
use crate::grpc::convert;
use crate::hook::{self, HookError};
use crate::http::check_port::CheckPort;
use crate::http::connection::HttpPeer;
use crate::http::response::text_response;
use crate::kernel::concurrency;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};

pub(in crate::http) async fn reply_with_permit(
    ask: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
    peer: &HttpPeer,
) -> Response {
    let started = ask.engine.clock().now();
    let reply_future = async {
        match OriginalRequest::from_headers(headers) {
            Ok(original) => permit_response(ask, headers, &original, (slots, peer)).await,
            Err(wrong) => (EdgeOutcome::Malformed, text_response(StatusCode::BAD_REQUEST, &wrong)),
        }
    };
    let ((outcome, response), queued) = with_queue_time(reply_future).await;
    RequestCompleted { protocol: Protocol::Nginx, outcome }.emit();
    CheckAnswered {
        received_at: started,
        replied_at: ask.engine.clock().now(),
        queue_time: queued,
    }
    .emit();
    response
}

async fn permit_response(
    ask: &CheckPort,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
    (slots, peer): (&LongRequestSlots, &HttpPeer),
) -> (EdgeOutcome, Response) {
    let Some(slot) = slots.try_acquire() else { return slots.full_reply() };
    let result = decide(ask, headers, original).await;
    let (outcome, mut response) =
        (hook::admission_outcome(&result), hook_response(ask, result.as_ref()));
    // The end of the connection releases the permit, so it serves no second request.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if let Ok(AdmissionOutcome::Decided(_, permits)) = result
        && !permits.is_empty()
    {
        let permit = ConnectionPermit { permits: Some(permits), _slot: slot };
        *response.body_mut() = open_body(permit, peer.clone(), ask.draining.clone());
    }
    (outcome, response)
}

async fn decide(
    ask: &CheckPort,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
) -> Result<AdmissionOutcome, HookError> {
    let request = original.to_rate_limit_request(&ask.hooks, headers)?;
    let check = convert::to_check(&request, &ask.reporting)?;
    Ok(ask.engine.admit_with_deadline(&check, None).await?)
}

/// The permits and the slot of a `/acquire` connection. They are released when the connection ends.
struct ConnectionPermit {
    permits: Option<RequestPermits>,
    _slot: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    /// Lets the permits count until their deadline, because this process stops
    /// and their request continues.
    fn leave_to_deadline(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.leave_to_deadlines();
        }
    }

    /// Releases the expired permits without a latency sample, because the request still runs.
    fn discard(&mut self) {
        drop(self.permits.take());
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.release(concurrency::RequestOutcome::Success, None);
        }
    }
}

/// Returns an empty body that stays open until the caller closes the connection, the permit
/// expires or the process drains. Usually hyper detects the close first and drops the body.
fn open_body(
    mut permit: ConnectionPermit,
    peer: HttpPeer,
    mut draining: watch::Receiver<bool>,
) -> Body {
    let longest_duration = permit.permits.as_ref().and_then(RequestPermits::longest_lifetime);
    let end = async move {
        tokio::select! {
            biased;
            () = peer.closed() => {}
            () = expired(longest_duration) => permit.discard(),
            // A closed channel also means that the process ends.
            () = hook::wait_until_drained(&mut draining, permit.permits.as_ref()) => permit.leave_to_deadline(),
        }
        drop(permit);
        Ok::<_, Infallible>(Bytes::new())
    };
    Body::from_stream(stream::once(end))
}

/// Waits for `longest`, the longest `max_duration` of the permits. They were
/// acquired before this call, so all have expired at its end.
async fn expired(longest: Option<Nanos>) {
    match longest {
        Some(Nanos(longest)) => tokio::time::sleep(Duration::from_nanos(longest)).await,
        None => std::future::pending().await,
    }
}
