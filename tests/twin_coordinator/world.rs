//! The state of such a world, and its steps.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::member::{Applied, Load};
use sluicegate::kernel::coordinator::{
    Coordinator, Grant, Heartbeat, Law, Life, Member, Reply, Terms,
};
use sluicegate::kernel::units::{Incarnation, MemberId, Nanos, Share};
use stateright::{Model, Property};

/// Late enough that a fleet's table from 0 is complete.
const START: u64 = 100;

/// How large a world, and what may happen in it.
#[derive(Clone)]
pub struct Twin {
    pub ceiling: u64,
    /// What it is set to later, in this order.
    pub moves: &'static [u64],
    /// For how long requests go on at most, at first and after each reload.
    pub lasts: &'static [u64],
    /// Heartbeats of each life of each member.
    pub beats: &'static [u64],
    /// Requests are admitted and end; else it is shares alone that count.
    pub requests: bool,
    /// Messages come late, twice and out of order; else in time or never.
    pub late: bool,
    /// Ticks of the store's clock.
    pub ticks: u64,
    /// Ticks that the first member's clock may lose.
    pub lag: u64,
    /// Lives of the first member.
    pub lives: u64,
    pub losses: u64,
    /// Whether the first member may leave in order.
    pub leaving: Leaving,
    /// A coordinator that forgot trusts what it knows.
    pub trusts: bool,
    /// What must be found possible.
    pub must: &'static [&'static str],
}

/// How a member leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Never,
    /// And says what it still has in flight.
    InOrder,
    /// The same, and comes back in the same life, whether anybody heard of it or not.
    ForAWhile,
    /// And does not say so.
    Hiding,
}

impl Default for Twin {
    fn default() -> Self {
        Self {
            ceiling: 2,
            moves: &[],
            lasts: &[1],
            beats: &[2, 2],
            requests: true,
            late: true,
            ticks: 0,
            lag: 0,
            lives: 1,
            losses: 0,
            leaving: Leaving::Never,
            trusts: false,
            must: &[],
        }
    }
}

impl Twin {
    /// A ceiling of one, which is enough where it is about who has it.
    pub fn one() -> Self {
        Self { ceiling: 1, ..Self::default() }
    }

    /// A term of 3 less 1, requests of one tick unless it says so: enough for a clock that loses 2, since one that is
    /// admitted within a tick ends with the next.
    fn law(&self, ceiling: u64, reloads: usize) -> Law {
        let (heartbeat, term, max_duration) = (Nanos(1), Nanos(3), Nanos(self.lasts[reloads]));
        let terms = Terms { heartbeat, term, margin: Nanos(1), max_duration };
        let ceiling = Share(ceiling);
        Law::new(terms, ceiling, ceiling, ceiling).unwrap()
    }
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    member: Member,
    life: u64,
    beats: u64,
    lag: u64,
    /// When its requests end at the latest, on its clock.
    ends: Vec<u64>,
    lost_some: bool,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Letter {
    Beat(Heartbeat),
    Grant(Grant),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    now: u64,
    ceiling: u64,
    /// How often it was set.
    moves: usize,
    reloads: usize,
    /// What may be in use: the ceiling, or what was in use when it fell.
    bound: u64,
    coordinator: Coordinator,
    life: Life,
    /// The fleet's table: a line for each life of each member.
    under: BTreeMap<(u64, u64), Option<Incarnation>>,
    replicas: Vec<Replica>,
    /// Ends of requests whose replica is gone, on the store's clock.
    orphans: Vec<u64>,
    letters: BTreeSet<Letter>,
    /// One member lost some of its share and another has more since.
    moved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Admit(usize),
    End(usize),
    OrphanEnds,
    Beat(usize),
    Read(Letter),
    Leave(usize),
    ComeBack(usize),
    Crash(usize),
    Set(u64),
    /// All go on under another law.
    Reload,
    Forget,
    /// A tick; the member's clock loses it.
    Tick(Option<usize>),
}

impl World {
    fn clock(&self, at: usize) -> Nanos {
        Nanos(self.now - self.replicas[at].lag)
    }

    fn in_force(&self, at: usize) -> u64 {
        self.replicas[at].member.in_force(self.clock(at)).0
    }

    fn shares(&self) -> u64 {
        (0..self.replicas.len()).map(|at| self.in_force(at)).sum()
    }

    fn in_flight(&self) -> u64 {
        let of = |replica: &Replica| replica.ends.len() as u64;
        self.orphans.len() as u64 + self.replicas.iter().map(of).sum::<u64>()
    }

    fn beat(&mut self, at: usize, late: bool) {
        let now = self.clock(at);
        let replica = &mut self.replicas[at];
        replica.beats += 1;
        let in_flight = Share(replica.ends.len() as u64);
        let beat = replica.member.beat(now, &Load { in_flight, wanted: Share(9), vote: None });
        self.post(beat, late);
    }

    /// It admits nobody any more.
    fn leave(&mut self, at: usize, twin: &Twin) {
        let now = self.clock(at);
        let replica = &mut self.replicas[at];
        replica.beats += 1;
        replica.left = true;
        let hides = twin.leaving == Leaving::Hiding;
        let in_flight = if hides { 0 } else { replica.ends.len() as u64 };
        let beat = replica.member.leave(now, Share(in_flight));
        self.post(beat, twin.late);
    }

