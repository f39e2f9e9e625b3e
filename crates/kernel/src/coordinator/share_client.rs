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

use super::aggregate::LimitFactor;
use super::clock_reading::ClockReading;
use super::config::ShareTiming;
use super::message::{Grant, GrantInUse, Heartbeat};
use crate::units::{Incarnation, Nanos, ReplicaId, Share};

/// The heartbeats without progress before the pauses grow.
///
/// They take two regular intervals, in which a live replica gives up its share.
const PROMPT_HEARTBEATS: u32 = 64;

/// The load in a heartbeat, measured at the instant of its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadReport {
    /// The requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use, see [`super::split::demand`].
    pub demand: Share,
    /// The factor by which the replica would change its share.
    pub vote: Option<LimitFactor>,
}

/// One incarnation of a replica, for one limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShareClient {
    id: ReplicaId,
    incarnation: Incarnation,
    terms: ShareTiming,
    number: u64,
    last_sent: Option<Nanos>,
    is_reply_pending: bool,
    /// The coordinator's clock, which schedules regular heartbeats.
    clock: Option<ClockReading>,
    active_grant: Option<ActiveGrant>,
    reported_in_flight: Share,
    /// Set while the coordinator waits for the confirmation of a grant.
    is_confirmation_due: bool,
    /// The consecutive grants below the fair share that brought no increase.
    stalled_grants: u32,
    fences: u64,
    is_leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ActiveGrant {
    grant: Grant,
    expires_at: Nanos,
}

/// The result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// The grant is in use; the field is the previous share.
    Applied(Share),
    /// The grant replies to a void heartbeat or another replica, and is ignored.
    Ignored,
}

impl ShareClient {
    /// A replica without a share. `incarnation` exceeds every earlier incarnation of `id`.
    #[must_use]
    pub const fn new(id: ReplicaId, incarnation: Incarnation, timing: ShareTiming) -> Self {
        Self {
            id,
            incarnation,
            terms: timing,
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

    /// Changes the timing. A pending reply becomes void,
    /// because it was requested under the old timing.
    pub const fn reload(&mut self, timing: ShareTiming) {
        self.terms = timing;
        self.is_reply_pending = false;
    }

    /// The usable share at `now`; zero before the first grant and after a fence.
    #[must_use]
    pub fn usable_share(&self, now: Nanos) -> Share {
        self.unexpired_grant(now).map_or(Share(0), |held| held.grant.share)
    }

    /// The current grant; `None` after its expiry.
    #[must_use]
    pub fn current_grant(&self, now: Nanos) -> Option<&Grant> {
        self.unexpired_grant(now).map(|held| &held.grant)
    }

    /// The expiry of the share, unless a heartbeat renews it.
    #[must_use]
    pub fn expires_at(&self) -> Option<Nanos> {
        self.active_grant.map(|held| held.expires_at)
    }

    /// The number of positive shares that expired.
    #[must_use]
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// The coordinator incarnation of the current grant, for the membership table.
    ///
    /// A replica may report an incarnation only if each of its limits returns it, or has
    /// neither a share nor requests in flight. Call [`ShareClient::discard_reply`] on all of them first.
    #[must_use]
    pub fn coordinator_incarnation(&self, now: Nanos) -> Option<Incarnation> {
        self.unexpired_grant(now).map(|held| held.grant.coordinator_incarnation)
    }

    /// Creates the next heartbeat. The reply to the previous one becomes void.
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
            vote: load.vote,
            is_leaving: self.is_leaving,
        }
    }

    /// Creates the last heartbeat. The replica then admits nothing and applies no grant.
    ///
    /// Once nothing is in flight, another [`ShareClient::next_heartbeat`] frees the
    /// share state at once. [`ShareClient::cancel_leave`] cancels the leave.
    pub fn last_heartbeat(&mut self, now: Nanos, in_flight: Share) -> Heartbeat {
        self.is_leaving = true;
        self.active_grant = None;
        self.next_heartbeat(now, &LoadReport { in_flight, ..LoadReport::default() })
    }

    /// Cancels a leave, even if the coordinator received it.
    ///
    /// The replica restarts without a share. Its next heartbeat is due at once and has the highest
    /// number so far. So a delayed last heartbeat cannot free a share that is in use again.
    pub fn cancel_leave(&mut self) {
        let new = Self::new(self.id, self.incarnation, self.terms);
        *self = Self { number: self.number, clock: self.clock, fences: self.fences, ..new };
    }

