//! The world: replicas, a network, a store, faults, and the oracle that watches.

use sluicegate::kernel::coordinator::member::Applied;
use sluicegate::kernel::coordinator::split::Split;
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Law, Terms};
use sluicegate::kernel::units::{Nanos, Share};

use super::faults::Fault;
use super::replica::{Clock, Replica};
use super::store::Store;
use crate::simulation::bad::{Bad, Wrong};
use crate::support::dice::Dice;

/// Ticks with faults, and without at the end.
const WICKED: u64 = 900;
const QUIET: u64 = 300;
/// Without faults, for each member that has to wait for its turn and its predecessors' requests.
const TURN: u64 = 90;
/// After the last fault, until all its consequences are over: terms and requests, twice.
const SETTLES: u64 = 150;

/// How often what happened.
#[derive(Debug, Default)]
pub struct Tally {
    fences: u64,
    late_grants: u64,
    handoffs: u64,
    amnesias_survived: u64,
    faults: [u64; Fault::ALL.len()],
    admitted: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.fences += other.fences;
        self.late_grants += other.late_grants;
        self.handoffs += other.handoffs;
        self.amnesias_survived += other.amnesias_survived;
        self.admitted += other.admitted;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
    }

    pub fn that_must_happen(&self) -> Vec<(String, u64)> {
        let mut all = vec![
            ("fence".to_owned(), self.fences),
            ("late grant".to_owned(), self.late_grants),
            ("handoff".to_owned(), self.handoffs),
            ("amnesia survived".to_owned(), self.amnesias_survived),
        ];
        let faults = Fault::ALL.iter().zip(self.faults);
        all.extend(faults.map(|(fault, count)| (format!("{fault:?}"), count)));
        all
    }
}

/// A message under way.
struct Parcel {
    at: u64,
    /// The replica it comes from or goes to, by number and life.
    who: (u64, u64),
    what: Letter,
}

enum Letter {
    Beat(Heartbeat),
    /// With when it was given.
    Grant(u64, Grant),
}

/// A seeded schedule.
pub struct World {
    tick: u64,
    dice: Dice,
    bad: Bad,
    faults: Vec<Fault>,
    terms: Terms,
    store: Store,
    /// How far the store's clock is ahead of its ticks.
    ahead: u64,
    replicas: Vec<(u64, Option<Replica>)>,
    lives: u64,
    comes_back: Vec<(u64, u64)>,
    /// Ends of requests whose replica is gone.
    orphans: Vec<u64>,
    parcels: Vec<Parcel>,
    unclogs: Vec<(u64, u64)>,
    /// The most that may be in use: the ceiling, or what was in use when it fell.
    bound: u64,
    fell_at: u64,
    forgot_at: Option<u64>,
    shrank: bool,
    tally: Tally,
}

/// Heartbeat 10, term 36, a tenth of drift.
fn terms(max_duration: u64) -> Terms {
    Terms::new(Nanos(10), Nanos(36), Nanos(max_duration), 100_000).unwrap()
}

/// What the members are told instead.
fn told(terms: Terms, bad: Bad) -> Terms {
    let less = u64::from(bad == Bad::ShortMargin);
    Terms { margin: Nanos(terms.margin.0 - less), ..terms }
}

impl World {
    pub fn new(seed: u64, bad: Bad, faults: &[Fault]) -> Self {
        let mut dice = Dice::new(seed);
        let ceiling = 1 + dice.up_to(11);
        // Requests too short to be seen, so that it is the shares that count; or long ones.
        let terms = terms(dice.pick(&[0, 30, 30]));
        let law = Law::new(terms, Share(ceiling), Share(ceiling), Share(ceiling)).unwrap();
        let split = dice.pick(&[Split::Equal, Split::Demand]);
        let mut world = Self {
            tick: 0,
            bad,
            faults: faults.to_vec(),
            terms: told(terms, bad),
            store: Store::new(Law { split, ..law }),
            ahead: 1_000,
            replicas: Vec::new(),
            lives: 0,
            comes_back: Vec::new(),
            orphans: Vec::new(),
            parcels: Vec::new(),
            unclogs: Vec::new(),
            bound: ceiling,
            fell_at: 0,
            forgot_at: None,
            shrank: false,
            tally: Tally::default(),
            dice,
        };
        for id in 0..2 + world.dice.up_to(3) {
            let replica = world.born(id);
            world.replicas.push((id, Some(replica)));
        }
        world
    }

    /// The whole schedule; what broke, if something did.
    pub fn play(mut self) -> Result<Tally, Wrong> {
        while self.tick < WICKED + QUIET + TURN * self.crowd() {
            self.tick += 1;
            if self.tick < WICKED && self.dice.once_in(25) {
                let fault = self.dice.pick(&self.faults.clone());
                self.strike(fault);
            }
            self.recover();
            self.deliver();
            self.live();
            // A message may take no time at all, and then terms are at their longest.
            self.deliver();
            self.judge()?;
        }
        self.judge_the_end()
    }

