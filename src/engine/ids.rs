//! Permits by the ids that proxies mint, where asking and giving back are two calls.
//!
//! Guarantees: an id holds what it was given once; while it waits or holds permits it is for nobody
//! else, and who asks with it all the same holds nothing and has moved no counter. A release that
//! comes before its acquire is remembered for a while, and what the acquire then takes is given back
//! at once; the release of a request that was given nothing, whyever, is none of those. What is remembered is
//! bounded for each source, and a full memory refuses, it never evicts.
//! Leaves out: how a call says what it is, which is the edge's.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::ceilings::Keep;
use super::peers::Found;
use super::{Admitted, Engine, Permits, Refusal};
use crate::kernel::concurrency::register::{Acquired, Bounds, Released};
use crate::kernel::concurrency::{Outcome, Register};
use crate::kernel::decision::Question;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{IdEvent, IdSeen};

/// How long after its deadline at most an id is forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// Early releases that are remembered, and how long, where nothing else is said: longer than a release
/// overtakes its acquire by, and as many as a proxy's clients can be made to leave in that time.
pub(super) const BOUNDS: Bounds =
    Bounds { per_source: 50_000, total: 200_000, keep: Nanos::from_secs(10) };

/// Ids up to which those that hold nothing are kept as well.
const MOST: usize = 200_000;

/// Where a release comes from; nobody can tell apart those without an address.
type Source = Option<IpAddr>;

type Known = Register<Box<str>, Source, Permits>;

/// What ids hold.
#[derive(Debug)]
pub(super) struct Ids(Mutex<Known>);

/// An id for which an answer is sought; dropped, it may be asked with again. Where it was given nothing until then,
/// whatever the reason, that is noted.
struct Claim<'e> {
    engine: &'e Engine,
    id: Box<str>,
    /// It was given something, which may be over by now.
    given: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut ids = self.engine.ids.0.lock();
        ids.unclaim(&self.id);
        // Before anybody else may ask with it: the note would swallow the release of one that waits.
        if !self.given {
            note_nothing(&mut ids, self.engine.clock().steady(), &self.id);
        }
    }
}

impl Ids {
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self(Mutex::new(Register::new(bounds)))
    }

    /// `id`, for one question; nothing where it is another's, which waits or holds its permits still.
    /// What deadlines left of them is given back.
    fn claim(&self, now: Nanos, id: Box<str>) -> Option<Box<str>> {
        let mut ids = self.0.lock();
        let holds = ids.held(&id).map(|permits| permits.is_held());
        if holds == Some(true) || !ids.claim(id.clone()) {
            return None;
        }
        // Also that it was given nothing: the release of one that waits must not find that.
        let before = holds.map(|_| ids.release(now, &id, &None));
        drop(ids);
        if matches!(&before, Some(Released::Held(permits)) if !permits.is_empty()) {
            IdSeen(IdEvent::Expired).emit();
        }
        Some(id)
    }
}

/// Notes that `id` holds nothing, for as long as an early release would be noted: the release of
/// a request that was given nothing comes as well, and must not take an early one's place.
fn note_nothing(ids: &mut Known, now: Nanos, id: &str) {
    if ids.len() < MOST {
        let until = now.plus(ids.bounds().keep);
        ids.acquire(now, id.into(), until, Permits::default());
    }
}

/// Whether `id` can be one.
///
/// # Errors
/// What one is.
pub fn check_id(id: &str) -> Result<(), &'static str> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_one = (16..=128).contains(&id.len()) && id.bytes().all(sound);
    if is_one { Ok(()) } else { Err("an id is 16 to 128 of 0-9A-Za-z._-") }
}

impl Engine {
    /// As [`Engine::admit`], but only `covered`, a part of `question`, meets ceilings, and the permits
    /// are held by `id` until it is released or their `max_duration` is over. `descriptor` is where
    /// the id stands, for whom it is refused to.
    ///
    /// # Errors
    /// As [`Engine::admit`]; [`Refusal::BadId`] where the id waits or holds permits already, before
    /// anything is asked for.
    pub async fn acquire(
        &self,
        (id, descriptor): (&str, usize),
        covered: &Question<'_>,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        // First of all: whom it is refused to has moved no counter.
        let Some(claim) = self.claim(id) else {
            IdSeen(IdEvent::Taken).emit();
            let why = "this id is in flight already: one id is for one request";
            return Err(Refusal::BadId { descriptor, why });
        };
        let admitted = self.admit_under(covered, question, patience, Keep::MaxDuration).await?;
        Ok(match admitted {
            Admitted::Decided(answer, permits) if !permits.is_empty() => {
                self.hold(claim, permits);
                Admitted::Decided(answer, Permits::default())
            }
            other => other,
        })
    }