    /// Applies the reply to the newest heartbeat.
    pub fn apply_grant(&mut self, now: Nanos, grant: &Grant) -> GrantOutcome {
        self.fence(now);
        let newest = (self.id, self.incarnation, self.number)
            == (grant.replica, grant.incarnation, grant.heartbeat_number);
        let sent = self.last_sent.filter(|_| newest && self.is_reply_pending);
        let expires_at = sent.map(|sent| {
            sent.plus(Nanos(self.terms.share_lifetime.0.saturating_sub(self.terms.margin.0)))
        });
        // The lifetime counts from sending, so a reply can arrive too late to be useful.
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

    /// Drops an expired share; returns `true` if it was positive.
    ///
    /// A pending heartbeat becomes void too, because it reports the dropped share.
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

    /// Schedules regular heartbeats by `clock`, the coordinator's clock as all replicas read it.
    pub const fn set_clock(&mut self, clock: ClockReading) {
        self.clock = Some(clock);
    }

    /// The instant of the next heartbeat under `load`; a past instant means now.
    #[must_use]
    pub fn next_heartbeat_at(&self, now: Nanos, load: &LoadReport) -> Nanos {
        let usual = self.regular_heartbeat_at().unwrap_or(now);
        self.early_heartbeat_at(now, load).map_or(usual, |urgent| urgent.min(usual))
    }

    /// The instant of the next regular heartbeat; `None` before the first one.
    ///
    /// It is a common instant of the fleet, or one interval after the last heartbeat.
    fn regular_heartbeat_at(&self) -> Option<Nanos> {
        let last = self.last_sent?;
        // Skip an instant that was just used, in case
        // the new reading of the clock differs slightly.
        let from = last.plus(self.terms.short_pause());
        // A heartbeat now would void the pending reply.
        let clock = self.clock.filter(|_| !self.is_reply_pending);
        let period = self.terms.period();
        Some(clock.map_or(last.plus(self.terms.heartbeat), |clock| {
            clock.next_multiple_after(from, period)
        }))
    }

    /// The instant of an early heartbeat that makes a share move sooner, if one is useful.
    ///
    /// Early heartbeats follow the same safety rules.
    #[must_use]
    pub fn early_heartbeat_at(&self, now: Nanos, load: &LoadReport) -> Option<Nanos> {
        let last = self.last_sent.filter(|_| !self.is_reply_pending)?;
        let share = self.usable_share(now);
        let is_below = load.in_flight <= share;
        // Others wait for permits that this replica gave up or no longer uses.
        if is_below && (self.is_confirmation_due || share < self.reported_in_flight) {
            return Some(last);
        }
        if self.is_confirmation_due {
            return Some(last.plus(self.terms.debounce()));
        }
        // The pauses grow in the end, because the wait can take as long as a request.
        let pause = || back_off(self.waiting_pause(last), self.stalled_grants);
        self.is_below_fair_share(now, load).then(|| last.plus(pause()))
    }

    /// The pause of a replica that waits for the shares of others.
    ///
    /// The others learn of it at the common instant and reply soon after. The pause is an
    /// eighth of the time since that instant, so the added delay is small in proportion.
    fn waiting_pause(&self, last: Nanos) -> Nanos {
        let (shortest, longest) = (self.terms.short_pause(), self.terms.debounce());
        let period = self.terms.period();
        let passed = self
            .clock
            .map(|clock| period.since(clock.next_multiple_after(last, period).since(last)));
        passed.map_or(longest, |passed| Nanos(passed.0 / 8).clamp(shortest, longest))
    }

    fn unexpired_grant(&self, now: Nanos) -> Option<&ActiveGrant> {
        self.active_grant.as_ref().filter(|held| now < held.expires_at)
    }

    /// Derives the urgency of the next heartbeats from a new grant.
    fn record_grant(&mut self, before: Option<&Grant>, grant: &Grant) {
        // A smaller share frees permits for others, and a new coordinator
        // incarnation waits for all replicas. A larger share frees nothing.
        self.is_confirmation_due = before.is_some_and(|before| grant.share < before.share)
            || grant.is_recovering
                && before.is_none_or(|held| {
                    held.coordinator_incarnation != grant.coordinator_incarnation
                });
        let gained = before.is_some_and(|before| before.share < grant.share);
        let waits = grant.share < grant.fair_share && !gained;
        self.stalled_grants = if waits { self.stalled_grants.saturating_add(1) } else { 0 };
    }

    /// Returns `true` if others have part of the fair share, and this replica needs it.
    fn is_below_fair_share(&self, now: Nanos, load: &LoadReport) -> bool {
        let Some(held) = self.unexpired_grant(now) else { return has_demand(load) };
        let full = held.grant.share <= load.in_flight || held.grant.share < load.demand;
        held.grant.share < held.grant.fair_share
            && full
            && has_demand(load)
            && !held.grant.is_recovering
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

/// `pause`, doubled for each of `times` above [`PROMPT_HEARTBEATS`].
fn back_off(pause: Nanos, times: u32) -> Nanos {
    let times = times.saturating_sub(PROMPT_HEARTBEATS);
    Nanos(pause.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)))
}
