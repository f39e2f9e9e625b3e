//! A replica: the kernel's member, a clock of its own, and requests that come and go.

use sluicegate::kernel::coordinator::member::{Applied, Load};
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Member, Reading, Terms};
use sluicegate::kernel::units::{Incarnation, MemberId, Nanos, Share};

use crate::simulation::bad::Bad;
use crate::support::dice::Dice;

/// A clock that started somewhere and runs at `speed`/110 of the store's.
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

/// One life of one replica.
pub struct Replica {
    pub member: Member,
    life: u64,
    pub clock: Clock,
    terms: Terms,
    bad: Bad,
    /// When each request that the replica counts ends.
    ends: Vec<u64>,
    /// The most in flight since the last heartbeat, and whether any was turned away.
    peak: u64,
    refused: bool,
    /// Requests that come in a tick at most.
    pub rush: u64,
    /// Its requests last this long at most, in its own ticks.
    pub longest: u64,
    /// In flight when the last heartbeat was made.
    before: u64,
    /// What any grant that came says, where grants are not numbered.
    unnumbered: Option<(Share, Nanos)>,
    sent: Nanos,
    /// When the store gave the grant in force.
    pub granted_at: u64,
    pub stands_until: u64,
    pub cut_until: u64,
    pub clogged: bool,
    pub leaving: bool,
    /// When it last admitted a request.
    pub served_at: u64,
}

impl Replica {
    pub fn new(id: u64, life: u64, terms: Terms, clock: Clock, bad: Bad) -> Self {
        Self {
            member: Member::new(MemberId(id), Incarnation(life), terms),
            life,
            clock,
            terms,
            bad,
            ends: Vec::new(),
            peak: 0,
            refused: false,
            rush: 3,
            longest: terms.max_duration.0,
            before: 0,
            unnumbered: None,
            sent: Nanos(0),
            granted_at: 0,
            stands_until: 0,
            cut_until: 0,
            clogged: false,
            leaving: false,
            served_at: 0,
        }
    }

    /// What it could admit up to, would it be asked now.
    pub fn in_force(&self, tick: u64) -> u64 {
        let now = self.clock.at(tick);
        match self.unnumbered {
            _ if self.leaving => 0,
            Some((share, ends_at)) if self.bad == Bad::ByValue => {
                if now < ends_at {
                    share.0
                } else {
                    0
                }
            }
            _ => self.member.in_force(now).0,
        }
    }

    /// Requests that are really going on.
    pub fn in_flight(&self, tick: u64) -> u64 {
        self.ends.iter().filter(|end| tick < **end).count() as u64
    }

    /// Lets go of what has ended, which a replica that stands still cannot see.
    pub fn notice(&mut self, tick: u64) {
        self.ends.retain(|end| tick < *end);
        self.member.fence(self.clock.at(tick));
    }

    /// Requests come; those that fit are admitted.
    pub fn serve(&mut self, tick: u64, dice: &mut Dice) {
        for _ in 0..dice.up_to(self.rush) {
            if (self.ends.len() as u64) < self.in_force(tick) {
                self.served_at = tick;
                self.ends.push(tick + self.lasts(dice));
            } else {
                self.refused = true;
            }
        }
        self.peak = self.peak.max(self.ends.len() as u64);
    }

    /// How long a request goes on: often as long as it may, by a clock that runs as this one.
    fn lasts(&self, dice: &mut Dice) -> u64 {
        let most = self.longest * 110 / self.clock.speed;
        if dice.once_in(3) { most } else { dice.up_to(most) }
    }

    /// The heartbeat, if one is due.
    pub fn beat(&mut self, tick: u64) -> Option<Heartbeat> {
        let now = self.clock.at(tick);
        let load = self.load();
        (self.member.due(now, &load) <= now).then(|| self.speak(now, &load))
    }

    fn speak(&mut self, now: Nanos, load: &Load) -> Heartbeat {
        (self.peak, self.refused, self.sent) = (0, false, now);
        let in_flight = self.ends.len() as u64;
        let stale = std::mem::replace(&mut self.before, in_flight);
        if self.leaving {
            return self.member.leave(now, Share(in_flight));
        }
        let mut beat = self.member.beat(now, load);
        if self.bad == Bad::Torn {
            beat.in_flight = Share(stale.min(in_flight));
        }
        if let Some((share, ends_at)) = self.unnumbered {
            beat.holds = beat.holds.filter(|_| now < ends_at);
            beat.holds.iter_mut().for_each(|holds| holds.share = share);
        }
        beat
    }

    fn load(&self) -> Load {
        let wanted = if self.refused { Share(1_000) } else { Share(self.peak) };
        Load { in_flight: Share(self.ends.len() as u64), wanted, vote: None }
    }

    /// Says at once that it leaves.
    pub fn leave(&mut self, tick: u64) -> Heartbeat {
        self.leaving = true;
        self.speak(self.clock.at(tick), &self.load())
    }

    pub fn hear(&mut self, tick: u64, granted_at: u64, grant: &Grant) -> Applied {
        let now = self.clock.at(tick);
        if self.bad == Bad::ByValue {
            self.unnumbered = Some((grant.share, self.sent.plus(self.terms.usable())));
        }
        // As an engine reads the store's clock: whenever it is answered.
        self.member.goes_by(Reading { here: now, there: Nanos(granted_at) });
        let applied = self.member.on_grant(now, grant);
        if applied != Applied::Late {
            self.granted_at = granted_at;
        }
        applied
    }

    /// Gives up an answer that does not come, as a call with a deadline does.
    pub fn give_up(&mut self, tick: u64, patience: u64) {
        if self.sent.plus(Nanos(patience)) <= self.clock.at(tick) {
            self.member.void();
        }
    }

    pub fn life(&self) -> u64 {
        self.life
    }

    /// What goes on in the proxy when it dies.
    pub fn die(self) -> Vec<u64> {
        self.ends
    }
}
