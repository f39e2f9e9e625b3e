//! A simulated replica: the kernel's share client with its own clock and requests.

use sluicegate_kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use sluicegate_kernel::coordinator::{ClockReading, Grant, Heartbeat, ShareClient, ShareTiming};
use sluicegate_kernel::units::{Incarnation, Nanos, ReplicaId, Share};

use crate::dice::Dice;
use crate::simulation::flaws::Flaw;

/// A clock that runs at `speed`/110 of the store's clock, from any start.
#[derive(Clone, Copy)]
pub struct Clock {
    pub start: u64,
    pub speed: u64,
}

impl Clock {
    pub fn at(self, tick: u64) -> Nanos {
        Nanos(self.start + tick * self.speed / 110)
    }
}

pub struct CoordinatorReplica {
    pub member: ShareClient,
    life: u64,
    pub clock: Clock,
    terms: ShareTiming,
    flaw: Flaw,
    /// The end ticks of the requests in flight that the replica counts.
    ends: Vec<u64>,
    /// The most requests in flight since the last heartbeat.
    peak: u64,
    refused: bool,
    pub max_arrivals: u64,
    /// The longest request duration, in ticks of the replica's clock.
    pub longest: u64,
    /// The requests in flight at the last heartbeat.
    before: u64,
    /// The share and expiry of the last grant, for the flaw that grants have no generation.
    unnumbered: Option<(Share, Nanos)>,
    sent: Nanos,
    /// The tick at which the store sent the grant that the replica uses.
    pub granted_at: u64,
    pub paused_until: u64,
    pub cut_until: u64,
    pub clogged: bool,
    pub leaving: bool,
    pub served_at: u64,
}

impl CoordinatorReplica {
    pub fn new(id: u64, life: u64, terms: ShareTiming, clock: Clock, flaw: Flaw) -> Self {
        Self {
            member: ShareClient::new(ReplicaId(id), Incarnation(life), terms),
            life,
            clock,
            terms,
            flaw,
            ends: Vec::new(),
            peak: 0,
            refused: false,
            max_arrivals: 3,
            longest: terms.max_duration.0,
            before: 0,
            unnumbered: None,
            sent: Nanos(0),
            granted_at: 0,
            paused_until: 0,
            cut_until: 0,
            clogged: false,
            leaving: false,
            served_at: 0,
        }
    }

    /// The share that the replica may use now.
    pub fn in_force(&self, tick: u64) -> u64 {
        let now = self.clock.at(tick);
        match self.unnumbered {
            _ if self.leaving => 0,
            Some((share, ends_at)) if self.flaw == Flaw::ByValue => {
                if now < ends_at {
                    share.0
                } else {
                    0
                }
            }
            _ => self.member.usable_share(now).0,
        }
    }

    /// The actual number of requests in flight.
    pub fn in_flight(&self, tick: u64) -> u64 {
        self.ends.iter().filter(|end| tick < **end).count() as u64
    }

    /// Removes ended requests. A paused replica does not notice their end.
    pub fn end_requests(&mut self, tick: u64) {
        self.ends.retain(|end| tick < *end);
        self.member.fence(self.clock.at(tick));
    }

    pub fn serve(&mut self, tick: u64, dice: &mut Dice) {
        for _ in 0..dice.up_to(self.max_arrivals) {
            if (self.ends.len() as u64) < self.in_force(tick) {
                self.served_at = tick;
                self.ends.push(tick + self.lasts(dice));
            } else {
                self.refused = true;
            }
        }
        self.peak = self.peak.max(self.ends.len() as u64);
    }

    /// A random request duration, often the longest that `max_duration` allows by this replica's
    /// clock.
    fn lasts(&self, dice: &mut Dice) -> u64 {
        let most = self.longest * 110 / self.clock.speed;
        if dice.once_in(3) { most } else { dice.up_to(most) }
    }

    pub fn beat(&mut self, tick: u64) -> Option<Heartbeat> {
        let now = self.clock.at(tick);
        let load = self.load();
        (self.member.next_heartbeat_at(now, &load) <= now).then(|| self.make_heartbeat(now, &load))
    }

    fn make_heartbeat(&mut self, now: Nanos, load: &LoadReport) -> Heartbeat {
        (self.peak, self.refused, self.sent) = (0, false, now);
        let in_flight = self.ends.len() as u64;
        let stale = std::mem::replace(&mut self.before, in_flight);
        if self.leaving {
            return self.member.last_heartbeat(now, Share(in_flight));
        }
        let mut beat = self.member.next_heartbeat(now, load);
        if self.flaw == Flaw::Torn {
            beat.in_flight = Share(stale.min(in_flight));
        }
        if let Some((share, ends_at)) = self.unnumbered {
            beat.grant_in_use = beat.grant_in_use.filter(|_| now < ends_at);
            beat.grant_in_use.iter_mut().for_each(|holds| holds.share = share);
        }
        beat
    }

    fn load(&self) -> LoadReport {
        let wanted = if self.refused { Share(1_000) } else { Share(self.peak) };
        LoadReport {
            in_flight: Share(self.ends.len() as u64),
            demand: wanted,
            ..LoadReport::default()
        }
    }

    pub fn leave(&mut self, tick: u64) -> Heartbeat {
        self.leaving = true;
        self.make_heartbeat(self.clock.at(tick), &self.load())
    }

    pub fn apply_grant(&mut self, tick: u64, granted_at: u64, grant: &Grant) -> GrantOutcome {
        let now = self.clock.at(tick);
        if self.flaw == Flaw::ByValue {
            self.unnumbered = Some((grant.share, self.sent.plus(self.terms.usable_lifetime())));
        }
        // As the engine does, takes the store's clock from every reply.
        self.member
            .set_clock(ClockReading { local_time: now, coordinator_time: Nanos(granted_at) });
        let applied = self.member.apply_grant(now, grant);
        if applied != GrantOutcome::Ignored {
            self.granted_at = granted_at;
        }
        applied
    }

    /// Discards the pending reply after `timeout` ticks.
    pub fn time_out(&mut self, tick: u64, timeout: u64) {
        if self.sent.plus(Nanos(timeout)) <= self.clock.at(tick) {
            self.member.discard_reply();
        }
    }

    pub fn life(&self) -> u64 {
        self.life
    }

    /// Crashes the replica. Returns the end ticks of its requests, which continue in the proxy.
    pub fn crash(self) -> Vec<u64> {
        self.ends
    }
}
