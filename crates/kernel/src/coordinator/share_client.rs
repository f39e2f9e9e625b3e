//! A replica's state of its share of one fleet-wide limit: size, expiry, and the next heartbeat.
//!
//! Guarantees:
//! - A share ends one clock margin before its lifetime, counted from sending the heartbeat.
//! - Only the reply to the newest heartbeat is applied, unless the share expired meanwhile.
//! - Replicas that know the coordinator's clock send regular heartbeats at common instants.
//! - A joining replica therefore waits for all other replicas only as long as for one.
//!
//! Assumes:
//! - The replica's clock is monotonic and counts while the machine sleeps.
//!
//! Not covered:
//! - Admission: if the share falls, requests in flight continue and still count.

use super::aggregate::LimitFactor;
use super::clock_reading::ClockReading;
use super::config::ShareTiming;
use super::demand_curve::DemandCurve;
use super::message::{Grant, GrantInUse, Heartbeat};
use crate::units::{Incarnation, Nanos, ReplicaId, Share};

/// The number of consecutive heartbeats without a larger share before the pauses between them grow.
///
/// They take two heartbeat intervals, in which each live replica gives up its excess permits.
const PROMPT_HEARTBEATS: u32 = 64;

/// A replica's load, measured at the instant at which it creates a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadReport {
    /// The number of requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use without a limit, see [`super::split::demand`].
    pub demand: Share,
    /// The demand of its classes and customers; empty without these.
    pub curve: DemandCurve,
    /// The factor by which the replica would change its share; `None` without enough samples.
    pub vote: Option<LimitFactor>,
}

/// One incarnation of a replica, with its share of one fleet-wide limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShareClient {
    id: ReplicaId,
    incarnation: Incarnation,
    timing: ShareTiming,
    number: u64,
    last_sent: Option<Nanos>,
    is_reply_pending: bool,
    /// A reading of the coordinator's clock, which schedules regular heartbeats.
    clock: Option<ClockReading>,
    active_grant: Option<ActiveGrant>,
    reported_in_flight: Share,
    /// Set while the coordinator waits until this replica confirms its newest grant.
    is_confirmation_due: bool,
    /// The number of consecutive grants below the fair share that brought no increase.
    stalled_grants: u32,
    fences: u64,
    is_leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ActiveGrant {
    grant: Grant,
    expires_at: Nanos,
}

/// The result of applying a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// The grant is in use; the field is the share before it.
    Applied(Share),
    /// The grant is ignored: it is late, replies to a void heartbeat, or is for another replica.
    Ignored,
}

impl ShareClient {
    /// A replica without a share. `incarnation` must exceed every earlier incarnation of `id`.
    #[must_use]
    pub const fn new(id: ReplicaId, incarnation: Incarnation, timing: ShareTiming) -> Self {
        Self {
            id,
            incarnation,
            timing,
            number: 0,
            last_sent: None,
            is_reply_pending: false,
            clock: None,
            active_grant: None,
            reported_in_flight: Share(0),
            is_confirmation_due: false,
            stalled_grants: 0,
            fences: 0,
            is_leaving: false,
        }
    }

    /// Changes the timing. A pending reply becomes void, because its heartbeat was sent under the
    /// old timing.
    pub const fn reload(&mut self, timing: ShareTiming) {
        self.timing = timing;
        self.is_reply_pending = false;
    }

    /// The share that this replica may use at `now`; zero before the first grant and after expiry.
    #[must_use]
    pub fn usable_share(&self, now: Nanos) -> Share {
        self.unexpired_grant(now).map_or(Share(0), |held| held.grant.share)
    }

    /// The grant in use at `now`; `None` before the first grant and after expiry.
    #[must_use]
    pub fn current_grant(&self, now: Nanos) -> Option<&Grant> {
        self.unexpired_grant(now).map(|held| &held.grant)
    }

    /// The instant at which the share expires, unless a heartbeat renews it.
    #[must_use]
    pub fn expires_at(&self) -> Option<Nanos> {
        self.active_grant.map(|held| held.expires_at)
    }

    /// The number of nonzero shares that expired so far.
    #[must_use]
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// The coordinator incarnation of the grant in use, to be recorded in the membership.
    ///
    /// A replica may report a coordinator incarnation only if each of its limits returns it here,
    /// or has neither a share nor requests in flight. Call [`ShareClient::discard_reply`] for all
    /// limits first.
    #[must_use]
    pub fn coordinator_incarnation(&self, now: Nanos) -> Option<Incarnation> {
        self.unexpired_grant(now).map(|held| held.grant.coordinator_incarnation)
    }