    fn come_back(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.left = false;
        replica.member.come_back();
    }

    fn post(&mut self, beat: Heartbeat, late: bool) {
        self.letters.retain(|letter| !letter.is_void(&beat, late));
        self.letters.insert(Letter::Beat(beat));
    }

    /// The store hears a heartbeat; whether anything changed.
    fn hear(&mut self, law: &Law, beat: &Heartbeat) -> bool {
        let name = (beat.member.0, beat.life.0);
        if beat.leaves && beat.in_flight == Share(0) {
            self.under.remove(&name);
        } else {
            self.under.insert(name, beat.holds.map(|holds| holds.coordinator));
        }
        let records: Vec<Record> = self.records();
        self.life.settle(Nanos(self.now), law.terms.longest(), Nanos(0), &records);
        match self.coordinator.on_heartbeat(Nanos(self.now), &self.life, law, beat) {
            Reply::Grant(grant) => self.letters.insert(Letter::Grant(grant)),
            Reply::Left => true,
            Reply::Late | Reply::Superseded => false,
            other => panic!("{other:?}"),
        }
    }

    fn records(&self) -> Vec<Record> {
        let record = |(&(member, life), &under): (&(u64, u64), &Option<Incarnation>)| Record {
            member: MemberId(member),
            life: Incarnation(life),
            under,
        };
        self.under.iter().map(record).collect()
    }

    /// A member applies a grant; whether anything changed.
    fn apply(&mut self, grant: &Grant) -> bool {
        let at = usize::try_from(grant.member.0).unwrap();
        let now = self.clock(at);
        match self.replicas[at].member.on_grant(now, grant) {
            Applied::Late => false,
            Applied::From(before) => {
                self.replicas[at].lost_some |= grant.share < before;
                let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != at);
                self.moved |= before < grant.share && others.into_iter().any(|(_, r)| r.lost_some);
                true
            }
        }
    }

    fn crash(&mut self, at: usize, terms: Terms) {
        let replica = &mut self.replicas[at];
        let (life, lag) = (replica.life + 1, replica.lag);
        self.orphans.extend(replica.ends.iter().map(|end| end + lag));
        self.orphans.sort_unstable();
        *replica = replica_of(at as u64, life, lag, terms);
    }

    fn tick(&mut self, loses: Option<usize>) {
        self.now += 1;
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            replica.lag += u64::from(loses == Some(at));
            let clock = self.now - replica.lag;
            replica.ends.retain(|end| clock < *end);
        }
        let now = self.now;
        self.orphans.retain(|end| now < *end);
    }

    /// Whether a member holds nothing of before the ceiling fell, and nothing that is under way can give it such.
    fn is_aware(&self, at: usize) -> bool {
        let (now, member) = (self.clock(at), &self.replicas[at].member);
        let is_old = |grant: &Grant| Share(self.ceiling) < grant.ceiling;
        let may_come = |letter: &Letter| match letter {
            Letter::Grant(grant) if is_old(grant) => {
                member.clone().on_grant(now, grant) != Applied::Late
            }
            _ => false,
        };
        !member.grant(now).is_some_and(is_old) && !self.letters.iter().any(may_come)
    }

    fn in_use(&self) -> u64 {
        let of = |at: usize| self.in_force(at).max(self.replicas[at].ends.len() as u64);
        self.orphans.len() as u64 + (0..self.replicas.len()).map(of).sum::<u64>()
    }

    /// After a fall: never above what it was; once all know of it, only downwards.
    fn watch(&mut self) {
        if self.bound <= self.ceiling {
            self.bound = self.ceiling;
        } else if (0..self.replicas.len()).all(|at| self.is_aware(at)) {
            self.bound = self.ceiling.max(self.bound.min(self.in_use()));
        }
    }

    /// A member had a share that is over by its clock, and not because it was granted less.
    fn is_fenced(&self, at: usize) -> bool {
        let granted = self.replicas[at].member.grant(Nanos(START)).map(|grant| grant.share);
        granted.is_some_and(|share| Share(0) < share) && self.in_force(at) == 0
    }

    /// A share is in force at one member that another lost by a fence or a crash, or left.
    fn was_inherited(&self) -> bool {
        let lost = |at: usize| {
            let replica = &self.replicas[at];
            self.is_fenced(at) || replica.left || 1 < replica.life
        };
        let held = |at: usize| 0 < self.in_force(at);
        let all = 0..self.replicas.len();
        all.clone().any(|at| held(at) && all.clone().any(|other| other != at && lost(other)))
    }
}

impl Letter {
    /// Answers to heartbeats before this one change nothing any more; where nothing comes late,
    /// those heartbeats do not come either.
    fn is_void(&self, newer: &Heartbeat, late: bool) -> bool {
        let (member, life, number, lost) = match self {
            Self::Grant(grant) => (grant.member, grant.life, grant.number, true),
            Self::Beat(beat) => (beat.member, beat.life, beat.number, !late),
        };
        lost && member == newer.member && (life, number) < (newer.life, newer.number)
    }
}

