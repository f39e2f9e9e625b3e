//! The store's state of one fleet-wide limit, and its step: a heartbeat in, a grant out.
//!
//! The state is flat, public data. So it can be stored as the fields of one
//! hash, and the step can be ported line by line to the store's script.
//!
//! Guarantees:
//! - The sum of all exposures grows only up to the limit.
//! - Late and duplicated heartbeats change nothing.
//! - One step costs O(replicas of this limit).
//!
//! Not covered:
//! - Storage of the state.
//! - Deletion: after [`Coordinator::rests_at`] no share is in use.

use super::aggregate::{Level, Ratio};
use super::life::Life;
use super::message::{Grant, Heartbeat, Holding};
use super::seat::{Granted, Seat};
use super::split::{Split, Want};
use super::terms::{Law, Terms};
use crate::kernel::units::{Generation, Incarnation, Nanos, Share};

/// The most share states of one limit, so that a faulty fleet cannot fill the store.
pub const MOST_SEATS: usize = 4_096;

/// The state of one fleet-wide limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coordinator {
    /// The coordinator incarnation that wrote this state; the state is void in any other.
    pub incarnation: Incarnation,
    /// The latest time so far; it does not go back with the store's clock.
    pub latest: Nanos,
    /// The number of the last grant.
    pub generation: Generation,
    /// The limit; `None` before the first heartbeat.
    pub level: Option<Level>,
    /// Set if the limit was recovered from the reports of replicas after a loss of state.
    pub recovered: bool,
    /// The instant of the last vote count.
    pub counted: Nanos,
    /// The share states, ordered by replica and incarnation.
    pub seats: Vec<Seat>,
}

/// The result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The grant to send to the replica.
    Grant(Grant),
    /// The replica left. Its share state is removed now, or after its last requests ended.
    Left,
    /// Late or duplicated: this or a later heartbeat has already arrived.
    Late,
    /// From an earlier incarnation of the replica: a later one is known.
    Superseded,
    /// The replica has a grant that this state lacks, so the state is old: start a new incarnation.
    Lost,
    /// The limit has the maximum number of share states.
    Full,
}

impl Coordinator {
    /// Applies `beat` at `now` on the store's clock, in the coordinator incarnation `life`.
    pub fn on_heartbeat(&mut self, now: Nanos, life: &Life, law: &Law, beat: &Heartbeat) -> Reply {
        if self.incarnation != life.incarnation {
            *self = Self { incarnation: life.incarnation, counted: now, ..Self::default() };
        }
        self.latest = self.latest.max(now);
        let now = self.latest;
        self.seats.retain(|seat| !seat.is_over(now, &law.terms));
        let at = match self.place(beat) {
            Ok(at) => at,
            Err(refused) => return refused,
        };
        let grace = life.is_in_grace(now, &law.terms);
        let seat = self.hear(at, now, law, beat, grace);
        if beat.leaves {
            self.seats.retain(|seat| !seat.is_over(now, &law.terms));
            return Reply::Left;
        }
        self.move_ceiling(now, law, beat, grace);
        Reply::Grant(self.grant(at, now, law, seat, grace))
    }

    /// The whole limit; zero before the first heartbeat.
    #[must_use]
    pub fn ceiling(&self) -> Share {
        self.level.map_or(Share(0), Level::whole)
    }

