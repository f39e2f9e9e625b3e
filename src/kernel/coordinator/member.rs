//! A replica's side of one ceiling: what it may use, and when it must stop.
//!
//! Guarantees: a share is in force from its grant until term less margin after the heartbeat that
//! it answers was sent, not one tick longer; only the answer to the newest heartbeat is applied,
//! and not after a fence. Members that know the coordinator's clock speak at the same instants when nothing is urgent,
//! so that a joiner waits for the last of them no longer than for one.
//! Assumes: a clock that never steps and counts while the machine sleeps.
//! Leaves out: admitting. Requests already admitted go on when the share falls, and count.

use super::aggregate::Ratio;
use super::message::{Grant, Heartbeat, Holding};
use super::reading::Reading;
use super::terms::Terms;
use crate::kernel::units::{Incarnation, MemberId, Nanos, Share};

/// Heartbeats in vain before the pauses grow: two usual ones' time, in which a live member lets go, where all speak together.
const PROMPT: u32 = 64;

/// What a heartbeat reports, taken in one instant, the one in which it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// Requests admitted and not ended.
    pub in_flight: Share,
    /// Permits it would use, see [`super::split::wanted`].
    pub wanted: Share,
    /// The factor by which it would change what it is allowed.
    pub vote: Option<Ratio>,
}

/// One life of one replica, at one ceiling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    id: MemberId,
    life: Incarnation,
    terms: Terms,
    /// Of the newest heartbeat.
    number: u64,
    /// When the newest heartbeat was sent. None before the first.
    last: Option<Nanos>,
    /// Whether its answer may still be applied.
    awaits: bool,
    /// At whose multiples of a heartbeat the usual ones are due.
    clock: Option<Reading>,
    in_force: Option<InForce>,
    /// What the newest heartbeat reported in flight.
    reported: Share,
    /// The coordinator waits to hear that a grant was applied.
    owes: bool,
    /// Grants in a row that were less than fair and no more than the one before.
    fruitless: u32,
    fences: u64,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InForce {
    grant: Grant,
    ends_at: Nanos,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is in force; the share was this before.
    From(Share),
    /// It answers a heartbeat that is void, or another's: nothing changed.
    Late,
}

impl Member {
    /// A replica that holds nothing. `life` is larger than that of every earlier life of `id`.
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

    /// Goes on under other terms; an answer that is under way was asked for under the old ones, so it is
    /// void.
    pub const fn reload(&mut self, terms: Terms) {
        self.terms = terms;
        self.awaits = false;
    }

    /// The share that may be used at `now`; zero before the first grant and after a fence.
    #[must_use]
    pub fn in_force(&self, now: Nanos) -> Share {
        self.holding(now).map_or(Share(0), |held| held.grant.share)
    }

    /// The grant in force, if its term is not over.
    #[must_use]
    pub fn grant(&self, now: Nanos) -> Option<&Grant> {
        self.holding(now).map(|held| &held.grant)
    }

    /// When the share in force ends unless a heartbeat renews it.
    #[must_use]
    pub fn ends_at(&self) -> Option<Nanos> {
        self.in_force.map(|held| held.ends_at)
    }

    /// How often a share was given up because its term was over.
    #[must_use]
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// The coordinator's life under which everything is that this member holds.
    ///
    /// For the fleet's table. A replica may say so of a life only when each of its ceilings does,
    /// or holds nothing with nothing in flight, and after [`Member::void`] on all of them.
    #[must_use]
    pub fn under(&self, now: Nanos) -> Option<Incarnation> {
        self.holding(now).map(|held| held.grant.coordinator)
    }

    /// Makes the next heartbeat; the answer to the one before is void from here on.
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

    /// Makes the last heartbeat: nothing is admitted any more and no grant applied, unless it comes back. Once
    /// nothing is in flight, another [`Member::beat`] frees the seat at once.
    pub fn leave(&mut self, now: Nanos, in_flight: Share) -> Heartbeat {
        self.left = true;
        self.in_force = None;
        self.beat(now, &Load { in_flight, ..Load::default() })
    }

    /// Takes a leave back, heard or not. It holds nothing, as a new one; the next heartbeat, which is due at once, takes its seat
    /// on, and is later than any before: none of those, however late it comes, frees what is in use again.
    pub fn come_back(&mut self) {
        let new = Self::new(self.id, self.life, self.terms);
        *self = Self { number: self.number, clock: self.clock, fences: self.fences, ..new };
    }