    /// Creates the next heartbeat. A pending reply to the previous heartbeat becomes void.
    pub fn next_heartbeat(&mut self, now: Nanos, load: &LoadReport) -> Heartbeat {
        self.fence(now);
        self.number = self.number.saturating_add(1);
        self.last_sent = Some(now);
        self.is_reply_pending = !self.is_leaving;
        self.reported_in_flight = load.in_flight;
        self.is_confirmation_due = false;
        Heartbeat {
            replica: self.id,
            incarnation: self.incarnation,
            number: self.number,
            grant_in_use: self.active_grant.map(|held| GrantInUse::from(held.grant)),
            in_flight: load.in_flight,
            demand: load.demand,
            curve: load.curve,
            vote: load.vote,
            is_leaving: self.is_leaving,
            is_claimed: false,
        }
    }

    /// Creates the heartbeat with which this replica leaves the fleet. Then it admits nothing and
    /// applies no grant.
    ///
    /// Once no request is in flight, another [`ShareClient::next_heartbeat`] makes the coordinator
    /// remove the share state at once. [`ShareClient::cancel_leave`] keeps the replica in the
    /// fleet.
    pub fn last_heartbeat(&mut self, now: Nanos, in_flight: Share) -> Heartbeat {
        self.is_leaving = true;
        self.active_grant = None;
        self.next_heartbeat(now, &LoadReport { in_flight, ..LoadReport::default() })
    }

    /// Keeps a leaving replica in the fleet, even if the coordinator already received its last
    /// heartbeat.
    ///
    /// The replica restarts without a share, and its next heartbeat is due at once. Heartbeat
    /// numbers continue, so a delayed last heartbeat cannot free a share that is in use again.
    pub fn cancel_leave(&mut self) {
        let new = Self::new(self.id, self.incarnation, self.timing);
        *self = Self { number: self.number, clock: self.clock, fences: self.fences, ..new };
    }

    /// Applies `grant` if it replies to the newest heartbeat.
    pub fn apply_grant(&mut self, now: Nanos, grant: &Grant) -> GrantOutcome {
        self.fence(now);
        let is_newest = (self.id, self.incarnation, self.number)
            == (grant.replica, grant.incarnation, grant.heartbeat_number);
        let sent = self.last_sent.filter(|_| is_newest && self.is_reply_pending);
        let expires_at = sent.map(|sent| {
            sent.plus(Nanos(self.timing.share_lifetime.0.saturating_sub(self.timing.margin.0)))
        });
        // The lifetime counts from sending the heartbeat, so it may be over when the reply arrives.
        let Some(expires_at) = expires_at.filter(|expires_at| now < *expires_at) else {
            return GrantOutcome::Ignored;
        };
        let before = self.active_grant.map(|held| held.grant);
        self.is_reply_pending = false;
        self.active_grant = Some(ActiveGrant { grant: *grant, expires_at });
        self.record_grant(before.as_ref(), grant);
        GrantOutcome::Applied(before.map_or(Share(0), |before| before.share))
    }

    /// Discards the pending reply to the newest heartbeat.
    pub fn discard_reply(&mut self) {
        self.is_reply_pending = false;
    }

    /// Stops using an expired share; returns `true` if the share was nonzero.
    ///
    /// The reply to a pending heartbeat becomes void too, because that heartbeat reports the
    /// expired share.
    pub fn fence(&mut self, now: Nanos) -> bool {
        if self.active_grant.is_none() || self.unexpired_grant(now).is_some() {
            return false;
        }
        let share = self.active_grant.take().map_or(Share(0), |held| held.grant.share);
        self.is_reply_pending = false;
        let fenced = Share(0) < share;
        self.fences = self.fences.saturating_add(u64::from(fenced));
        fenced
    }

    /// Schedules regular heartbeats at the fleet's common instants on the coordinator's clock.
    pub const fn set_clock(&mut self, clock: ClockReading) {
        self.clock = Some(clock);
    }

    /// The instant at which the next heartbeat is due under `load`; a past instant means now.
    #[must_use]
    pub fn next_heartbeat_at(&self, now: Nanos, load: &LoadReport) -> Nanos {
        let regular = self.regular_heartbeat_at().unwrap_or(now);
        self.early_heartbeat_at(now, load).map_or(regular, |urgent| urgent.min(regular))
    }

