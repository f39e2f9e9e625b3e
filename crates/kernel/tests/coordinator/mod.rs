//! Tests of the coordinator: votes on the limit, its split into shares, and the handoff of shares.

mod aggregate;
mod entitlement;
mod handoff;
mod running_sums;
mod split;

use sluicegate_kernel::coordinator::share_client::LoadReport;
use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, Grant, Heartbeat, HeartbeatReply,
    ShareClient, ShareTiming,
};
use sluicegate_kernel::units::{Incarnation, Nanos, ReplicaId, Share};

/// Heartbeat interval 10, share lifetime 36, `max_duration` 30 and clock drift 10 %: a replica
/// stops using its share 6 before the share lifetime ends.
pub fn timing() -> ShareTiming {
    ShareTiming::new(Nanos(10), Nanos(36), Nanos(30), 100_000).unwrap()
}

pub fn fixed_limit(limit: u64) -> CoordinatorConfig {
    CoordinatorConfig::new(timing(), Share(limit), Share(limit), Share(limit)).unwrap()
}

/// The coordinator's first incarnation: no earlier shares can exist.
pub fn first_incarnation() -> CoordinatorIncarnation {
    CoordinatorIncarnation {
        is_settled: true,
        ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
    }
}

pub fn share_client(id: u64, incarnation: u64) -> ShareClient {
    ShareClient::new(ReplicaId(id), Incarnation(incarnation), timing())
}

/// A replica's load that could use more permits than any limit here.
pub fn high_demand(in_flight: u64) -> LoadReport {
    LoadReport { in_flight: Share(in_flight), demand: Share(1_000), ..LoadReport::default() }
}

/// A replica's load without denials: it wants exactly its requests in flight.
pub fn exact_demand(in_flight: u64) -> LoadReport {
    LoadReport { in_flight: Share(in_flight), demand: Share(in_flight), ..LoadReport::default() }
}

/// A coordinator of one limit.
pub struct LimitCoordinator {
    pub coordinator: Coordinator,
    pub life: CoordinatorIncarnation,
    pub law: CoordinatorConfig,
}

impl LimitCoordinator {
    pub fn new(config: CoordinatorConfig) -> Self {
        Self { coordinator: Coordinator::default(), life: first_incarnation(), law: config }
    }

    pub fn apply_heartbeat(&mut self, now: u64, beat: &Heartbeat) -> HeartbeatReply {
        self.coordinator.apply_heartbeat(Nanos(now), &self.life, &self.law, beat)
    }

    pub fn expect_grant(&mut self, now: u64, beat: &Heartbeat) -> Grant {
        match self.apply_heartbeat(now, beat) {
            HeartbeatReply::Grant(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a heartbeat and applies its reply at `now`. Returns the share in force.
    pub fn round_trip(&mut self, now: u64, member: &mut ShareClient, load: &LoadReport) -> Share {
        let beat = member.next_heartbeat(Nanos(now), load);
        let grant = self.expect_grant(now, &beat);
        member.apply_grant(Nanos(now), &grant);
        member.usable_share(Nanos(now))
    }
}
