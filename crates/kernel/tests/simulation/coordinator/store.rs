//! The simulated store: one coordinator, its incarnation and the list of replicas.

use std::collections::BTreeMap;

use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate_kernel::coordinator::message::GrantInUse;
use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, Grant, Heartbeat, HeartbeatReply,
    RunningSums,
};
use sluicegate_kernel::units::{Generation, Incarnation, Nanos, ReplicaId};

use crate::simulation::flaws::Flaw;

pub struct CoordinatorStore {
    pub coordinator: Coordinator,
    pub life: CoordinatorIncarnation,
    pub law: CoordinatorConfig,
    since: Nanos,
    fleet: BTreeMap<(ReplicaId, Incarnation), Row>,
}

/// The instant of a replica's last heartbeat, and the coordinator's incarnation that granted its
/// share.
struct Row {
    heard: Nanos,
    under: Option<Incarnation>,
}

impl CoordinatorStore {
    pub fn new(law: CoordinatorConfig) -> Self {
        let life = CoordinatorIncarnation {
            is_settled: true,
            ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
        };
        let (coordinator, fleet) = (Coordinator::default(), BTreeMap::new());
        Self { coordinator, life, law, since: Nanos(0), fleet }
    }

    pub fn lose_state(&mut self, now: Nanos, fleet_too: bool, flaw: Flaw) {
        let next = Incarnation(self.life.incarnation.0 + 1);
        self.life = CoordinatorIncarnation {
            is_settled: flaw == Flaw::NoGrace,
            ..CoordinatorIncarnation::start(next, now)
        };
        self.coordinator = Coordinator::default();
        if fleet_too {
            self.fleet.clear();
            self.since = now;
        }
    }

    pub fn apply_heartbeat(&mut self, now: Nanos, beat: &Heartbeat, flaw: Flaw) -> Option<Grant> {
        let beat = self.with_flaw(beat, flaw);
        self.register(now, &beat);
        if flaw != Flaw::No {
            // Flaws change share states directly, so the sums must be computed again.
            self.coordinator.sums = RunningSums::default();
        }
        if flaw == Flaw::InFlightForExposure {
            let over = |until: Nanos| until <= now;
            for seat in
                self.coordinator.share_states.iter_mut().filter(|seat| over(seat.expires_at))
            {
                (seat.confirmed, seat.granted) = Default::default();
            }
        }
        if flaw == Flaw::NoMemberIncarnation {
            self.coordinator
                .share_states
                .retain(|s| s.replica != beat.replica || s.incarnation == beat.incarnation);
        }
        let reply = self.coordinator.apply_heartbeat(now, &self.life, &self.law, &beat);
        if flaw == Flaw::NoAcknowledgement {
            let seats = self.coordinator.share_states.iter_mut();
            seats
                .filter(|seat| seat.replica == beat.replica)
                .for_each(|seat| seat.confirmed = seat.granted);
        }
        match reply {
            HeartbeatReply::Grant(grant) => Some(grant),
            HeartbeatReply::Left if beat.in_flight.0 == 0 => {
                self.fleet.remove(&beat.sort_key());
                None
            }
            HeartbeatReply::StateLost => {
                panic!("a state that was never set back cannot be an old one: {beat:?}")
            }
            _ => None,
        }
    }

    fn register(&mut self, now: Nanos, beat: &Heartbeat) {
        let longest = self.law.timing.longest_use();
        let row =
            Row { heard: now, under: beat.grant_in_use.map(|holds| holds.coordinator_incarnation) };
        self.fleet.insert(beat.sort_key(), row);
        self.fleet.retain(|_, row| now < row.heard.plus(longest));
        let record = |((member, life), row): (&(ReplicaId, Incarnation), &Row)| IncarnationRecord {
            replica: *member,
            incarnation: *life,
            coordinator_incarnation: row.under,
        };
        let records: Vec<IncarnationRecord> = self.fleet.iter().map(record).collect();
        self.life.settle(now, longest, self.since, &records);
    }

    /// The heartbeat as a store with this flaw would understand it.
    fn with_flaw(&self, beat: &Heartbeat, flaw: Flaw) -> Heartbeat {
        let (life, state) = (self.life.incarnation, &self.coordinator);
        let seat = state.share_states.iter().find(|seat| seat.sort_key() == beat.sort_key());
        let seat = seat.filter(|_| state.incarnation == life);
        match flaw {
            Flaw::ByValue => {
                let named = |holds: GrantInUse| match seat {
                    Some(seat) if seat.granted.share == holds.share => seat.granted.generation,
                    Some(seat) => seat.confirmed.generation,
                    None => Generation(0),
                };
                let holds =
                    beat.grant_in_use.map(|holds| GrantInUse { generation: named(holds), ..holds });
                let number = seat.map_or(beat.number, |seat| beat.number.max(seat.number + 1));
                Heartbeat { grant_in_use: holds, number, ..*beat }
            }
            Flaw::NoCoordinatorIncarnation => {
                let newest = seat.map_or(Generation(0), |seat| seat.granted.generation);
                let known = |held: Generation| if newest <= held { newest } else { held };
                let holds = beat.grant_in_use.map(|holds| GrantInUse {
                    coordinator_incarnation: life,
                    generation: known(holds.generation),
                    ..holds
                });
                Heartbeat { grant_in_use: holds, ..*beat }
            }
            _ => *beat,
        }
    }
}
