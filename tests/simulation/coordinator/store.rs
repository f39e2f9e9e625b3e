//! The simulated store: one coordinator, its incarnation and the fleet table.

use std::collections::BTreeMap;

use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::{Coordinator, Grant, Heartbeat, Law, Life, Reply};
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos};

use crate::simulation::bad::Flaw;

pub struct Store {
    pub coordinator: Coordinator,
    pub life: Life,
    pub law: Law,
    since: Nanos,
    fleet: BTreeMap<(MemberId, Incarnation), Row>,
}

/// The instant of a replica's last heartbeat, and the coordinator's incarnation that granted its
/// share.
struct Row {
    heard: Nanos,
    under: Option<Incarnation>,
}

impl Store {
    pub fn new(law: Law) -> Self {
        let life = Life { settled: true, ..Life::begin(Incarnation(1), Nanos(0)) };
        let (coordinator, fleet) = (Coordinator::default(), BTreeMap::new());
        Self { coordinator, life, law, since: Nanos(0), fleet }
    }

    pub fn lose_state(&mut self, now: Nanos, fleet_too: bool, flaw: Flaw) {
        let next = Incarnation(self.life.incarnation.0 + 1);
        self.life = Life { settled: flaw == Flaw::NoGrace, ..Life::begin(next, now) };
        self.coordinator = Coordinator::default();
        if fleet_too {
            self.fleet.clear();
            self.since = now;
        }
    }

    pub fn apply_heartbeat(&mut self, now: Nanos, beat: &Heartbeat, flaw: Flaw) -> Option<Grant> {
        let beat = self.with_flaw(beat, flaw);
        self.register(now, &beat);
        if flaw == Flaw::InFlightForExposure {
            let over = |until: Nanos| until <= now;
            for seat in self.coordinator.seats.iter_mut().filter(|seat| over(seat.until)) {
                (seat.held, seat.granted) = Default::default();
            }
        }
        if flaw == Flaw::NoMemberIncarnation {
            self.coordinator.seats.retain(|s| s.member != beat.member || s.life == beat.life);
        }
        let reply = self.coordinator.on_heartbeat(now, &self.life, &self.law, &beat);
        if flaw == Flaw::NoAcknowledgement {
            let seats = self.coordinator.seats.iter_mut();
            seats
                .filter(|seat| seat.member == beat.member)
                .for_each(|seat| seat.held = seat.granted);
        }
        match reply {
            Reply::Grant(grant) => Some(grant),
            Reply::Left if beat.in_flight.0 == 0 => {
                self.fleet.remove(&beat.name());
                None
            }
            Reply::Lost => panic!("a state that was never set back cannot be an old one: {beat:?}"),
            _ => None,
        }
    }

    fn register(&mut self, now: Nanos, beat: &Heartbeat) {
        let longest = self.law.terms.longest();
        let row = Row { heard: now, under: beat.holds.map(|holds| holds.coordinator) };
        self.fleet.insert(beat.name(), row);
        self.fleet.retain(|_, row| now < row.heard.plus(longest));
        let record = |((member, life), row): (&(MemberId, Incarnation), &Row)| Record {
            member: *member,
            life: *life,
            under: row.under,
        };
        let records: Vec<Record> = self.fleet.iter().map(record).collect();
        self.life.settle(now, longest, self.since, &records);
    }

    /// The heartbeat as the flawed protocol would read it.
    fn with_flaw(&self, beat: &Heartbeat, flaw: Flaw) -> Heartbeat {
        let (life, state) = (self.life.incarnation, &self.coordinator);
        let seat = state.seats.iter().find(|seat| seat.name() == beat.name());
        let seat = seat.filter(|_| state.incarnation == life);
        match flaw {
            Flaw::ByValue => {
                let named = |holds: Holding| match seat {
                    Some(seat) if seat.granted.share == holds.share => seat.granted.generation,
                    Some(seat) => seat.held.generation,
                    None => Generation(0),
                };
                let holds = beat.holds.map(|holds| Holding { generation: named(holds), ..holds });
                let number = seat.map_or(beat.number, |seat| beat.number.max(seat.number + 1));
                Heartbeat { holds, number, ..*beat }
            }
            Flaw::NoCoordinatorIncarnation => {
                let newest = seat.map_or(Generation(0), |seat| seat.granted.generation);
                let known = |held: Generation| if newest <= held { newest } else { held };
                let holds = beat.holds.map(|holds| Holding {
                    coordinator: life,
                    generation: known(holds.generation),
                    ..holds
                });
                Heartbeat { holds, ..*beat }
            }
            _ => *beat,
        }
    }
}
