//! Serves `/hold`: a permit that lasts as long as the HTTP connection on which it was acquired.
//!
//! Lua code in NGINX (`OpenResty`) opens the connection and closes it at the end of its request.
//!
//! Guarantees:
//! - Request headers and statuses are those of `/check` ([`super`]); a request id is ignored.
//! - A reply with a permit stays open until the caller closes the connection.
//! - The end of the connection releases the permit, also if NGINX crashes.
//! - After `max_duration` the permit and the connection end, even if NGINX is suspended.
//! - After a drain, permits count until `max_duration`, because their requests continue.
//!
//! Not covered: the request outcome. Each request counts as a success, with the connection's
//! duration as latency.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{OriginalRequest, hook_response, text_response};
use crate::edge::grpc::convert;
use crate::edge::hook::{self, HookError};
use crate::edge::http::CheckPort;
use crate::edge::http::connection::HttpPeer;
use crate::edge::http::serve::MAX_CONNECTIONS;
use crate::engine::concurrency::with_queue_time;
use crate::engine::{AdmissionOutcome, RequestPermits};
use crate::kernel::concurrency;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Protocol, RequestCompleted};

/// The maximum number of requests in queues or on `/hold`. The other connections remain for health
/// checks and short requests.
pub(in crate::edge::http) const MAX_LONG_REQUESTS: usize = MAX_CONNECTIONS / 4 * 3;

/// The slots for requests that occupy a connection for long: in queues and on `/hold`.
#[derive(Clone, Debug)]
pub(in crate::edge::http) struct LongRequestSlots {
    semaphore: Arc<Semaphore>,
    max_slots: usize,
}

impl LongRequestSlots {
    pub(in crate::edge::http) fn new(max_slots: usize) -> Self {
        let max_slots = max_slots.min(Semaphore::MAX_PERMITS);
        Self { semaphore: Arc::new(Semaphore::new(max_slots)), max_slots }
    }

    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.semaphore).try_acquire_owned().ok()
    }

    pub(super) fn full_reply(&self) -> (EdgeOutcome, Response) {
        let message =
            format!("all {} slots for queued and held requests are in use", self.max_slots);
        (EdgeOutcome::TooManyHolds, text_response(StatusCode::SERVICE_UNAVAILABLE, &message))
    }
}

pub(in crate::edge::http) async fn reply_with_permit(
    port: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
    peer: &HttpPeer,
) -> Response {
    let received_at = port.engine.clock().now();
    let reply_future = async {
        match OriginalRequest::from_headers(headers) {
            Ok(original) => permit_response(port, headers, &original, (slots, peer)).await,
            Err(error) => (EdgeOutcome::Malformed, text_response(StatusCode::BAD_REQUEST, &error)),
        }
    };
    let ((outcome, response), queue_time) = with_queue_time(reply_future).await;
    RequestCompleted { protocol: Protocol::Nginx, outcome }.emit();
    CheckAnswered { received_at, replied_at: port.engine.clock().now(), queue_time }.emit();
    response
}

async fn permit_response(
    port: &CheckPort,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
    (slots, peer): (&LongRequestSlots, &HttpPeer),
) -> (EdgeOutcome, Response) {
    let Some(slot) = slots.try_acquire() else { return slots.full_reply() };
    let result = decide(port, headers, original).await;
    let (outcome, mut response) =
        (hook::admission_outcome(&result), hook_response(port, result.as_ref()));
    // The end of the connection releases the permit, so it serves no second request.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if let Ok(AdmissionOutcome::Decided(_, permits)) = result
        && !permits.is_empty()
    {
        let permit = ConnectionPermit { permits: Some(permits), _slot: slot };
        *response.body_mut() = open_body(permit, peer.clone(), port.draining.clone());
    }
    (outcome, response)
}

async fn decide(
    port: &CheckPort,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
) -> Result<AdmissionOutcome, HookError> {
    let request = original.to_rate_limit_request(&port.hooks, headers)?;
    let check = convert::to_check(&request, &port.reporting)?;
    Ok(port.engine.admit_with_deadline(&check, None).await?)
}

/// The permits and the slot of a `/hold` connection, released at its end.
struct ConnectionPermit {
    permits: Option<RequestPermits>,
    _slot: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    /// Leaves the permits counted until their deadline, because this process stops but their
    /// request continues.
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

/// Returns an empty body that stays open until the caller closes the connection, the permit expires
/// or the process drains.
fn open_body(
    mut permit: ConnectionPermit,
    peer: HttpPeer,
    mut draining: watch::Receiver<bool>,
) -> Body {
    let longest_lifetime = permit.permits.as_ref().and_then(RequestPermits::longest_lifetime);
    let end = async move {
        tokio::select! {
            biased;
            () = peer.closed() => {}
            () = expired(longest_lifetime) => permit.discard(),
            // A closed channel also means that the process ends.
            () = hook::wait_until_drained(&mut draining, permit.permits.as_ref()) => permit.leave_to_deadline(),
        }
        drop(permit);
        Ok::<_, Infallible>(Bytes::new())
    };
    Body::from_stream(stream::once(end))
}

/// Waits for `longest_lifetime`, after which all permits of the connection have expired.
async fn expired(longest_lifetime: Option<Nanos>) {
    match longest_lifetime {
        Some(Nanos(longest_lifetime)) => {
            tokio::time::sleep(Duration::from_nanos(longest_lifetime)).await
        }
        None => std::future::pending().await,
    }
}
