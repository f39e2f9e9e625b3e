//! A replica's share of one fleet-wide limit: its size, its expiry, and the next heartbeat.
//!
//! Guarantees:
//! - A share ends one margin before its lifetime, counted from sending the heartbeat.
//! - Only the reply to the newest heartbeat is applied, and none after a fence.
//! - Replicas that know the coordinator's clock send regular heartbeats at common instants.
//! - A joining replica therefore waits for all others only as long as for one.
//!
//! Assumes:
//! - The clock is monotonic and counts while the machine sleeps.
//!
//! Not covered:
//! - Admission: requests in flight continue, and count, after the share falls.

use super::aggregate::Ratio;
use super::message::{Grant, Heartbeat, Holding};
use super::reading::Reading;
use super::terms::Terms;
use crate::kernel::units::{Incarnation, MemberId, Nanos, Share};

/// The heartbeats without progress before the pauses grow.
///
/// They take two regular intervals, in which a live replica gives up its share.
const PROMPT: u32 = 64;

/// The load in a heartbeat, measured at the instant of its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// The requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use, see [`super::split::wanted`].
    pub wanted: Share,
    /// The factor by which the replica would change its share.
    pub vote: Option<Ratio>,
}

/// One incarnation of a replica, for one limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    id: MemberId,
    life: Incarnation,
    terms: Terms,
    number: u64,
    last: Option<Nanos>,
    awaits: bool,
    /// The coordinator's clock, which schedules regular heartbeats.
    clock: Option<Reading>,
    in_force: Option<InForce>,
    reported: Share,
    /// Set while the coordinator waits for the confirmation of a grant.
    owes: bool,
    /// The consecutive grants below the fair share that brought no increase.
    fruitless: u32,
    fences: u64,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InForce {
    grant: Grant,
    ends_at: Nanos,
}

/// The result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The grant is in use; the field is the previous share.
    From(Share),
    /// The grant replies to a void heartbeat or another replica, and is ignored.
    Late,
}

impl Member {
    /// A replica without a share. `life` exceeds every earlier incarnation of `id`.
    #[must_use]
    pub const fn new(id: MemberId, life: Incarnation, terms: Terms) -> Self {
        Self {
            id,
            life,
            terms,
            number: 0,
            last: None,
            awaits: false,
            clock: None,
            in_force: None,
            reported: Share(0),
            owes: false,
            fruitless: 0,
            fences: 0,
            left: false,
        }
    }

    /// Changes the timing. A pending reply becomes void,
    /// because it was requested under the old timing.
    pub const fn reload(&mut self, terms: Terms) {
        self.terms = terms;
        self.awaits = false;
    }

    /// The usable share at `now`; zero before the first grant and after a fence.
    #[must_use]
    pub fn in_force(&self, now: Nanos) -> Share {
        self.holding(now).map_or(Share(0), |held| held.grant.share)
    }

    /// The current grant; `None` after its expiry.
    #[must_use]
    pub fn grant(&self, now: Nanos) -> Option<&Grant> {
        self.holding(now).map(|held| &held.grant)
    }

    /// The expiry of the share, unless a heartbeat renews it.
    #[must_use]
    pub fn ends_at(&self) -> Option<Nanos> {
        self.in_force.map(|held| held.ends_at)
    }

    /// The number of positive shares that expired.
    #[must_use]
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// The coordinator incarnation of the current grant, for the membership table.
    ///
    /// A replica may report an incarnation only if each of its limits returns it, or has
    /// neither a share nor requests in flight. Call [`Member::void`] on all of them first.
    #[must_use]
    pub fn under(&self, now: Nanos) -> Option<Incarnation> {
        self.holding(now).map(|held| held.grant.coordinator)
    }

    /// Creates the next heartbeat. The reply to the previous one becomes void.
    pub fn beat(&mut self, now: Nanos, load: &Load) -> Heartbeat {
        self.fence(now);
        self.number = self.number.saturating_add(1);
        self.last = Some(now);
        self.awaits = !self.left;
        self.reported = load.in_flight;
        self.owes = false;
        Heartbeat {
            member: self.id,
            life: self.life,
            number: self.number,
            holds: self.in_force.map(|held| Holding::from(held.grant)),
            in_flight: load.in_flight,
            wanted: load.wanted,
            vote: load.vote,
            leaves: self.left,
        }
    }

    /// Creates the last heartbeat. The replica then admits nothing and applies no grant.
    ///
    /// Once nothing is in flight, another [`Member::beat`] frees the
    /// share state at once. [`Member::come_back`] cancels the leave.
    pub fn leave(&mut self, now: Nanos, in_flight: Share) -> Heartbeat {
        self.left = true;
        self.in_force = None;
        self.beat(now, &Load { in_flight, ..Load::default() })
    }

    /// Cancels a leave, even if the coordinator received it.
    ///
    /// The replica restarts without a share. Its next heartbeat is due at once and has the highest
    /// number so far. So a delayed last heartbeat cannot free a share that is in use again.
    pub fn come_back(&mut self) {
        let new = Self::new(self.id, self.life, self.terms);
        *self = Self { number: self.number, clock: self.clock, fences: self.fences, ..new };
    }

