//! The state of a model of the share protocol, and its steps.

mod flaw;
mod fleet;

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, Grant, Heartbeat, ShareClient,
    ShareTiming,
};
use sluicegate_kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use stateright::{Model, Property};

pub use flaw::{Reserve, StoreFlaw};

/// The start of the model: late enough that a list of replicas kept since 0 is complete.
const START: u64 = 100;

#[derive(Clone)]
pub struct ShareModel {
    pub ceiling: u64,
    /// The limits to which the first limit changes, in order.
    pub moves: &'static [u64],
    /// The maximum request duration, at first and after each reload.
    pub lasts: &'static [u64],
    /// The number of heartbeats of each replica in each incarnation.
    pub beats: &'static [u64],
    /// True if requests are admitted and end. Otherwise the model only has shares.
    pub requests: bool,
    /// True if messages may arrive late, twice and out of order. Otherwise they arrive in time or
    /// never.
    pub late: bool,
    /// Duration of the model in ticks of the store's clock.
    pub ticks: u64,
    /// Number of ticks that the first replica's clock may lose.
    pub lag: u64,
    /// Number of incarnations of the first replica.
    pub lives: u64,
    pub losses: u64,
    pub leaving: Leaving,
    /// True for the flaw that a coordinator without state skips its recovery.
    pub trusts: bool,
    /// The deviation of the store from the coordinator.
    pub store: StoreFlaw,
    /// Names of the properties that some state must have.
    pub must: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Never,
    /// A leaving replica reports its requests in flight.
    InOrder,
    /// As `InOrder`, and the replica may return in the same incarnation, even if its leave message
    /// was lost.
    ForAWhile,
    /// The flaw that a leaving replica reports no requests in flight.
    Hiding,
}

impl Default for ShareModel {
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
            store: StoreFlaw::No,
            must: &[],
        }
    }
}

impl ShareModel {
    /// A model with a limit of one, enough to test which replica has the permit.
    pub fn one() -> Self {
        Self { ceiling: 1, ..Self::default() }
    }

