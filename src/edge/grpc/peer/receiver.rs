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
    /// Creates the service. It applies the batches that `trust` authenticates to `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, trust: Arc<PeerTrust>) -> Self {
        Self { engine, trust, received: Mutex::default() }
    }

    fn validate_batch(&self, parcel: &Parcel) -> Result<Letters, BatchError> {
        // Verified first, so that a caller without the secret learns nothing from the later errors.
        if !self.trust.is_authentic(parcel) {
            let why = "the seal is not the fleet's: is `fleet.peers.secret` the same everywhere?";
            return Err((ForwardingEvent::Rejected, Status::permission_denied(why)));
        }
        let Some(membership) = self.engine.membership() else {
            return Err((
                ForwardingEvent::WrongReplica,
                Status::not_found("there is no fleet here"),
            ));
        };
        if parcel.to != membership.incarnation_name() {
            let why = "this is another replica, or another life of it";
            return Err((ForwardingEvent::WrongReplica, Status::not_found(why)));
        }
        let seen = membership.snapshot();
        let is_live = |name: &str| {
            seen.iter().flat_map(|seen| &seen.peers).any(|peer| *peer.incarnation_name == *name)
        };
        if !is_live(&parcel.from) {
            let why = "the sender is not one of the replicas that live";
            return Err((ForwardingEvent::Rejected, Status::failed_precondition(why)));
        }
        if !self.received.lock().is_new(&parcel.from, parcel.sequence, is_live) {
            return Err((ForwardingEvent::Rejected, Status::permission_denied("it came before")));
        }
        let letters = Letters::decode(&*parcel.letters);
        letters.ok().filter(|letters| letters.letters.len() <= MAX_BATCH_MESSAGES).ok_or_else(
            || {
                let why = format!("not up to {MAX_BATCH_MESSAGES} letters");
                (ForwardingEvent::Malformed, Status::invalid_argument(why))
            },
        )
    }

    fn apply_message(&self, letter: &Letter) -> Answer {
        let Some(update) = message_codec::decode(letter) else {
            ForwardingEvent::Malformed.emit();
            return Answer::Malformed;
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
