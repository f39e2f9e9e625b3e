//! A memory store that the engine treats as remote: a check on a lease balance does not call it.

use sluicegate::kernel::units::Nanos;
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::MemoryStore;
use sluicegate::store::{
    AuditStore, BudgetStore, Charges, CounterStore, FleetStore, Outcomes, StoreReply,
};

#[derive(Debug)]
pub(crate) struct RemoteMemory(pub(crate) MemoryStore);

impl CounterStore for RemoteMemory {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.0.charge(now, charges)
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.0.exchange_lease_message(now, message)
    }
}

impl AuditStore for RemoteMemory {}

impl BudgetStore for RemoteMemory {}

impl FleetStore for RemoteMemory {}