    /// A share lifetime of 3 ticks, whose use ends 1 tick early, and by default requests of one
    /// tick. The first replica's clock may then lose 2 ticks, because a request admitted within a
    /// tick ends with the next.
    fn coordinator_config(&self, limit: u64, reloads: usize) -> CoordinatorConfig {
        let (heartbeat, term, max_duration) = (Nanos(1), Nanos(3), Nanos(self.lasts[reloads]));
        let terms = ShareTiming { heartbeat, share_lifetime: term, margin: Nanos(1), max_duration };
        let ceiling = Share(limit);
        CoordinatorConfig::new(terms, ceiling, ceiling, ceiling).unwrap()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelReplica {
    member: ShareClient,
    life: u64,
    beats: u64,
    lag: u64,
    /// The latest ends of this replica's requests, by its clock.
    ends: Vec<u64>,
    lost_some: bool,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Beat(Heartbeat),
    Grant(Grant),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetState {
    now: u64,
    ceiling: u64,
    /// The number of changes of the limit so far.
    moves: usize,
    reloads: usize,
    /// The maximum of permits that may be in use: the limit, or after its decrease the use at that
    /// instant.
    bound: u64,
    coordinator: Coordinator,
    life: CoordinatorIncarnation,
    /// The store's list of replicas: each replica and incarnation, with the coordinator's
    /// incarnation that replied to it.
    under: BTreeMap<(u64, u64), Option<Incarnation>>,
    replicas: Vec<ModelReplica>,
    /// The ends of requests whose replica crashed, by the store's clock.
    orphans: Vec<u64>,
    messages: BTreeSet<Message>,
    /// True if one replica's share shrank and afterwards another's grew.
    moved: bool,
}

#[allow(clippy::large_enum_variant, reason = "steps are not stored")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Admit(usize),
    End(usize),
    OrphanEnds,
    Beat(usize),
    Read(Message),
    Leave(usize),
    ComeBack(usize),
    Crash(usize),
    Set(u64),
    /// All replicas load the next maximum request duration.
    Reload,
    Forget,
    /// A tick passes. The clock of the given replica loses it.
    Tick(Option<usize>),
}

impl FleetState {}

impl Message {
    /// Returns `true` if a message has no effect after the heartbeat `newer`: replies to earlier
    /// heartbeats, and without late messages these heartbeats, too.
    fn is_void(&self, newer: &Heartbeat, late: bool) -> bool {
        let (member, life, number, lost) = match self {
            Self::Grant(grant) => (grant.replica, grant.incarnation, grant.heartbeat_number, true),
            Self::Beat(beat) => (beat.replica, beat.incarnation, beat.number, !late),
        };
        lost && member == newer.replica && (life, number) < (newer.incarnation, newer.number)
    }
}

fn replica_of(id: u64, life: u64, lag: u64, terms: ShareTiming) -> ModelReplica {
    let member = ShareClient::new(ReplicaId(id), Incarnation(life), terms);
    ModelReplica { member, life, beats: 0, lag, ends: Vec::new(), lost_some: false, left: false }
}

impl Model for ShareModel {
    type State = FleetState;
    type Action = Act;

    fn init_states(&self) -> Vec<FleetState> {
        let replica = |id| replica_of(id, 1, 0, self.coordinator_config(self.ceiling, 0).timing);
        let members = 0..self.beats.len() as u64;
        vec![FleetState {
            now: START,
            ceiling: self.ceiling,
            moves: 0,
            reloads: 0,
            bound: self.ceiling,
            coordinator: Coordinator::default(),
            life: CoordinatorIncarnation {
                is_settled: true,
                ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
            },
            under: members.clone().map(|id| ((id, 1), None)).collect(),
            replicas: members.map(replica).collect(),
            orphans: Vec::new(),
            messages: BTreeSet::new(),
            moved: false,
        }]
    }

    fn actions(&self, fleet: &FleetState, acts: &mut Vec<Act>) {
        for (at, replica) in fleet.replicas.iter().enumerate() {
            if self.requests && (replica.ends.len() as u64) < fleet.in_force(at) {
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
            if at == 0 && fleet.now < START + self.ticks && replica.lag < self.lag {
                acts.push(Act::Tick(Some(at)));
            }
        }
        acts.extend(fleet.messages.iter().copied().map(Act::Read));
        if !fleet.orphans.is_empty() {
            acts.push(Act::OrphanEnds);
        }
        if fleet.now < START + self.ticks {
            acts.push(Act::Tick(None));
        }
        if fleet.life.incarnation.0 <= self.losses {
            acts.push(Act::Forget);
        }
        acts.extend(self.moves.get(fleet.moves).copied().map(Act::Set));
        if fleet.reloads + 1 < self.lasts.len() {
            acts.push(Act::Reload);
        }
    }

    fn next_state(&self, fleet: &FleetState, act: Act) -> Option<FleetState> {
        let mut next = fleet.clone();
        let law = self.coordinator_config(fleet.ceiling, fleet.reloads);
        match act {
            Act::Admit(at) => {
                let end = next.clock(at).plus(law.timing.max_duration).0;
                next.replicas[at].ends.push(end);
            }
            Act::End(at) => drop(next.replicas[at].ends.pop()),
            Act::OrphanEnds => drop(next.orphans.pop()),
            Act::Beat(at) => next.beat(at, self.late),
            Act::Read(message) => {
                if !self.late {
                    next.messages.remove(&message);
                }
                let changed = match message {
                    Message::Beat(beat) => next.apply_heartbeat(self.store, &law, &beat),
                    Message::Grant(grant) => next.apply_grant(&grant),
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
                let terms = self.coordinator_config(next.ceiling, next.reloads).timing;
                next.replicas.iter_mut().for_each(|replica| replica.member.reload(terms));
            }
            Act::Crash(at) => next.crash(at, law.timing),
            Act::Tick(loses) => next.tick(loses),
            Act::Forget => {
                let born = CoordinatorIncarnation::start(
                    Incarnation(next.life.incarnation.0 + 1),
                    Nanos(next.now),
                );
                next.life = CoordinatorIncarnation { is_settled: self.trusts, ..born };
            }
        }
        next.update_bound();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the shares fit", |_: &Self, fleet: &FleetState| {
                fleet.shares() <= fleet.bound
            }),
            Property::always("what is in flight fits", |_: &Self, fleet: &FleetState| {
                fleet.in_flight() <= fleet.bound
            }),
        ];
        let possible: [Property<Self>; 8] = [
            Property::sometimes("the shares reach the limit", |_, fleet: &FleetState| {
                fleet.shares() == fleet.ceiling
            }),
            Property::sometimes("what is in flight reaches the limit", |_, fleet: &FleetState| {
                fleet.in_flight() == fleet.ceiling
            }),
            Property::sometimes("a share moves", |_, fleet: &FleetState| fleet.moved),
            Property::sometimes("a share moves to another", |_, fleet: &FleetState| {
                fleet.was_inherited()
            }),
            Property::sometimes("a fence happens", |_, fleet: &FleetState| {
                (0..fleet.replicas.len()).any(|at| fleet.is_fenced(at))
            }),
            Property::sometimes("an amnesia is survived", |_, fleet: &FleetState| {
                let knows = 1 < fleet.life.incarnation.0 && fleet.life.is_settled;
                knows && fleet.shares() == fleet.ceiling
            }),
            Property::sometimes(
                "more is in use than a lowered ceiling",
                |_, fleet: &FleetState| fleet.ceiling < fleet.in_use(),
            ),
            Property::sometimes("a raised ceiling is used", |_, fleet: &FleetState| {
                1 < fleet.moves && fleet.shares() == fleet.ceiling
            }),
        ];
        properties.extend(possible.into_iter().filter(|known| self.must.contains(&known.name)));
        properties
    }
}
