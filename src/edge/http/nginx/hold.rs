//! `/hold`: NGINX's Lua asks about a request, and the connection is the request's place.
//!
//! Guarantees: asked and answered as [`super`]; the answer to a request that passes has no end until
//! the caller closes, and whatever closes the connection, the death of NGINX among it, gives the
//! place back, bytes that came after the question or not, as far as these fit the socket's receive
//! buffer: behind more of them no closing comes. `max_duration` ends place and connection
//! where nothing does: an NGINX that is stopped. Where this process goes its requests go
//! on, and count. No id is needed, and none is heeded. Who is held leaves connections for the questions of others.
//! Leaves out: how the request went, which a closed connection cannot tell: each counts as a
//! success, and its latency from admission to then.

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

/// Most requests that are held, or wait in queues, at one time; health checks and questions have the other connections.
pub(in crate::edge::http) const MAX_HELD: usize = MAX_CONNECTIONS / 4 * 3;

/// What those share that have a connection to themselves for long: who is held, and who waits.
#[derive(Clone, Debug)]
pub(in crate::edge::http) struct Holds {
    places: Arc<Semaphore>,
    most: usize,
}

impl Holds {
    /// So many at one time.
    pub(in crate::edge::http) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(most)), most }
    }

    /// A connection's place, while there is one.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// What one is answered for whom there is none.
    pub(super) fn full(&self) -> (Outcome, Response) {
        let most = self.most;
        let why = format!("{most} requests are held or wait in queues, which is as many as may be");
        (Outcome::TooMany, explained(StatusCode::SERVICE_UNAVAILABLE, &why))
    }
}

/// Answers one call.
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
    // The connection is this place, or no use any more: it is asked nothing else.
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

/// A request's place; dropped with the connection, which is how the request ends.
struct Place {
    permits: Option<Permits>,
    _slot: OwnedSemaphorePermit,
}

impl Place {
    /// The process goes, and its request does not.
    fn go_on(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.go_on();
        }
    }

    /// Before its request has ended, so that nothing is told of the backend.
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

/// A body without a byte that ends with the caller, with the place's time, or when the process leaves.
/// Mostly the connection takes it away before, when hyper sees the caller close.
fn until_closed(mut place: Place, peer: Peer, mut leaving: watch::Receiver<bool>) -> Body {
    let longest = place.permits.as_ref().and_then(Permits::longest_keep);
    let end = async move {
        tokio::select! {
            biased;
            () = peer.gone() => {}
            () = over(longest) => place.give_up(),
            // A sender that is gone means that the process is ending as well.
            () = hook::may_go(&mut leaving, place.permits.as_ref()) => place.go_on(),
        }
        drop(place);
        Ok::<_, Infallible>(Bytes::new())
    };
    Body::from_stream(stream::once(end))
}

/// Until the deadlines of what is held are over, which began before.
async fn over(longest: Option<Nanos>) {
    match longest {
        Some(Nanos(longest)) => tokio::time::sleep(Duration::from_nanos(longest)).await,
        None => std::future::pending().await,
    }
}