    /// The most permits that all replicas together may be using.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.seats.iter().fold(Share(0), |sum, seat| sum.plus(seat.exposure()))
    }

    /// The instant after which no share is in use, unless another heartbeat arrives.
    #[must_use]
    pub fn rests_at(&self, law: &Law) -> Nanos {
        let ends = self.seats.iter().map(|seat| seat.rests_at(&law.terms));
        ends.max().unwrap_or(self.latest)
    }

    /// The index of the share state of `beat`, or its insertion index.
    fn place(&self, beat: &Heartbeat) -> Result<usize, Reply> {
        let later = |seat: &Seat| seat.member == beat.member && beat.life < seat.life;
        if self.seats.iter().any(later) {
            return Err(Reply::Superseded);
        }
        let ours = |holds: &Holding| holds.coordinator == self.incarnation;
        if beat.holds.filter(ours).is_some_and(|holds| self.generation < holds.generation) {
            return Err(Reply::Lost);
        }
        match self.seats.binary_search_by_key(&beat.name(), Seat::name) {
            Ok(at) if self.seats.get(at).is_some_and(|seat| beat.number <= seat.number) => {
                Err(Reply::Late)
            }
            Err(_) if MOST_SEATS <= self.seats.len() => Err(Reply::Full),
            Ok(at) | Err(at) => Ok(at),
        }
    }

    fn hear(&mut self, at: usize, now: Nanos, law: &Law, beat: &Heartbeat, grace: bool) -> Seat {
        let before = self.seats.get(at).filter(|seat| seat.name() == beat.name()).copied();
        let held = if beat.leaves { Granted::default() } else { self.held(before, beat, grace) };
        let Terms { term, max_duration: lasts, .. } = law.terms;
        let until = before.map_or(now, |seat| seat.until).max(now.plus(term));
        let rests = now.plus(lasts);
        let seat = Seat {
            member: beat.member,
            life: beat.life,
            number: beat.number,
            held,
            // Void since this heartbeat was sent. Until the reply it shows if the replica waits.
            granted: before.filter(|_| !beat.leaves).map_or(held, |seat| seat.granted),
            told: before.map_or(Share(0), |seat| seat.told),
            in_flight: beat.in_flight,
            wanted: beat.wanted,
            vote: self.vote(before, beat),
            until: if beat.leaves { now } else { until },
            rests: before.map_or(rests, |seat| seat.admitted_rests(now, &law.terms)),
            lasts,
            since: before.map_or(now, |seat| seat.since),
        };
        match self.seats.get_mut(at).filter(|_| before.is_some()) {
            Some(kept) => *kept = seat,
            None => self.seats.insert(at, seat),
        }
        seat
    }

    /// The grant that the replica had when it sent `beat`, confirmed by its number.
    fn held(&self, before: Option<Seat>, beat: &Heartbeat, grace: bool) -> Granted {
        let Some(holds) = beat.holds else { return Granted::default() };
        if holds.coordinator == self.incarnation {
            let both = before.into_iter().flat_map(|seat| [seat.held, seat.granted]);
            let mut named = both.filter(|granted| granted.generation == holds.generation);
            // Without a share state the share has expired at the replica too, which is earlier.
            return named.next().unwrap_or_default();
        }
        // A share of an earlier incarnation counts only while others may be unreported.
        let share = if grace { holds.share } else { Share(0) };
        Granted { generation: Generation(0), share }
    }

    /// The vote that counts: a vote under another limit, or of an idle replica, is dropped.
    fn vote(&self, before: Option<Seat>, beat: &Heartbeat) -> Option<Ratio> {
        let under = beat.holds.is_some_and(|holds| holds.ceiling == self.ceiling());
        let hungry = Share(0) < beat.wanted;
        let kept = before.and_then(|seat| seat.vote);
        beat.vote.or(kept).filter(|_| under && hungry)
    }

    /// Keeps the limit within its bounds, recovers it after a loss of state, and counts the votes.
    fn move_ceiling(&mut self, now: Nanos, law: &Law, beat: &Heartbeat, grace: bool) {
        let earlier = |holds: &Holding| grace && holds.coordinator != self.incarnation;
        let claim = beat.holds.filter(earlier).map(|holds| Level::of(holds.ceiling));
        let level = match (self.level.filter(|_| self.recovered || claim.is_none()), claim) {
            (Some(level), Some(claim)) => level.min(claim),
            (level, claim) => level.or(claim).unwrap_or(Level::of(law.start)),
        };
        self.recovered |= claim.is_some();
        self.level = Some(level.within(law.min, law.max));
        if !grace && law.terms.two_periods() <= now.since(self.counted) {
            self.count(now, law);
        }
    }

    fn count(&mut self, now: Nanos, law: &Law) {
        let mut votes: Vec<Ratio> = self.live(now).filter_map(|(_, seat)| seat.vote).collect();
        let (Some(ratio), Some(level)) = (law.aggregate.fold(&mut votes), self.level) else {
            return;
        };
        self.level = Some(level.scaled(ratio, law.min, law.max));
        self.counted = now;
        for seat in &mut self.seats {
            seat.vote = None;
        }
    }

    /// The replicas that may receive a share, with their indices.
    fn live(&self, now: Nanos) -> impl Iterator<Item = (usize, &Seat)> {
        self.seats.iter().enumerate().filter(move |(at, seat)| {
            let later = self.seats.get(at.saturating_add(1));
            now < seat.until && later.is_none_or(|later| later.member != seat.member)
        })
    }

    /// Grants the fair share, as far as the exposure of the others leaves room.
    fn grant(&mut self, at: usize, now: Nanos, law: &Law, seat: Seat, grace: bool) -> Grant {
        let live: Vec<(usize, Want)> =
            self.live(now).map(|(at, seat)| (at, self.want(seat))).collect();
        let (fair, owed) = self.fair(&live, at, now, law);
        let share = self.share(&live, at, law, fair, owed, grace);
        // An unchanged share keeps its number, because a new one would carry no information.
        let same = seat.held.share == share && seat.held.generation != Generation(0);
        let generation = if same { seat.held.generation } else { self.generation.next() };
        self.generation = self.generation.max(generation);
        let turned = (share == Share(0)) != (seat.granted.share == Share(0));
        let since = if turned { now } else { seat.since };
        if let Some(kept) = self.seats.get_mut(at) {
            let granted = Granted { generation, share };
            let told = self.level.map_or(Share(0), Level::whole);
            // The vote may have been counted by now, and must not count twice.
            *kept = Seat { granted, told, since, vote: kept.vote, ..seat };
        }
        Grant {
            member: seat.member,
            life: seat.life,
            number: seat.number,
            coordinator: self.incarnation,
            generation,
            share,
            fair,
            ceiling: self.ceiling(),
            members: u64::try_from(live.len()).unwrap_or(u64::MAX),
            recovering: grace,
        }
    }

    fn want(&self, seat: &Seat) -> Want {
        let need = seat.wanted.min(self.ceiling());
        Want { need, waits: seat.granted.share == Share(0), since: seat.since }
    }

    /// The fair share, even if there is no room yet, and the permits that others receive first.
    fn fair(&self, live: &[(usize, Want)], at: usize, now: Nanos, law: &Law) -> (Share, Share) {
        let wants: Vec<Want> = live.iter().map(|(_, want)| *want).collect();
        let me = live.iter().position(|(seat, _)| *seat == at);
        let turned = now.since(law.terms.stint());
        let ceiling = self.ceiling();
        me.map_or((Share(0), Share(0)), |me| {
            let fair = law.split.part(ceiling, &wants, me, turned);
            (fair, law.split.owed(ceiling, &wants, me, turned))
        })
    }

    fn share(
        &self,
        live: &[(usize, Want)],
        at: usize,
        law: &Law,
        fair: Share,
        owed: Share,
        grace: bool,
    ) -> Share {
        let others = self.others(at);
        let free =
            self.ceiling().less(others.fold(Share(0), |sum, seat| sum.plus(seat.exposure())));
        let own = self.seats.get(at).map_or(Share(0), |seat| seat.held.share);
        if free < own {
            // The limit fell below the exposure. Cutting all shares to zero until
            // each replica knows would help nobody. So a replica keeps its share
            // while all shares that were granted since the decrease fit the limit.
            return fair.min(own).min(self.left_by_the_lowered(live, at));
        }
        let floor =
            Share(u64::from(u64::try_from(live.len()).is_ok_and(|n| n <= self.ceiling().0)));
        let short = |(other, want): &(usize, Want)| {
            let granted = self.seats.get(*other).map_or(Share(0), |seat| seat.granted.share);
            *other != at && granted < want.need.max(floor)
        };
        // Do not take an idle share that no other replica can use. In
        // the grace period none may receive it; otherwise none wants it.
        let keeps = grace || law.split == Split::Demand && !live.iter().any(short);
        let goal = if keeps { fair.max(own) } else { fair };
        goal.min(if grace { own } else { own.max(free.less(owed)) })
    }

    /// The rest of the limit after replicas that know it, and after silent ones.
    fn left_by_the_lowered(&self, live: &[(usize, Want)], at: usize) -> Share {
        let ceiling = self.ceiling();
        let is_live = |at: usize| live.binary_search_by_key(&at, |(other, _)| *other).is_ok();
        let taken = |(other, seat): (usize, &Seat)| match is_live(other) {
            false => seat.exposure(),
            // Above its share a replica admits nothing, and its requests take room from others.
            true if seat.told <= ceiling => seat.granted.share.max(seat.in_flight),
            true => Share(0),
        };
        let others = self.seats.iter().enumerate().filter(|(other, _)| *other != at);
        ceiling.less(others.map(taken).fold(Share(0), Share::plus))
    }

    fn others(&self, at: usize) -> impl Iterator<Item = &Seat> {
        self.seats.iter().enumerate().filter(move |(other, _)| *other != at).map(|(_, seat)| seat)
    }
}
