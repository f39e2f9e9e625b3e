//! Receives batches from other replicas.
//!
//! Guarantees:
//! - As [`super`].
//! - A refused batch has no effect.
//!
//! Not covered:
//! - Sending (see [`super::route`]).

use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::api::peers_server::Peers;
use super::api::{Answer, Letter, Letters, Parcel, Receipt};
use super::trust::{Trust, Windows};
use super::{MOST, letters};
use crate::engine::Engine;
use crate::engine::peers::Found;
use crate::telemetry::letters::{LetterEvent, Letters as Counted};

/// The service that receives batches.
#[derive(Debug)]
pub struct Desk {
    engine: Arc<Engine>,
    trust: Arc<Trust>,
    came: Mutex<Windows>,
}

type Refused = (LetterEvent, Status);

impl Desk {
    /// Creates the service over `engine`, which accepts batches that `trust` authenticates.
    #[must_use]
    pub fn new(engine: Arc<Engine>, trust: Arc<Trust>) -> Self {
        Self { engine, trust, came: Mutex::default() }
    }

    fn open(&self, parcel: &Parcel) -> Result<Letters, Refused> {
        // Checked first, so an unauthenticated caller learns nothing from later errors.
        if !self.trust.believes(parcel) {
            let why = "the seal is not the fleet's: is `peer_secret` the same everywhere?";
            return Err((LetterEvent::Refused, Status::permission_denied(why)));
        }
        let Some(membership) = self.engine.membership() else {
            return Err((LetterEvent::Misdirected, Status::not_found("there is no fleet here")));
        };
        if parcel.to != membership.name() {
            let why = "this is another replica, or another life of it";
            return Err((LetterEvent::Misdirected, Status::not_found(why)));
        }
        let seen = membership.seen();
        let lives =
            |name: &str| seen.iter().flat_map(|seen| &seen.peers).any(|peer| *peer.name == *name);
        if !lives(&parcel.from) {
            let why = "the sender is not one of the replicas that live";
            return Err((LetterEvent::Refused, Status::failed_precondition(why)));
        }
        if !self.came.lock().is_first(&parcel.from, parcel.sequence, lives) {
            return Err((LetterEvent::Refused, Status::permission_denied("it came before")));
        }
        let letters = Letters::decode(&*parcel.letters);
        letters.ok().filter(|letters| letters.letters.len() <= MOST).ok_or_else(|| {
            let why = format!("not up to {MOST} letters");
            (LetterEvent::Malformed, Status::invalid_argument(why))
        })
    }

    fn heed(&self, letter: &Letter) -> Answer {
        let Some(told) = letters::read(letter) else {
            LetterEvent::Malformed.emit();
            return Answer::Malformed;
        };
        let found = self.engine.hear(&told);
        if found == Found::Unknown {
            LetterEvent::Unknown.emit();
        }
        letters::answer(found)
    }
}

#[tonic::async_trait]
impl Peers for Desk {
    async fn deliver(&self, request: Request<Parcel>) -> Result<Response<Receipt>, Status> {
        let letters = self.open(request.get_ref()).map_err(|(event, status)| {
            event.emit();
            tracing::debug!(error = status.message(), "a parcel is refused");
            status
        })?;
        let count = u64::try_from(letters.letters.len()).unwrap_or(u64::MAX);
        Counted { event: LetterEvent::Received, letters: count }.emit();
        let answers = letters.letters.iter().map(|letter| self.heed(letter).into()).collect();
        Ok(Response::new(Receipt { answers }))
    }
}
