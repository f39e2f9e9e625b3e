//! Receives batches of releases and renewals from other replicas, and applies them.
//!
//! Guarantees:
//! - A batch is applied only if it is authentic, new, from a
//!   live replica, and sent to this incarnation.
//! - A rejected batch has no effect.
//!
//! Not covered:
//! - Sending batches (see [`super::route`]).

use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::api::peers_server::Peers;
use super::api::{self, Batch, BatchResult, Update, Updates};
use super::message_codec::{self, MAX_BATCH_MESSAGES};
use super::trust::{PeerTrust, ReplayWindows};
use crate::engine::Engine;
use crate::engine::fleet::forwarding::IdState;
use crate::telemetry::event::{Event as _, ForwardingCount as Counted, ForwardingEvent};

/// The gRPC service that receives batches of releases and renewals.
#[derive(Debug)]
pub struct PeerReceiver {
    engine: Arc<Engine>,
    trust: Arc<PeerTrust>,
    received: Mutex<ReplayWindows>,
}

type BatchError = (ForwardingEvent, Status);

impl PeerReceiver {
    /// Creates the service. It applies the batches that `trust` authenticates to `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, trust: Arc<PeerTrust>) -> Self {
        Self { engine, trust, received: Mutex::default() }
    }

    fn validate_batch(&self, batch: &Batch) -> Result<Updates, BatchError> {
        // Verified first, so that a caller without the secret learns nothing from the later errors.
        if !self.trust.is_authentic(batch) {
            let why = "invalid signature: is `fleet.peers.secret` the same on all replicas?";
            return Err((ForwardingEvent::Rejected, Status::permission_denied(why)));
        }
        let Some(membership) = self.engine.membership() else {
            return Err((
                ForwardingEvent::WrongReplica,
                Status::not_found("this replica has no fleet: its store is not Redis"),
            ));
        };
        if batch.to != membership.incarnation_name() {
            let why = "the batch is for another replica, or another incarnation";
            return Err((ForwardingEvent::WrongReplica, Status::not_found(why)));
        }
        let seen = membership.snapshot();
        let is_live = |name: &str| {
            seen.iter().flat_map(|seen| &seen.peers).any(|peer| *peer.incarnation_name == *name)
        };
        if !is_live(&batch.from) {
            let why = "the sender is not a live replica";
            return Err((ForwardingEvent::Rejected, Status::failed_precondition(why)));
        }
        if !self.received.lock().is_new(&batch.from, batch.sequence, is_live) {
            return Err((ForwardingEvent::Rejected, Status::permission_denied("repeated batch")));
        }
        let updates = Updates::decode(&*batch.updates);
        updates.ok().filter(|batch| batch.updates.len() <= MAX_BATCH_MESSAGES).ok_or_else(|| {
            let why =
                format!("a batch must be valid and have at most {MAX_BATCH_MESSAGES} updates");
            (ForwardingEvent::Malformed, Status::invalid_argument(why))
        })
    }

    /// Applies releases and renewals, without a test of their sender.
    #[must_use]
    pub fn apply(&self, updates: &Updates) -> BatchResult {
        let messages = &updates.updates;
        BatchResult { states: messages.iter().map(|one| self.apply_message(one).into()).collect() }
    }

    fn apply_message(&self, message: &Update) -> api::IdState {
        let Some(update) = message_codec::decode(message) else {
            ForwardingEvent::Malformed.emit();
            return api::IdState::Malformed;
        };
        let found = self.engine.apply_forwarded(&update);
        if found == IdState::Unknown {
            ForwardingEvent::Unknown.emit();
        }
        message_codec::encode_result(found)
    }
}

#[tonic::async_trait]
impl Peers for PeerReceiver {
    async fn deliver(&self, request: Request<Batch>) -> Result<Response<BatchResult>, Status> {
        let batch = self.validate_batch(request.get_ref()).map_err(|(event, status)| {
            event.emit();
            tracing::debug!(error = status.message(), "forwarded releases rejected");
            status
        })?;
        let count = u64::try_from(batch.updates.len()).unwrap_or(u64::MAX);
        Counted { event: ForwardingEvent::Received, releases: count }.emit();
        Ok(Response::new(self.apply(&batch)))
    }
}
