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
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::long_requests::LongRequestSlots;
use super::original_request::OriginalRequest;
use super::{hook_response, malformed_response, permits_of};
use crate::engine::{AdmissionOutcome, RequestPermits};
use crate::hook;
use crate::http::check_port::CheckPort;
use crate::http::connection::HttpPeer;
use crate::kernel::concurrency;
use crate::kernel::units::Nanos;
use crate::permits::{Holder, wait_until_drained};

pub(in crate::http) async fn reply_with_permit(
    port: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
    peer: &HttpPeer,
) -> Response {
    let permits = permits_of(port);
    let original = match OriginalRequest::from_headers(headers) {
        Ok(original) => original,
        Err(wrong) => return malformed_response(permits, &wrong).await,
    };
    let Some(slot) = slots.try_acquire() else {
        return permits.answer(async { slots.full_reply() }).await;
    };
    let request = original.to_rate_limit_request(&port.hooks, headers);
    let how = (Holder::CallerWithDeadline, None);
    hook::decide(permits, request.as_ref(), how, |result| {
        let mut response = hook_response(port, result.as_ref());
        // The end of the connection releases the permit, so it serves no second request.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Ok(AdmissionOutcome::Decided(_, permits)) = result
            && !permits.is_empty()
        {
            let permit = ConnectionPermit { permits: Some(permits), _slot: slot };
            *response.body_mut() = open_body(permit, peer.clone(), port.draining.clone());
        }
        response
    })
    .await
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
            () = wait_until_drained(&mut draining, permit.permits.as_ref()) => permit.leave_to_deadline(),
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
