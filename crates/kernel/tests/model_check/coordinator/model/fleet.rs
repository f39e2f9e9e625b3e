//! The steps of a fleet: heartbeats, grants, crashes and time.

use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate_kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use sluicegate_kernel::coordinator::{
    CoordinatorConfig, Grant, Heartbeat, HeartbeatReply, ShareTiming,
};
use sluicegate_kernel::units::{Incarnation, Nanos, ReplicaId, Share};

use super::{FleetState, Leaving, Message, ModelReplica, START, ShareModel, StoreFlaw, replica_of};

impl FleetState {
    pub(super) fn clock(&self, at: usize) -> Nanos {
        Nanos(self.now - self.replicas[at].lag)
    }

    pub(super) fn in_force(&self, replica: usize) -> u64 {
        self.replicas[replica].member.usable_share(self.clock(replica)).0
    }

    pub(super) fn shares(&self) -> u64 {
        (0..self.replicas.len()).map(|at| self.in_force(at)).sum()
    }

    pub(super) fn in_flight(&self) -> u64 {
        let of = |replica: &ModelReplica| replica.ends.len() as u64;
        self.orphans.len() as u64 + self.replicas.iter().map(of).sum::<u64>()
    }

    pub(super) fn beat(&mut self, at: usize, late: bool) {
        let now = self.clock(at);
        let replica = &mut self.replicas[at];
        replica.beats += 1;
        let in_flight = Share(replica.ends.len() as u64);
        let beat = replica.member.next_heartbeat(
            now,
            &LoadReport { in_flight, demand: Share(9), ..LoadReport::default() },
        );
        self.post(beat, late);
    }

    pub(super) fn leave(&mut self, at: usize, model: &ShareModel) {
        let now = self.clock(at);
        let replica = &mut self.replicas[at];
        replica.beats += 1;
        replica.left = true;
        let hides = model.leaving == Leaving::Hiding;
        let in_flight = if hides { 0 } else { replica.ends.len() as u64 };
        let beat = replica.member.last_heartbeat(now, Share(in_flight));
        self.post(beat, model.late);
    }

    pub(super) fn come_back(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.left = false;
        replica.member.cancel_leave();
    }

    fn post(&mut self, beat: Heartbeat, late: bool) {
        self.messages.retain(|message| !message.is_void(&beat, late));
        self.messages.insert(Message::Beat(beat));
    }

    /// Applies a heartbeat at the store. Returns `true` if anything changed.
    pub(super) fn apply_heartbeat(
        &mut self,
        store: StoreFlaw,
        law: &CoordinatorConfig,
        beat: &Heartbeat,
    ) -> bool {
        let name = (beat.replica.0, beat.incarnation.0);
        if beat.is_leaving && beat.in_flight == Share(0) {
            self.under.remove(&name);
        } else {
            self.under.insert(name, beat.grant_in_use.map(|holds| holds.coordinator_incarnation));
        }
        let records: Vec<IncarnationRecord> = self.records();
        self.life.settle(Nanos(self.now), law.timing.longest_use(), Nanos(0), &records);
        let now = (Nanos(self.now), &self.life);
        match store.apply_heartbeat(&mut self.coordinator, now, law, beat) {
            HeartbeatReply::Grant(grant) => self.messages.insert(Message::Grant(grant)),
            HeartbeatReply::Left => true,
            HeartbeatReply::Stale | HeartbeatReply::Superseded => false,
            other => panic!("{other:?}"),
        }
    }

    fn records(&self) -> Vec<IncarnationRecord> {
        let record =
            |(&(member, life), &under): (&(u64, u64), &Option<Incarnation>)| IncarnationRecord {
                replica: ReplicaId(member),
                incarnation: Incarnation(life),
                coordinator_incarnation: under,
            };
        self.under.iter().map(record).collect()
    }

    /// Applies a grant at its replica. Returns `true` if anything changed.
    pub(super) fn apply_grant(&mut self, grant: &Grant) -> bool {
        let at = usize::try_from(grant.replica.0).unwrap();
        let now = self.clock(at);
        match self.replicas[at].member.apply_grant(now, grant) {
            GrantOutcome::Ignored => false,
            GrantOutcome::Applied(before) => {
                self.replicas[at].lost_some |= grant.share < before;
                let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != at);
                self.moved |= before < grant.share && others.into_iter().any(|(_, r)| r.lost_some);
                true
            }
        }
    }

    pub(super) fn crash(&mut self, at: usize, terms: ShareTiming) {
        let replica = &mut self.replicas[at];
        let (life, lag) = (replica.life + 1, replica.lag);
        self.orphans.extend(replica.ends.iter().map(|end| end + lag));
        self.orphans.sort_unstable();
        *replica = replica_of(at as u64, life, lag, terms);
    }

    pub(super) fn tick(&mut self, loses: Option<usize>) {
        self.now += 1;
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            replica.lag += u64::from(loses == Some(at));
            let clock = self.now - replica.lag;
            replica.ends.retain(|end| clock < *end);
        }
        let now = self.now;
        self.orphans.retain(|end| now < *end);
    }

    /// Returns `true` if the replica has no grant from before the decrease of the limit, and none
    /// can arrive.
    fn knows_decrease(&self, replica: usize) -> bool {
        let (now, member) = (self.clock(replica), &self.replicas[replica].member);
        let is_old = |grant: &Grant| Share(self.ceiling) < grant.limit;
        let may_come = |message: &Message| match message {
            Message::Grant(grant) if is_old(grant) => {
                member.clone().apply_grant(now, grant) != GrantOutcome::Ignored
            }
            _ => false,
        };
        !member.current_grant(now).is_some_and(is_old) && !self.messages.iter().any(may_come)
    }

    pub(super) fn in_use(&self) -> u64 {
        let of = |at: usize| self.in_force(at).max(self.replicas[at].ends.len() as u64);
        self.orphans.len() as u64 + (0..self.replicas.len()).map(of).sum::<u64>()
    }

    /// Updates `bound`. After a decrease of the limit, it never rises, and it falls when all
    /// replicas know the new limit.
    pub(super) fn update_bound(&mut self) {
        if self.bound <= self.ceiling {
            self.bound = self.ceiling;
        } else if (0..self.replicas.len()).all(|at| self.knows_decrease(at)) {
            self.bound = self.ceiling.max(self.bound.min(self.in_use()));
        }
    }

    /// Returns `true` if the replica's share expired by its clock, and was not reduced by a grant.
    pub(super) fn is_fenced(&self, replica: usize) -> bool {
        let granted =
            self.replicas[replica].member.current_grant(Nanos(START)).map(|grant| grant.share);
        granted.is_some_and(|share| Share(0) < share) && self.in_force(replica) == 0
    }

    /// Returns `true` if a replica has a share in force after another was fenced, crashed or left.
    pub(super) fn was_inherited(&self) -> bool {
        let lost = |at: usize| {
            let replica = &self.replicas[at];
            self.is_fenced(at) || replica.left || 1 < replica.life
        };
        let held = |at: usize| 0 < self.in_force(at);
        let all = 0..self.replicas.len();
        all.clone().any(|at| held(at) && all.clone().any(|other| other != at && lost(other)))
    }
}
