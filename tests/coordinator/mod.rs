//! The laws of one ceiling for the whole fleet: how it is split, how it moves, how a share moves.

mod ceiling;
mod handoff;
mod split;

use sluicegate::kernel::coordinator::member::Load;
use sluicegate::kernel::coordinator::{
    Coordinator, Grant, Heartbeat, Law, Life, Member, Reply, Terms,
};
use sluicegate::kernel::units::{Incarnation, MemberId, Nanos, Share};

/// A heartbeat of 10, a term of 36, requests of at most 30, clocks that differ by a tenth: margin 6.
pub fn terms() -> Terms {
    Terms::new(Nanos(10), Nanos(36), Nanos(30), 100_000).unwrap()
}

/// A ceiling that stays where it is.
pub fn fixed(ceiling: u64) -> Law {
    Law::new(terms(), Share(ceiling), Share(ceiling), Share(ceiling)).unwrap()
}

/// The coordinator's first life, which nothing came before.
pub fn settled() -> Life {
    Life { settled: true, ..Life::begin(Incarnation(1), Nanos(0)) }
}

pub fn member(id: u64, life: u64) -> Member {
    Member::new(MemberId(id), Incarnation(life), terms())
}

/// A member with so much in flight that could use all there is.
pub fn hungry(in_flight: u64) -> Load {
    Load { in_flight: Share(in_flight), wanted: Share(1_000), vote: None }
}

/// A member that used so much and turned nobody away.
pub fn uses(in_flight: u64) -> Load {
    Load { in_flight: Share(in_flight), wanted: Share(in_flight), vote: None }
}

/// One ceiling and its store.
pub struct Store {
    pub coordinator: Coordinator,
    pub life: Life,
    pub law: Law,
}

impl Store {
    pub fn new(law: Law) -> Self {
        Self { coordinator: Coordinator::default(), life: settled(), law }
    }

    pub fn hear(&mut self, now: u64, beat: &Heartbeat) -> Reply {
        self.coordinator.on_heartbeat(Nanos(now), &self.life, &self.law, beat)
    }

    /// What must have been granted.
    pub fn granted(&mut self, now: u64, beat: &Heartbeat) -> Grant {
        match self.hear(now, beat) {
            Reply::Grant(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// A whole round trip in one instant; the share in force after it.
    pub fn round(&mut self, now: u64, member: &mut Member, load: &Load) -> Share {
        let beat = member.beat(Nanos(now), load);
        let grant = self.granted(now, &beat);
        member.on_grant(Nanos(now), &grant);
        member.in_force(Nanos(now))
    }
}