    /// Applies the answer to the newest heartbeat.
    pub fn on_grant(&mut self, now: Nanos, grant: &Grant) -> Applied {
        self.fence(now);
        let newest = (self.id, self.life, self.number) == (grant.member, grant.life, grant.number);
        let sent = self.last.filter(|_| newest && self.awaits);
        let ends_at = sent
            .map(|sent| sent.plus(Nanos(self.terms.term.0.saturating_sub(self.terms.margin.0))));
        // Counted from when it was sent, so an answer can come too late to be of any use.
        let Some(ends_at) = ends_at.filter(|ends_at| now < *ends_at) else { return Applied::Late };
        let before = self.in_force.map(|held| held.grant);
        self.awaits = false;
        self.in_force = Some(InForce { grant: *grant, ends_at });
        self.note(before.as_ref(), grant);
        Applied::From(before.map_or(Share(0), |before| before.share))
    }

    /// Gives up waiting for the answer to the newest heartbeat: from here on it is void.
    pub fn void(&mut self) {
        self.awaits = false;
    }

    /// Gives up what is over; whether there was a share to give up.
    ///
    /// A heartbeat that is under way is void with it: it speaks of a share that is no more.
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

    /// Speaks by `clock`, the coordinator's as all members of this ceiling read it, when nothing is urgent.
    pub const fn goes_by(&mut self, clock: Reading) {
        self.clock = Some(clock);
    }

    /// When the next heartbeat is due, given the load; in the past means now.
    #[must_use]
    pub fn due(&self, now: Nanos, load: &Load) -> Nanos {
        let usual = self.usual().unwrap_or(now);
        self.urgent(now, load).map_or(usual, |urgent| urgent.min(usual))
    }

    /// When one is due though nothing is urgent: a heartbeat after the last, or sooner, where all members speak.
    /// None before the first.
    fn usual(&self) -> Option<Nanos> {
        let last = self.last?;
        // Not twice, where the clock was read a little differently.
        let from = last.plus(self.terms.moment());
        // Sending now would void the answer that is under way.
        let clock = self.clock.filter(|_| !self.awaits);
        let period = self.terms.period();
        Some(clock.map_or(last.plus(self.terms.heartbeat), |clock| clock.after(from, period)))
    }

    /// When one is due that makes a share move sooner, if one does.
    ///
    /// An early heartbeat is only a heartbeat: it loosens nothing.
    #[must_use]
    pub fn urgent(&self, now: Nanos, load: &Load) -> Option<Nanos> {
        let last = self.last.filter(|_| !self.awaits)?;
        let share = self.in_force(now);
        let is_below = load.in_flight <= share;
        // Others wait for what it has given up, or has ceased to use.
        if is_below && (self.owes || share < self.reported) {
            return Some(last);
        }
        if self.owes {
            return Some(last.plus(self.terms.debounce()));
        }
        // Longer each time in the end: what it waits for may take a request's whole life.
        let pause = || backed_off(self.patience(last), self.fruitless);
        self.capped(now, load).then(|| last.plus(pause()))
    }

    /// How long one that waits for others' shares lets pass: they hear of it when all speak, and answer soon after. An eighth of
    /// what has passed since, so that it comes to know not much later than it could.
    fn patience(&self, last: Nanos) -> Nanos {
        let (shortest, longest) = (self.terms.moment(), self.terms.debounce());
        let period = self.terms.period();
        let passed = self.clock.map(|clock| period.since(clock.after(last, period).since(last)));
        passed.map_or(longest, |passed| Nanos(passed.0 / 8).clamp(shortest, longest))
    }

    fn holding(&self, now: Nanos) -> Option<&InForce> {
        self.in_force.as_ref().filter(|held| now < held.ends_at)
    }

    /// What a new grant means for the heartbeats to come.
    fn note(&mut self, before: Option<&Grant>, grant: &Grant) {
        // A larger share frees nothing that anybody waits for; a smaller one does, and a new life
        // of the coordinator waits for all.
        self.owes = before.is_some_and(|before| grant.share < before.share)
            || grant.recovering && before.is_none_or(|held| held.coordinator != grant.coordinator);
        let gained = before.is_some_and(|before| before.share < grant.share);
        let waits = grant.share < grant.fair && !gained;
        self.fruitless = if waits { self.fruitless.saturating_add(1) } else { 0 };
    }

    /// Others still hold what would be fair, and it is wanted here.
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

/// `pause`, doubled with each of the `times` beyond the prompt ones.
fn backed_off(pause: Nanos, times: u32) -> Nanos {
    let times = times.saturating_sub(PROMPT);
    Nanos(pause.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)))
}
