//! One stream of a program's requests; its end releases the permits that were acquired on it.
//!
//! Guarantees:
//! - A waiting acquire does not block later requests.
//! - Every request gets one reply.
//! - A release cancels a waiting acquire.
//! - The stream's end releases all permits, unless this process is draining.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - Each acquire is a trace span, a child of the stream's span.
//!
//! Not covered:
//! - The order of replies.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Aborted, BoxFuture, FutureExt as _, abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::api::hold_request::Ask;
use super::api::hold_response::Answer as Said;
use super::api::{
    AcquireRequest, Error, HoldRequest, HoldResponse, ReleaseRequest, ReleaseResponse,
    RenewResponse,
};
use super::{Places, count, ended, question, refusal, shorter, shown};
use crate::edge::grpc::convert;
use crate::edge::grpc::prompt::unread;
use crate::edge::hook::{self, Unanswered};
use crate::engine::{Admitted, Permits, check_id};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Asked, Outcome as Counted, Protocol};
use crate::telemetry::trace;

/// The largest number of ids on one stream that wait for permits or have them.
pub const MOST: usize = 10_000;

const UNREAD: Duration = Duration::from_secs(10);

type Replies = mpsc::Sender<Result<HoldResponse, Status>>;

type Acquired = (String, Result<Result<Admitted, Unanswered>, Aborted>);

enum Place {
    Waits(AbortHandle),
    Holds(Permits),
}

struct Stream<'s> {
    service: &'s Places,
    headers: &'s MetadataMap,
    places: HashMap<String, Place>,
    asking: FuturesUnordered<BoxFuture<'s, Acquired>>,
}

pub(super) async fn run(
    (service, headers): (&Places, &MetadataMap),
    mut messages: Streaming<HoldRequest>,
    replies: &Replies,
) {
    let mut leaving = service.leaving.clone();
    let (places, asking) = (HashMap::new(), FuturesUnordered::new());
    let mut stream = Stream { service, headers, places, asking };
    loop {
        let reply = tokio::select! {
            _ = leaving.wait_for(|leaving| *leaving) => return stream.go_on(&mut messages),
            Some(acquired) = stream.asking.next() => Some(stream.settle(acquired)),
            message = messages.message() => match message {
                Ok(Some(HoldRequest { ask })) => stream.take(ask),
                Ok(None) => return,
                Err(status) => {
                    // The error is dropped if the client does not read earlier replies.
                    let _told = replies.try_send(Err(unread(&status, Protocol::Permits)));
                    return;
                }
            },
        };
        let Some(reply) = reply else { continue };
        let is_told = tokio::select! {
            told = replies.send(Ok(reply)) => told.is_ok(),
            _ = leaving.wait_for(|leaving| *leaving) => return stream.go_on(&mut messages),
            () = tokio::time::sleep(UNREAD) => false,
        };
        if !is_told {
            return;
        }
    }
}

