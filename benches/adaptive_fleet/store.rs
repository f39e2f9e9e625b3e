//! The store of the simulated fleet: the kernel's coordinator behind the interface of a store.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use sluicegate_concurrency::host::{ConcurrencyEvent, Host};
use sluicegate_concurrency::store::fleet::MembershipHeartbeat;
use sluicegate_concurrency::store::heartbeat::{ShareRound, ShareRoundReply};
use sluicegate_concurrency::store::{CounterStore, FleetStore, StoreFailure, StoreReply};
use sluicegate_kernel::coordinator::{Coordinator, CoordinatorIncarnation};
use sluicegate_kernel::units::{Incarnation, Nanos, Share};
use sluicegate_lease::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate_lease::store::{Charges, Outcomes};

/// A store with one concurrency limit, whose clock is the clock of the simulation.
#[derive(Debug, Default)]
pub struct CoordinatorStore(Mutex<Coordinator>);

impl CoordinatorStore {
    pub fn limit(&self) -> Share {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).limit()
    }
}

impl CounterStore for CoordinatorStore {
    fn charge<'a>(&'a self, _now: Nanos, _charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        unreachable!("the simulation has no rate limits")
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _now: Nanos,
        _message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        unreachable!("the simulation has no leases")
    }
}

impl FleetStore for CoordinatorStore {
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        let incarnation = CoordinatorIncarnation {
            is_settled: true,
            ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
        };
        let mut coordinator = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let replies = round.reports.iter().map(|report| {
            Some(coordinator.apply_heartbeat(now, &incarnation, &report.law, &report.heartbeat))
        });
        let replies = replies.collect();
        let incarnation = incarnation.incarnation;
        StoreReply::Ready(Ok(ShareRoundReply { incarnation, store_time: now, replies }))
    }
}

/// The process of one simulated replica.
#[derive(Debug)]
pub struct SimulatedHost {
    pub name: String,
    pub replicas: NonZeroU32,
}

impl Host for SimulatedHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn replicas(&self) -> NonZeroU32 {
        self.replicas
    }

    fn metric_part(&self, _bucket: &[u8], limit: u32) -> u32 {
        limit / self.replicas
    }

    fn departure(&self) -> Option<MembershipHeartbeat> {
        None
    }

    fn count(&self, _event: ConcurrencyEvent<'_>) {}
}