fn replica_of(id: u64, life: u64, lag: u64, terms: Terms) -> Replica {
    let member = Member::new(MemberId(id), Incarnation(life), terms);
    Replica { member, life, beats: 0, lag, ends: Vec::new(), lost_some: false, left: false }
}

impl Model for Twin {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let replica = |id| replica_of(id, 1, 0, self.law(self.ceiling, 0).terms);
        let members = 0..self.beats.len() as u64;
        vec![World {
            now: START,
            ceiling: self.ceiling,
            moves: 0,
            reloads: 0,
            bound: self.ceiling,
            coordinator: Coordinator::default(),
            life: Life { settled: true, ..Life::begin(Incarnation(1), Nanos(0)) },
            under: members.clone().map(|id| ((id, 1), None)).collect(),
            replicas: members.map(replica).collect(),
            orphans: Vec::new(),
            letters: BTreeSet::new(),
            moved: false,
        }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        for (at, replica) in world.replicas.iter().enumerate() {
            if self.requests && (replica.ends.len() as u64) < world.in_force(at) {
                acts.push(Act::Admit(at));
            }
            if !replica.ends.is_empty() {
                acts.push(Act::End(at));
            }
            if replica.beats < self.beats[at] {
                acts.push(Act::Beat(at));
            }
            let may_leave = self.leaving != Leaving::Never && !replica.left;
            if at == 0 && may_leave && replica.beats < self.beats[at] {
                acts.push(Act::Leave(at));
            }
            if self.leaving == Leaving::ForAWhile && replica.left {
                acts.push(Act::ComeBack(at));
            }
            if at == 0 && replica.life < self.lives {
                acts.push(Act::Crash(at));
            }
            if at == 0 && world.now < START + self.ticks && replica.lag < self.lag {
                acts.push(Act::Tick(Some(at)));
            }
        }
        acts.extend(world.letters.iter().copied().map(Act::Read));
        if !world.orphans.is_empty() {
            acts.push(Act::OrphanEnds);
        }
        if world.now < START + self.ticks {
            acts.push(Act::Tick(None));
        }
        if world.life.incarnation.0 <= self.losses {
            acts.push(Act::Forget);
        }
        acts.extend(self.moves.get(world.moves).copied().map(Act::Set));
        if world.reloads + 1 < self.lasts.len() {
            acts.push(Act::Reload);
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        let law = self.law(world.ceiling, world.reloads);
        match act {
            Act::Admit(at) => {
                let end = next.clock(at).plus(law.terms.max_duration).0;
                next.replicas[at].ends.push(end);
            }
            Act::End(at) => drop(next.replicas[at].ends.pop()),
            Act::OrphanEnds => drop(next.orphans.pop()),
            Act::Beat(at) => next.beat(at, self.late),
            Act::Read(letter) => {
                if !self.late {
                    next.letters.remove(&letter);
                }
                let changed = match letter {
                    Letter::Beat(beat) => next.hear(&law, &beat),
                    Letter::Grant(grant) => next.apply(&grant),
                };
                changed.then_some(())?;
            }
            Act::Leave(at) => next.leave(at, self),
            Act::ComeBack(at) => next.come_back(at),
            Act::Set(ceiling) => {
                next.ceiling = ceiling;
                next.moves += 1;
            }
            Act::Reload => {
                next.reloads += 1;
                let terms = self.law(next.ceiling, next.reloads).terms;
                next.replicas.iter_mut().for_each(|replica| replica.member.reload(terms));
            }
            Act::Crash(at) => next.crash(at, law.terms),
            Act::Tick(loses) => next.tick(loses),
            Act::Forget => {
                let born = Life::begin(Incarnation(next.life.incarnation.0 + 1), Nanos(next.now));
                next.life = Life { settled: self.trusts, ..born };
            }
        }
        next.watch();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the shares fit", |_: &Self, world: &World| {
                world.shares() <= world.bound
            }),
            Property::always("what is in flight fits", |_: &Self, world: &World| {
                world.in_flight() <= world.bound
            }),
        ];
        let possible: [Property<Self>; 6] = [
            Property::sometimes("a share moves", |_, world: &World| world.moved),
            Property::sometimes("a share moves to another", |_, world: &World| {
                world.was_inherited()
            }),
            Property::sometimes("a fence happens", |_, world: &World| {
                (0..world.replicas.len()).any(|at| world.is_fenced(at))
            }),
            Property::sometimes("an amnesia is survived", |_, world: &World| {
                let knows = 1 < world.life.incarnation.0 && world.life.settled;
                knows && world.shares() == world.ceiling
            }),
            Property::sometimes("more is in use than a lowered ceiling", |_, world: &World| {
                world.ceiling < world.in_use()
            }),
            Property::sometimes("a raised ceiling is used", |_, world: &World| {
                1 < world.moves && world.shares() == world.ceiling
            }),
        ];
        properties.extend(possible.into_iter().filter(|known| self.must.contains(&known.name)));
        properties
    }
}