    /// The request of `id` is not asked about: its release finds that it holds nothing. Of an id that waits or holds
    /// permits nothing changes.
    pub fn pass_by(&self, id: &str) {
        drop(self.claim(id));
    }

    fn claim(&self, id: &str) -> Option<Claim<'_>> {
        let id = self.ids.claim(self.clock().steady(), id.into())?;
        Some(Claim { engine: self, id, given: false })
    }

    /// Puts `permits` in the hands of the id. Whose release came first is over: what it took is given
    /// back here.
    fn hold(&self, mut claim: Claim<'_>, permits: Permits) {
        claim.given = true;
        let now = self.clock().steady();
        let until = now.plus(permits.longest_keep().unwrap_or_default());
        let acquired = self.ids.0.lock().acquire(now, claim.id.clone(), until, permits);
        IdSeen(match acquired {
            Acquired::Held => IdEvent::Acquired,
            Acquired::Over(_) => IdEvent::Over,
            // Nobody's: what is claimed is held by no other.
            Acquired::Taken(_) => IdEvent::Taken,
        })
        .emit();
    }

    /// Gives back what `id` holds, or remembers that it is over. `rtt` is the request's latency where
    /// the proxy measured it. False where it held nothing, or its deadline was before.
    pub fn release(
        &self,
        id: &str,
        source: Option<IpAddr>,
        outcome: Outcome,
        rtt: Option<Nanos>,
    ) -> bool {
        let released = self.ids.0.lock().release(self.clock().steady(), &id.into(), &source);
        IdSeen(match &released {
            Released::Held(permits) if permits.is_empty() => IdEvent::HeldNothing,
            Released::Held(_) => IdEvent::Released,
            Released::Early => IdEvent::Early,
            Released::Refused => IdEvent::Refused,
        })
        .emit();
        let Released::Held(permits) = released else { return false };
        permits.give_back(outcome, rtt)
    }

    /// As [`Engine::release`], but what is not known is not remembered.
    pub(super) fn release_known(&self, id: &str, outcome: Outcome, rtt: Option<Nanos>) -> Found {
        let released = {
            let (mut ids, id) = (self.ids.0.lock(), id.into());
            if ids.held(&id).is_none() {
                return Found::Unknown;
            }
            ids.release(self.clock().steady(), &id, &None)
        };
        match released {
            Released::Held(permits) if permits.is_empty() => {
                IdSeen(IdEvent::HeldNothing).emit();
                Found::Nothing
            }
            Released::Held(permits) => {
                IdSeen(IdEvent::Released).emit();
                if permits.give_back(outcome, rtt) { Found::Held } else { Found::Nothing }
            }
            Released::Early | Released::Refused => Found::Unknown,
        }
    }

    /// For how long `id` holds all of its permits without a renewal, if it holds any.
    #[must_use]
    pub fn held_by(&self, id: &str) -> Option<Nanos> {
        self.ids.0.lock().held(&id.into())?.shortest_keep()
    }

    /// The request of `id` was seen alive: `max_duration` counts from now. False where it holds
    /// nothing, or a deadline took back any of it before; what is left is renewed all the same.
    pub fn renew(&self, id: &str) -> bool {
        let (mut ids, id) = (self.ids.0.lock(), id.into());
        let Some(permits) = ids.held(&id) else { return false };
        let is_whole = permits.renew();
        let is_left = is_whole || permits.since().is_some();
        let keep = permits.longest_keep().filter(|_| is_left);
        // Read under the lock, as whoever else moves the deadline of an id does.
        let renewed = keep.is_some_and(|keep| ids.renew(&id, self.clock().steady().plus(keep)));
        if renewed {
            IdSeen(IdEvent::Renewed).emit();
        }
        renewed && is_whole
    }

    /// How long `id` has been in flight; `None` where it holds nothing.
    #[must_use]
    pub fn held_for(&self, id: &str) -> Option<Nanos> {
        let since = self.ids.0.lock().held(&id.into()).and_then(|permits| permits.since())?;
        Some(self.clock().steady().since(since))
    }

    /// How many early releases are remembered, and how many may be.
    #[must_use]
    pub fn early_releases(&self) -> (usize, u32) {
        let ids = self.ids.0.lock();
        (ids.tombstones(), ids.bounds().total)
    }

    /// Takes back for ever what is over its deadline.
    pub async fn expire_on(&self) {
        tokio::join!(self.ceilings.run(), self.forget_ids());
    }

    async fn forget_ids(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            while self.forget_id() {}
        }
    }

    /// Takes back what the next id over its deadline holds, if there is one.
    fn forget_id(&self) -> bool {
        let Some((_, permits)) = self.ids.0.lock().expire(self.clock().steady()) else {
            return false;
        };
        if !permits.is_empty() {
            IdSeen(IdEvent::Expired).emit();
        }
        true
    }
}
