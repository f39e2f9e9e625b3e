//! The slots for requests that occupy a connection for long.
//!
//! Guarantees:
//! - Requests above the maximum are refused at once.
//!
//! Not covered:
//! - The requests themselves (see [`super::acquire`]).

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::response::text_response;
use crate::telemetry::event::EdgeOutcome;

/// The slots for requests that occupy a connection for long: those in queues and on `/acquire`.
#[derive(Clone, Debug)]
pub(in crate::http) struct LongRequestSlots {
    semaphore: Arc<Semaphore>,
    max_slots: usize,
}

impl LongRequestSlots {
    pub(in crate::http) fn new(max_slots: usize) -> Self {
        let most = max_slots.min(Semaphore::MAX_PERMITS);
        Self { semaphore: Arc::new(Semaphore::new(most)), max_slots: most }
    }

    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.semaphore).try_acquire_owned().ok()
    }

    pub(super) fn full_reply(&self) -> (EdgeOutcome, Response) {
        let most = self.max_slots;
        let why = format!("too many requests with a permit or in a queue: the maximum is {most}");
        (EdgeOutcome::TooManyRequests, text_response(StatusCode::SERVICE_UNAVAILABLE, &why))
    }
}