impl Stream<'_> {
    /// Applies the releases that have arrived, then leaves the other permits to their deadlines.
    fn go_on(mut self, messages: &mut Streaming<HoldRequest>) {
        for _ in 0..MOST {
            match messages.message().now_or_never() {
                Some(Ok(Some(HoldRequest { ask: Some(Ask::Release(asked)) }))) => {
                    let _said = self.release(&asked);
                }
                Some(Ok(Some(_))) => {}
                _ => break,
            }
        }
        for place in self.places.into_values() {
            if let Place::Holds(permits) = place {
                permits.go_on();
            }
        }
    }

    /// Applies a request and returns its reply; the reply to an acquire comes later.
    fn take(&mut self, ask: Option<Ask>) -> Option<HoldResponse> {
        let (id, said) = match ask {
            None => {
                let message = "neither an acquire, a release nor a renewal";
                (String::new(), Err(Status::invalid_argument(message)))
            }
            Some(Ask::Acquire(asked)) => {
                let id = asked.id.clone();
                match self.begin(asked) {
                    Ok(()) => return None,
                    Err(why) => (id, Err(why)),
                }
            }
            Some(Ask::Release(asked)) => {
                let said = self.release(&asked).map(Said::Release);
                (asked.id, said)
            }
            Some(Ask::Renew(asked)) => {
                let held = match self.places.get(&asked.id) {
                    Some(Place::Holds(permits)) => permits.renew(),
                    Some(Place::Waits(_)) | None => false,
                };
                (asked.id, Ok(Said::Renew(RenewResponse { held })))
            }
        };
        Some(reply(id, said))
    }

    fn begin(&mut self, asked: AcquireRequest) -> Result<(), Status> {
        check_id(&asked.id).map_err(Status::invalid_argument)?;
        // Permits of this id that partly expired are released.
        let is_over = |place: &Place| matches!(place, Place::Holds(permits) if !permits.is_held());
        if self.places.get(&asked.id).is_some_and(is_over) {
            self.places.remove(&asked.id);
        }
        if self.places.contains_key(&asked.id) {
            return Err(Status::already_exists("this id waits or holds permits on this stream"));
        }
        if MOST <= self.places.len() {
            let message = format!("{MOST} ids wait or hold permits on this stream: no more may");
            return Err(Status::resource_exhausted(message));
        }
        check_counts(&asked)?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let span = trace::question(Protocol::Permits, &header);
        let id = asked.id.clone();
        let (acquire, handle) = abortable(span.around(acquire(self.service, asked)));
        self.places.insert(id.clone(), Place::Waits(handle));
        self.asking.push(async move { (id, acquire.await) }.boxed());
        Ok(())
    }

    fn settle(&mut self, (id, acquired): Acquired) -> HoldResponse {
        let Ok(admitted) = acquired else {
            // Its id is already removed, and may be in use again.
            return reply(id, Err(Status::cancelled("released while it waited")));
        };
        self.places.remove(&id);
        let said = match admitted {
            Err(why) => Err(refusal(&why)),
            Ok(admitted) => {
                let held = held(&admitted);
                let shown = shown(&admitted, held);
                if let Admitted::Decided(_, permits) = admitted
                    && !permits.is_empty()
                {
                    self.places.insert(id.clone(), Place::Holds(permits));
                }
                Ok(Said::Acquire(shown))
            }
        };
        reply(id, said)
    }

    fn release(&mut self, asked: &ReleaseRequest) -> Result<ReleaseResponse, Status> {
        let (outcome, rtt) = ended(asked)?;
        Asked { protocol: Protocol::Permits, outcome: Counted::Admit }.emit();
        let held = match self.places.remove(&asked.id) {
            Some(Place::Holds(permits)) => permits.give_back(outcome, rtt),
            Some(Place::Waits(handle)) => {
                handle.abort();
                false
            }
            None => false,
        };
        Ok(ReleaseResponse { held })
    }
}

/// Checks the size before the acquire is queued: many
/// small parts take many times their encoded bytes.
fn check_counts(asked: &AcquireRequest) -> Result<(), Status> {
    let entries = asked.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    convert::check_counts(asked.descriptors.len(), entries).map_err(|why| {
        let why = Unanswered::from(why);
        Asked { protocol: Protocol::Permits, outcome: hook::unanswered(&why) }.emit();
        refusal(&why)
    })
}

async fn acquire(service: &Places, asked: AcquireRequest) -> Result<Admitted, Unanswered> {
    let wait = shorter(None, asked.max_wait_us);
    let request = question(asked);
    let admitted = match convert::question(&request, &service.reporting) {
        Ok(question) => {
            service.engine.admit_with_deadline(&question, wait).await.map_err(Unanswered::from)
        }
        Err(why) => Err(why.into()),
    };
    count(&admitted);
    admitted
}

fn held(admitted: &Admitted) -> Option<Nanos> {
    match admitted {
        Admitted::Decided(_, permits) => permits.shortest_keep(),
        Admitted::Rejected(_) => None,
    }
}

fn reply(id: String, said: Result<Said, Status>) -> HoldResponse {
    let refused = |status: Status| {
        let code = u32::try_from(i32::from(status.code())).unwrap_or_default();
        Said::Error(Error { code, message: status.message().to_owned() })
    };
    HoldResponse { id, answer: Some(said.unwrap_or_else(refused)) }
}
