//! Stores permits by request id, for proxies that acquire and release in two calls.
//!
//! Guarantees:
//! - An id gets permits once. While it waits or has permits, other acquires with it fail.
//! - An acquire that fails because of its id changes no counter.
//! - An early release is remembered for a while; the later acquire is released at once.
//! - The release of a request without permits does not count as an early release.
//! - Early releases are bounded per source. Beyond the bound new ones are refused.
//!
//! Not covered:
//! - The format of the calls: see the protocols in `edge`.

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

/// The longest delay between a deadline and the removal of its id.
const SWEEP: Duration = Duration::from_secs(1);

/// The default bounds on early releases. The time is longer than a release can overtake
/// its acquire by. The numbers cover the clients of a proxy that cancel in that time.
pub(super) const BOUNDS: Bounds =
    Bounds { per_source: 50_000, total: 200_000, keep: Nanos::from_secs(10) };

/// The number of ids up to which ids without permits are stored too.
const MOST: usize = 200_000;

/// The address that sent a release. Senders without an address share one bound.
type Source = Option<IpAddr>;

type Known = Register<Box<str>, Source, Permits>;

#[derive(Debug)]
pub(super) struct Ids(Mutex<Known>);

/// An id with a pending acquire. Dropping it frees the id, and
/// records that the id has no permits unless `given` is set.
struct Claim<'e> {
    engine: &'e Engine,
    id: Box<str>,
    /// `true` if the id got permits. They may have ended since.
    given: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut ids = self.engine.ids.0.lock();
        ids.unclaim(&self.id);
        // Under the same lock: a later record could consume
        // the release of another acquire with this id.
        if !self.given {
            note_nothing(&mut ids, self.engine.clock().steady(), &self.id);
        }
    }
}

impl Ids {
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self(Mutex::new(Register::new(bounds)))
    }

    /// Reserves `id` for one acquire. Returns `None` if the id waits or has
    /// permits already. Removes the permits that their deadlines have released.
    fn claim(&self, now: Nanos, id: Box<str>) -> Option<Box<str>> {
        let mut ids = self.0.lock();
        let holds = ids.held(&id).map(|permits| permits.is_held());
        if holds == Some(true) || !ids.claim(id.clone()) {
            return None;
        }
        // Also removes a record without permits. The release of the new acquire must not find it.
        let before = holds.map(|_| ids.release(now, &id, &None));
        drop(ids);
        if matches!(&before, Some(Released::Held(permits)) if !permits.is_empty()) {
            IdSeen(IdEvent::Expired).emit();
        }
        Some(id)
    }
}

/// Records that `id` has no permits, for as long as an early release is remembered.
/// The release of a rejected request would otherwise count as an early release.
fn note_nothing(ids: &mut Known, now: Nanos, id: &str) {
    if ids.len() < MOST {
        let until = now.plus(ids.bounds().keep);
        ids.acquire(now, id.into(), until, Permits::default());
    }
}

/// Validates a request id.
///
/// # Errors
/// The format of a valid id.
pub fn check_id(id: &str) -> Result<(), &'static str> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_one = (16..=128).contains(&id.len()) && id.bytes().all(sound);
    if is_one { Ok(()) } else { Err("an id is 16 to 128 of 0-9A-Za-z._-") }
}

impl Engine {
    /// Acquires permits and stores them under `id` until the release or `max_duration`.
    ///
    /// Works like [`Engine::admit`], but only the descriptors of `covered`, a part of `question`,
    /// need permits. `descriptor` is the index of the descriptor with the id, for errors.
    ///
    /// # Errors
    /// As [`Engine::admit`]. [`Refusal::BadId`] if the id
    /// waits or has permits already; nothing is acquired then.
    pub async fn acquire(
        &self,
        (id, descriptor): (&str, usize),
        covered: &Question<'_>,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        // Before anything else, so that a refused id changes no counter.
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

    /// Records that the request of `id` needs no permits, so that its release is
    /// not an early release. Does not affect an id that waits or has permits.
    pub fn pass_by(&self, id: &str) {
        drop(self.claim(id));
    }

    fn claim(&self, id: &str) -> Option<Claim<'_>> {
        let id = self.ids.claim(self.clock().steady(), id.into())?;
        Some(Claim { engine: self, id, given: false })
    }

    /// Stores `permits` under the id. Releases them if the release of the id came first.
    fn hold(&self, mut claim: Claim<'_>, permits: Permits) {
        claim.given = true;
        let now = self.clock().steady();
        let until = now.plus(permits.longest_keep().unwrap_or_default());
        let acquired = self.ids.0.lock().acquire(now, claim.id.clone(), until, permits);
        IdSeen(match acquired {
            Acquired::Held => IdEvent::Acquired,
            Acquired::Over(_) => IdEvent::Over,
            // Unreachable: a claimed id has no other permits.
            Acquired::Taken(_) => IdEvent::Taken,
        })
        .emit();
    }

    /// Releases the permits of `id`, or remembers an early release. `rtt` is the latency that
    /// the proxy measured. Returns `false` if the id had no permits, or its deadline has passed.
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

    /// Does the same as [`Engine::release`], but does not remember an unknown id.
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

    /// Returns the time within which `id` must be renewed
    /// to keep all its permits. `None` without permits.
    #[must_use]
    pub fn held_by(&self, id: &str) -> Option<Nanos> {
        self.ids.0.lock().held(&id.into())?.shortest_keep()
    }

    /// Restarts `max_duration`, because the request of `id` is still active. Returns `false` if the
    /// id has no permits, or a deadline has released one. The others are renewed in both cases.
    pub fn renew(&self, id: &str) -> bool {
        let (mut ids, id) = (self.ids.0.lock(), id.into());
        let Some(permits) = ids.held(&id) else { return false };
        let is_whole = permits.renew();
        let is_left = is_whole || permits.since().is_some();
        let keep = permits.longest_keep().filter(|_| is_left);
        // The clock is read under the lock, because other calls may move the same deadline.
        let renewed = keep.is_some_and(|keep| ids.renew(&id, self.clock().steady().plus(keep)));
        if renewed {
            IdSeen(IdEvent::Renewed).emit();
        }
        renewed && is_whole
    }

    /// Returns the time since `id` acquired its permits. `None` without permits.
    #[must_use]
    pub fn held_for(&self, id: &str) -> Option<Nanos> {
        let since = self.ids.0.lock().held(&id.into()).and_then(|permits| permits.since())?;
        Some(self.clock().steady().since(since))
    }

    /// Returns the number of remembered early releases, and its bound.
    #[must_use]
    pub fn early_releases(&self) -> (usize, u32) {
        let ids = self.ids.0.lock();
        (ids.tombstones(), ids.bounds().total)
    }

    /// Releases expired permits and removes expired ids, forever.
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

    /// Removes the next expired id. Returns `false` if there is none.
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
