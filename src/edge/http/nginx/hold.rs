//! Serves `/hold`: a permit for NGINX's Lua that lasts as long as its connection.
//!
//! Guarantees:
//! - Requests and decisions are those of [`super`]; an id is ignored.
//! - A reply with a permit stays open until the caller closes the connection.
//! - Every close releases the permit, also when NGINX crashes.
//! - `max_duration` ends the permit and the connection, for example of a suspended NGINX.
//! - After a drain, permits count until `max_duration`, because their requests continue.
//! - Permit connections leave a quarter of the connections for other requests.
//!
//! Not covered:
//! - The outcome: each request counts as a success, with the latency until the close.
//! - A close behind unread data that fills the socket's receive buffer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{Original, explained, show};
use crate::edge::grpc::convert;
use crate::edge::hook::{self, Unanswered};
use crate::edge::http::Ask;
use crate::edge::http::connection::Peer;
use crate::edge::http::serve::MAX_CONNECTIONS;
use crate::engine::admit::with_wait;
use crate::engine::{Admitted, Permits};
use crate::kernel::concurrency;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Outcome, Protocol};

/// The maximum number of requests in queues or on `/hold`.
/// Health checks and other requests use the other connections.
pub(in crate::edge::http) const MAX_HELD: usize = MAX_CONNECTIONS / 4 * 3;

/// The slots for requests that occupy a connection for long: queued ones and those with a permit.
#[derive(Clone, Debug)]
pub(in crate::edge::http) struct Holds {
    places: Arc<Semaphore>,
    most: usize,
}

impl Holds {
    pub(in crate::edge::http) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(most)), most }
    }

    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    pub(super) fn full(&self) -> (Outcome, Response) {
        let most = self.most;
        let why = format!("{most} requests are held or wait in queues, which is as many as may be");
        (Outcome::TooMany, explained(StatusCode::SERVICE_UNAVAILABLE, &why))
    }
}

pub(in crate::edge::http) async fn answer(
    ask: &Ask,
    holds: &Holds,
    headers: &HeaderMap,
    peer: &Peer,
) -> Response {
    let began = ask.engine.clock().now();
    let answering = async {
        match Original::of(headers) {
            Ok(original) => held(ask, headers, &original, (holds, peer)).await,
            Err(wrong) => (Outcome::Malformed, explained(StatusCode::BAD_REQUEST, &wrong)),
        }
    };
    let ((outcome, response), queued) = with_wait(answering).await;
    Asked { protocol: Protocol::Nginx, outcome }.emit();
    Answered { came: began, at: ask.engine.clock().now(), queued }.emit();
    response
}

async fn held(
    ask: &Ask,
    headers: &HeaderMap,
    original: &Original<'_>,
    (holds, peer): (&Holds, &Peer),
) -> (Outcome, Response) {
    let Some(slot) = holds.place() else { return holds.full() };
    let admitted = decide(ask, headers, original).await;
    let (outcome, mut response) = (hook::counted(&admitted), show(ask, admitted.as_ref()));
    // The connection is the permit, or has no further use.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if let Ok(Admitted::Decided(_, permits)) = admitted
        && !permits.is_empty()
    {
        let place = Place { permits: Some(permits), _slot: slot };
        *response.body_mut() = until_closed(place, peer.clone(), ask.leaving.clone());
    }
    (outcome, response)
}

async fn decide(
    ask: &Ask,
    headers: &HeaderMap,
    original: &Original<'_>,
) -> Result<Admitted, Unanswered> {
    let request = original.asked(&ask.hooks, headers)?;
    let question = convert::question(&request, &ask.reporting)?;
    Ok(ask.engine.admit_with_deadline(&question, None).await?)
}

/// A permit and its slot. Both end when the connection drops this.
struct Place {
    permits: Option<Permits>,
    _slot: OwnedSemaphorePermit,
}

impl Place {
    /// Leaves the permit to its deadline, because the process stops before the request.
    fn go_on(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.go_on();
        }
    }

    /// Releases the permit before the request's end, without a latency sample.
    fn give_up(&mut self) {
        drop(self.permits.take());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.finish(concurrency::Outcome::Success, None);
        }
    }
}

/// Returns an empty body that stays open until the caller closes, the permit expires
/// or the process drains. Usually hyper notices the close first and drops the body.
fn until_closed(mut place: Place, peer: Peer, mut leaving: watch::Receiver<bool>) -> Body {
    let longest = place.permits.as_ref().and_then(Permits::longest_keep);
    let end = async move {
        tokio::select! {
            biased;
            () = peer.gone() => {}
            () = over(longest) => place.give_up(),
            // A dropped sender also means that the process ends.
            () = hook::may_go(&mut leaving, place.permits.as_ref()) => place.go_on(),
        }
        drop(place);
        Ok::<_, Infallible>(Bytes::new())
    };
    Body::from_stream(stream::once(end))
}

/// Waits until all permits have expired. They were acquired before, so this is never early.
async fn over(longest: Option<Nanos>) {
    match longest {
        Some(Nanos(longest)) => tokio::time::sleep(Duration::from_nanos(longest)).await,
        None => std::future::pending().await,
    }
}