    /// The instant of the next regular heartbeat; `None` before the first one.
    ///
    /// It is the fleet's next common instant. It is one heartbeat interval after the last heartbeat
    /// if a reply is pending or the coordinator's clock is unknown.
    fn regular_heartbeat_at(&self) -> Option<Nanos> {
        let last = self.last_sent?;
        // Skip a common instant that was just used, because a new reading of the coordinator's
        // clock may place it slightly later.
        let earliest = last.plus(self.timing.short_pause());
        // A heartbeat at the common instant could void the pending reply too early.
        let clock = self.clock.filter(|_| !self.is_reply_pending);
        let period = self.timing.period();
        Some(clock.map_or(last.plus(self.timing.heartbeat), |clock| {
            clock.next_multiple_after(earliest, period)
        }))
    }

    /// The instant of an early heartbeat that makes permits move sooner between replicas; `None` if
    /// it would not help.
    ///
    /// Early heartbeats follow the same safety rules as regular ones.
    #[must_use]
    pub fn early_heartbeat_at(&self, now: Nanos, load: &LoadReport) -> Option<Nanos> {
        let last = self.last_sent.filter(|_| !self.is_reply_pending)?;
        let share = self.usable_share(now);
        let fits_share = load.in_flight <= share;
        // Other replicas wait for permits that this replica gave up or no longer uses.
        if fits_share && (self.is_confirmation_due || share < self.reported_in_flight) {
            return Some(last);
        }
        if self.is_confirmation_due {
            return Some(last.plus(self.timing.debounce()));
        }
        // The pauses grow in the end, because another replica's request can take long to free a
        // permit.
        let pause = || back_off(self.waiting_pause(last), self.stalled_grants);
        self.is_below_fair_share(now, load).then(|| last.plus(pause()))
    }

    /// The pause between heartbeats of a replica that waits until other replicas give up permits.
    ///
    /// The other replicas receive their smaller shares at the common instant and confirm them soon
    /// after. The pause is an eighth of the time since that instant, so the added delay is small in
    /// proportion.
    fn waiting_pause(&self, last: Nanos) -> Nanos {
        let (shortest, longest) = (self.timing.short_pause(), self.timing.debounce());
        let period = self.timing.period();
        let since_common_instant = self
            .clock
            .map(|clock| period.since(clock.next_multiple_after(last, period).since(last)));
        since_common_instant.map_or(longest, |passed| Nanos(passed.0 / 8).clamp(shortest, longest))
    }

    fn unexpired_grant(&self, now: Nanos) -> Option<&ActiveGrant> {
        self.active_grant.as_ref().filter(|held| now < held.expires_at)
    }

    /// Derives from a new grant whether early heartbeats are useful.
    fn record_grant(&mut self, before: Option<&Grant>, grant: &Grant) {
        // A confirmed smaller share frees permits for other replicas, and a new coordinator
        // incarnation waits until all replicas confirm it. A larger share frees nothing.
        self.is_confirmation_due = before.is_some_and(|before| grant.share < before.share)
            || grant.is_recovering
                && before.is_none_or(|held| {
                    held.coordinator_incarnation != grant.coordinator_incarnation
                });
        let has_grown = before.is_some_and(|before| before.share < grant.share);
        let is_stalled = grant.share < grant.fair_share && !has_grown;
        self.stalled_grants = if is_stalled { self.stalled_grants.saturating_add(1) } else { 0 };
    }

    /// Returns `true` if this replica needs permits of its fair share that other replicas still
    /// have.
    fn is_below_fair_share(&self, now: Nanos, load: &LoadReport) -> bool {
        let Some(active) = self.unexpired_grant(now) else { return has_demand(load) };
        let needs_more = active.grant.share <= load.in_flight || active.grant.share < load.demand;
        active.grant.share < active.grant.fair_share
            && needs_more
            && has_demand(load)
            && !active.grant.is_recovering
    }
}

impl From<Grant> for GrantInUse {
    fn from(grant: Grant) -> Self {
        let Grant {
            coordinator_incarnation: coordinator, generation, share, limit: ceiling, ..
        } = grant;
        Self { coordinator_incarnation: coordinator, generation, share, limit: ceiling }
    }
}

fn has_demand(load: &LoadReport) -> bool {
    Share(0) < load.demand.max(load.in_flight)
}

/// The pause, doubled for each stalled grant beyond [`PROMPT_HEARTBEATS`].
fn back_off(pause: Nanos, stalled_grants: u32) -> Nanos {
    let times = stalled_grants.saturating_sub(PROMPT_HEARTBEATS);
    Nanos(pause.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)))
}