    fn born(&mut self, id: u64) -> Replica {
        self.lives += 1;
        let wicked = |fault| self.faults.contains(&fault);
        let speed = if wicked(Fault::Drift) { self.dice.pick(&[100, 110, 121]) } else { 110 };
        let start = if wicked(Fault::Skew) { self.dice.up_to(100_000) } else { 0 };
        let mut replica =
            Replica::new(id, self.lives, self.terms, Clock { start, speed }, self.bad);
        replica.rush = self.dice.up_to(4);
        replica.longest = self.dice.pick(&[3, 10, 30, 30]).min(self.terms.max_duration.0);
        replica
    }

    /// Members beyond the ceiling.
    fn crowd(&self) -> u64 {
        (self.replicas.len() as u64).saturating_sub(self.store.law.max.0)
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.dice.up_to(count as u64 - 1)).unwrap()
    }

    fn now(&self) -> Nanos {
        Nanos(self.ahead + self.tick)
    }

    fn strike(&mut self, fault: Fault) {
        let at = self.one_of(self.replicas.len());
        let lasts = self.dice.pick(&[5, 20, 45, 90]);
        let until = self.tick + 1 + self.dice.up_to(lasts);
        let counted = Fault::ALL.iter().position(|known| *known == fault).unwrap();
        self.tally.faults[counted] += 1;
        let (id, replica) = &mut self.replicas[at];
        match (fault, replica) {
            (Fault::Partition, Some(replica)) => replica.cut_until = until,
            (Fault::Pause, Some(replica)) => replica.stands_until = until,
            (Fault::Crash, replica @ Some(_)) => {
                self.orphans.extend(replica.take().into_iter().flat_map(Replica::die));
                self.comes_back.push((until, *id));
            }
            (Fault::Roll, Some(replica)) => {
                let beat = replica.leave(self.tick);
                let who = (beat.member.0, beat.life.0);
                self.send(who, Letter::Beat(beat));
            }
            (Fault::Swizzle, _) => self.swizzle(),
            (Fault::Amnesia, _) => {
                let fleet_too = self.dice.once_in(2);
                self.store.forget(self.now(), fleet_too, self.bad);
                self.forgot_at = Some(self.tick);
            }
            (Fault::Skew, _) => self.ahead -= self.dice.up_to(20).min(self.ahead),
            (Fault::Move, _) => self.move_ceiling(),
            _ => {}
        }
    }

    fn swizzle(&mut self) {
        let mut cut = self.tick;
        for (id, replica) in &mut self.replicas {
            let Some(replica) = replica else { continue };
            replica.clogged = true;
            cut += self.dice.up_to(8);
            self.unclogs.push((cut + self.dice.up_to(50), *id));
        }
    }

    fn move_ceiling(&mut self) {
        let ceiling = Share(1 + self.dice.up_to(11));
        if ceiling < self.store.law.max {
            self.fell_at = self.tick;
        }
        let law = self.store.law;
        self.store.law = Law { min: ceiling, start: ceiling, max: ceiling, ..law };
    }

    /// What was broken for a while works again.
    fn recover(&mut self) {
        let tick = self.tick;
        let due: Vec<u64> =
            self.unclogs.extract_if(.., |(at, _)| *at <= tick).map(|(_, id)| id).collect();
        for (id, replica) in &mut self.replicas {
            if let Some(replica) = replica.as_mut().filter(|_| due.contains(id)) {
                replica.clogged = false;
            }
        }
        let back: Vec<u64> =
            self.comes_back.extract_if(.., |(at, _)| *at <= tick).map(|(_, id)| id).collect();
        for id in back {
            let replica = self.born(id);
            self.replicas
                .iter_mut()
                .filter(|(known, _)| *known == id)
                .for_each(|(_, gone)| *gone = None);
            let place = self.replicas.iter_mut().find(|(known, _)| *known == id);
            place.unwrap().1 = Some(replica);
        }
        self.orphans.retain(|end| tick < *end);
    }

    fn send(&mut self, who: (u64, u64), what: Letter) {
        let wicked = self.tick < WICKED;
        if wicked && self.dice.once_in(12) {
            return;
        }
        let slow = if wicked { self.dice.pick(&[0, 0, 0, 1, 3, 40]) } else { 1 };
        let at = self.tick + self.dice.up_to(slow);
        if wicked && self.dice.once_in(12) {
            let again = self.tick + self.dice.up_to(60);
            let what = match &what {
                Letter::Beat(beat) => Letter::Beat(*beat),
                Letter::Grant(given, grant) => Letter::Grant(*given, *grant),
            };
            self.parcels.push(Parcel { at: again, who, what });
        }
        self.parcels.push(Parcel { at, who, what });
    }

    fn replica(&mut self, (id, life): (u64, u64)) -> Option<&mut Replica> {
        let known = self.replicas.iter_mut().find(|(known, _)| *known == id);
        known.and_then(|(_, replica)| replica.as_mut()).filter(|r| r.life() == life)
    }

    fn deliver(&mut self) {
        let tick = self.tick;
        let mut due: Vec<Parcel> = Vec::new();
        // Until none is due: an answer may arrive in the tick in which its question was sent.
        loop {
            due.extend(self.parcels.extract_if(.., |parcel| parcel.at <= tick));
            if due.is_empty() {
                return;
            }
            let next = self.one_of(due.len());
            let parcel = due.swap_remove(next);
            self.open(parcel);
        }
    }

    fn open(&mut self, parcel: Parcel) {
        let (tick, who) = (self.tick, parcel.who);
        let replica = self.replica(who);
        if replica.as_ref().is_some_and(|replica| tick < replica.cut_until) {
            return;
        }
        if replica.as_ref().is_some_and(|replica| replica.clogged) {
            self.parcels.push(Parcel { at: tick + 1, ..parcel });
            return;
        }
        match parcel.what {
            Letter::Beat(beat) => {
                let (now, bad) = (self.now(), self.bad);
                if let Some(grant) = self.store.hear(now, &beat, bad) {
                    self.send(who, Letter::Grant(tick, grant));
                }
            }
            Letter::Grant(given, grant) => {
                let Some(replica) = replica else { return };
                if tick < replica.stands_until {
                    self.parcels.push(Parcel { at: tick + 1, ..parcel });
                    return;
                }
                let applied = replica.hear(tick, given, &grant);
                self.count(applied, &grant);
            }
        }
    }

    fn count(&mut self, applied: Applied, grant: &Grant) {
        match applied {
            Applied::Late => self.tally.late_grants += 1,
            Applied::From(before) if grant.share < before => self.shrank = true,
            Applied::From(before) if before < grant.share && self.shrank => {
                self.tally.handoffs += 1;
                self.shrank = false;
            }
            Applied::From(_) => {}
        }
    }

    /// A tick in the life of every replica that is awake.
    fn live(&mut self) {
        let tick = self.tick;
        for at in 0..self.replicas.len() {
            let (id, replica) = &mut self.replicas[at];
            let Some(replica) = replica.as_mut().filter(|replica| replica.stands_until <= tick)
            else {
                continue;
            };
            let fences = replica.member.fences();
            replica.notice(tick);
            replica.give_up(tick, 5);
            self.tally.fences += replica.member.fences() - fences;
            if self.dice.once_in(2) {
                replica.serve(tick, &mut self.dice);
            }
            let gone = replica.leaving && replica.in_flight(tick) == 0;
            let beat = if gone { Some(replica.leave(tick)) } else { replica.beat(tick) };
            replica.serve(tick, &mut self.dice);
            if gone {
                let soon = tick + 1 + self.dice.up_to(30);
                self.comes_back.push((soon, *id));
                self.replicas[at].1 = None;
            }
            if let Some(beat) = beat {
                self.send((beat.member.0, beat.life.0), Letter::Beat(beat));
            }
        }
    }

    /// The oracle: what is in use against what may be.
    fn judge(&mut self) -> Result<(), Wrong> {
        let (tick, ceiling) = (self.tick, self.store.law.max.0);
        let alive = || self.replicas.iter().filter_map(|(_, replica)| replica.as_ref());
        let shares: u64 = alive().map(|replica| replica.in_force(tick)).sum();
        let orphans = self.orphans.iter().filter(|end| tick < **end).count() as u64;
        let in_flight = orphans + alive().map(|replica| replica.in_flight(tick)).sum::<u64>();
        let most = |replica: &Replica| replica.in_force(tick).max(replica.in_flight(tick));
        let in_use = orphans + alive().map(most).sum::<u64>();
        // A grant given before the fall may be under way until the term it is good for is over.
        let is_over = self.fell_at + self.terms.term.0 < tick;
        let unaware = |replica: &Replica| replica.granted_at < self.fell_at && !is_over;
        if self.bound <= ceiling {
            self.bound = ceiling;
        } else if !alive().any(unaware) {
            // All have applied the lower ceiling, or are fenced: from here on only downwards.
            self.bound = self.bound.min(in_use.max(ceiling));
        }
        let bound = self.bound;
        if bound < shares || bound < in_flight {
            return Err(Wrong::Above(format!(
                "{shares} in force, {in_flight} in flight, bound {bound}, tick {tick}"
            )));
        }
        self.tally.admitted += in_flight;
        let survived = |forgot: &u64| forgot + self.terms.longest().0 < tick && 0 < in_flight;
        self.tally.amnesias_survived +=
            u64::from(self.forgot_at.take_if(|at| survived(at)).is_some());
        Ok(())
    }

    /// After the quiet time everybody who wants some has had some, and what can be given out is.
    fn judge_the_end(self) -> Result<Tally, Wrong> {
        let hungry = self.replicas.iter().filter_map(|(_, replica)| replica.as_ref());
        let hungry = hungry.filter(|replica| 0 < replica.rush && !replica.leaving);
        let starved = hungry.filter(|replica| replica.served_at < WICKED + SETTLES).count();
        if 0 < starved {
            let state = &self.store.coordinator;
            return Err(Wrong::InVain(format!("{starved} were never served: {state:?}")));
        }
        Ok(self.tally)
    }
}
