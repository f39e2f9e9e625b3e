//! Receives batches of releases and renewals from other replicas, and applies them.
//!
//! Guarantees:
//! - A batch is applied only if it is authentic, new, from a live replica, and sent to this
//!   incarnation. A rejected batch has no effect.

use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::api::peers_server::Peers;
use super::api::{Answer, Letter, Letters, Parcel, Receipt};
use super::trust::{PeerTrust, ReplayWindows};
use super::{MAX_BATCH_MESSAGES, message_codec};
use crate::engine::Engine;
use crate::engine::fleet::forwarding::IdState;
use crate::telemetry::forwarding::{ForwardingCount as Counted, ForwardingEvent};

/// The gRPC service that receives batches of releases and renewals.
#[derive(Debug)]
pub struct PeerReceiver {
    engine: Arc<Engine>,
    trust: Arc<PeerTrust>,
    received: Mutex<ReplayWindows>,
}

type BatchError = (ForwardingEvent, Status);

impl PeerReceiver {
    /// Creates the service. It applies the batches that `trust` authenticates.
    #[must_use]
    pub fn new(engine: Arc<Engine>, trust: Arc<PeerTrust>) -> Self {
        Self { engine, trust, received: Mutex::default() }
    }

    fn validate_batch(&self, parcel: &Parcel) -> Result<Letters, BatchError> {
        // Verified first, so that a caller without the secret learns nothing from later errors.
        if !self.trust.is_authentic(parcel) {
            let message = "invalid signature: is `peer_secret` the same everywhere?";
            return Err((ForwardingEvent::Rejected, Status::permission_denied(message)));
        }
        let Some(membership) = self.engine.membership() else {
            return Err((
                ForwardingEvent::WrongReplica,
                Status::not_found("this replica belongs to no fleet"),
            ));
        };
        if parcel.to != membership.incarnation_name() {
            let message = "the batch is for another replica, or for an earlier start of this one";
            return Err((ForwardingEvent::WrongReplica, Status::not_found(message)));
        }
        let snapshot = membership.snapshot();
        let is_live = |name: &str| {
            snapshot
                .iter()
                .flat_map(|fleet| &fleet.peers)
                .any(|peer| *peer.incarnation_name == *name)
        };
        if !is_live(&parcel.from) {
            let message = "the sender is not a live replica of the fleet";
            return Err((ForwardingEvent::Rejected, Status::failed_precondition(message)));
        }
        if !self.received.lock().is_new(&parcel.from, parcel.sequence, is_live) {
            return Err((
                ForwardingEvent::Rejected,
                Status::permission_denied("the batch was already received"),
            ));
        }
        let letters = Letters::decode(&*parcel.letters);
        letters.ok().filter(|letters| letters.letters.len() <= MAX_BATCH_MESSAGES).ok_or_else(
            || {
                let message =
                    format!("malformed batch, or more than {MAX_BATCH_MESSAGES} messages");
                (ForwardingEvent::Malformed, Status::invalid_argument(message))
            },
        )
    }

    fn apply_message(&self, letter: &Letter) -> Answer {
        let Some(update) = message_codec::decode(letter) else {
            ForwardingEvent::Malformed.emit();
            return Answer::Malformed;
        };
        let state = self.engine.apply_forwarded(&update);
        if state == IdState::Unknown {
            ForwardingEvent::Unknown.emit();
        }
        message_codec::encode_result(state)
    }
}

#[tonic::async_trait]
impl Peers for PeerReceiver {
    async fn deliver(&self, request: Request<Parcel>) -> Result<Response<Receipt>, Status> {
        let letters = self.validate_batch(request.get_ref()).map_err(|(event, status)| {
            event.emit();
            tracing::debug!(error = status.message(), "forwarded releases rejected");
            status
        })?;
        let count = u64::try_from(letters.letters.len()).unwrap_or(u64::MAX);
        Counted { event: ForwardingEvent::Received, releases: count }.emit();
        let answers =
            letters.letters.iter().map(|letter| self.apply_message(letter).into()).collect();
        Ok(Response::new(Receipt { answers }))
    }
}