    /// Applies the reply to the newest heartbeat.
    pub fn on_grant(&mut self, now: Nanos, grant: &Grant) -> Applied {
        self.fence(now);
        let newest = (self.id, self.life, self.number) == (grant.member, grant.life, grant.number);
        let sent = self.last.filter(|_| newest && self.awaits);
        let ends_at = sent
            .map(|sent| sent.plus(Nanos(self.terms.term.0.saturating_sub(self.terms.margin.0))));
        // The lifetime counts from sending, so a reply can arrive too late to be useful.
        let Some(ends_at) = ends_at.filter(|ends_at| now < *ends_at) else { return Applied::Late };
        let before = self.in_force.map(|held| held.grant);
        self.awaits = false;
        self.in_force = Some(InForce { grant: *grant, ends_at });
        self.note(before.as_ref(), grant);
        Applied::From(before.map_or(Share(0), |before| before.share))
    }

    /// Discards the pending reply to the newest heartbeat.
    pub fn void(&mut self) {
        self.awaits = false;
    }

    /// Drops an expired share; returns `true` if it was positive.
    ///
    /// A pending heartbeat becomes void too, because it reports the dropped share.
    pub fn fence(&mut self, now: Nanos) -> bool {
        if self.in_force.is_none() || self.holding(now).is_some() {
            return false;
        }
        let share = self.in_force.take().map_or(Share(0), |held| held.grant.share);
        self.awaits = false;
        let fenced = Share(0) < share;
        self.fences = self.fences.saturating_add(u64::from(fenced));
        fenced
    }

    /// Schedules regular heartbeats by `clock`, the coordinator's clock as all replicas read it.
    pub const fn goes_by(&mut self, clock: Reading) {
        self.clock = Some(clock);
    }

    /// The instant of the next heartbeat under `load`; a past instant means now.
    #[must_use]
    pub fn due(&self, now: Nanos, load: &Load) -> Nanos {
        let usual = self.usual().unwrap_or(now);
        self.urgent(now, load).map_or(usual, |urgent| urgent.min(usual))
    }

    /// The instant of the next regular heartbeat; `None` before the first one.
    ///
    /// It is a common instant of the fleet, or one interval after the last heartbeat.
    fn usual(&self) -> Option<Nanos> {
        let last = self.last?;
        // Skip an instant that was just used, in case
        // the new reading of the clock differs slightly.
        let from = last.plus(self.terms.moment());
        // A heartbeat now would void the pending reply.
        let clock = self.clock.filter(|_| !self.awaits);
        let period = self.terms.period();
        Some(clock.map_or(last.plus(self.terms.heartbeat), |clock| clock.after(from, period)))
    }

    /// The instant of an early heartbeat that makes a share move sooner, if one is useful.
    ///
    /// Early heartbeats follow the same safety rules.
    #[must_use]
    pub fn urgent(&self, now: Nanos, load: &Load) -> Option<Nanos> {
        let last = self.last.filter(|_| !self.awaits)?;
        let share = self.in_force(now);
        let is_below = load.in_flight <= share;
        // Others wait for permits that this replica gave up or no longer uses.
        if is_below && (self.owes || share < self.reported) {
            return Some(last);
        }
        if self.owes {
            return Some(last.plus(self.terms.debounce()));
        }
        // The pauses grow in the end, because the wait can take as long as a request.
        let pause = || backed_off(self.patience(last), self.fruitless);
        self.capped(now, load).then(|| last.plus(pause()))
    }

    /// The pause of a replica that waits for the shares of others.
    ///
    /// The others learn of it at the common instant and reply soon after. The pause is an
    /// eighth of the time since that instant, so the added delay is small in proportion.
    fn patience(&self, last: Nanos) -> Nanos {
        let (shortest, longest) = (self.terms.moment(), self.terms.debounce());
        let period = self.terms.period();
        let passed = self.clock.map(|clock| period.since(clock.after(last, period).since(last)));
        passed.map_or(longest, |passed| Nanos(passed.0 / 8).clamp(shortest, longest))
    }

    fn holding(&self, now: Nanos) -> Option<&InForce> {
        self.in_force.as_ref().filter(|held| now < held.ends_at)
    }

    /// Derives the urgency of the next heartbeats from a new grant.
    fn note(&mut self, before: Option<&Grant>, grant: &Grant) {
        // A smaller share frees permits for others, and a new coordinator
        // incarnation waits for all replicas. A larger share frees nothing.
        self.owes = before.is_some_and(|before| grant.share < before.share)
            || grant.recovering && before.is_none_or(|held| held.coordinator != grant.coordinator);
        let gained = before.is_some_and(|before| before.share < grant.share);
        let waits = grant.share < grant.fair && !gained;
        self.fruitless = if waits { self.fruitless.saturating_add(1) } else { 0 };
    }

    /// Returns `true` if others have part of the fair share, and this replica needs it.
    fn capped(&self, now: Nanos, load: &Load) -> bool {
        let Some(held) = self.holding(now) else { return wants(load) };
        let full = held.grant.share <= load.in_flight || held.grant.share < load.wanted;
        held.grant.share < held.grant.fair && full && wants(load) && !held.grant.recovering
    }
}

impl From<Grant> for Holding {
    fn from(grant: Grant) -> Self {
        let Grant { coordinator, generation, share, ceiling, .. } = grant;
        Self { coordinator, generation, share, ceiling }
    }
}

fn wants(load: &Load) -> bool {
    Share(0) < load.wanted.max(load.in_flight)
}

/// `pause`, doubled for each of `times` above [`PROMPT`].
fn backed_off(pause: Nanos, times: u32) -> Nanos {
    let times = times.saturating_sub(PROMPT);
    Nanos(pause.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)))
}
