//! The network between a replica and the store: a `CounterStore` whose replies the simulation
//! delivers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sluicegate::kernel::units::{Nanos, Share};
use sluicegate::store::heartbeat::{BucketKey, ShareRound, ShareRoundReply};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    AuditStore, BudgetStore, Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply,
};
use tokio::sync::oneshot;

use crate::simulation::flaws::Flaw;

#[derive(Debug)]
pub struct SentRound {
    pub round: ShareRound,
    pub answer: oneshot::Sender<ShareRoundReply>,
}

/// The connection from one incarnation of a replica to the store.
#[derive(Debug)]
pub struct Wire {
    /// The store for all calls except heartbeats.
    memory: MemoryStore,
    said: Mutex<Vec<SentRound>>,
    flaw: Flaw,
    /// The requests in flight that the last heartbeat of each limit reported.
    before: Mutex<HashMap<BucketKey, Share>>,
}

impl Wire {
    pub fn new(flaw: Flaw) -> Arc<Self> {
        let memory = MemoryStore::new(100, WhenFull::Deny, [0; 16]);
        let (said, before) = Default::default();
        Arc::new(Self { memory, said, flaw, before })
    }

    pub fn take(&self) -> Vec<SentRound> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// The flaw `Torn`: the share round, with the requests in flight of the previous heartbeat.
    fn torn(&self, mut round: ShareRound) -> ShareRound {
        for beat in &mut round.reports {
            let in_flight = beat.heartbeat.in_flight;
            let before = self.before.lock().unwrap().insert(beat.bucket.clone(), in_flight);
            beat.heartbeat.in_flight = before.unwrap_or_default().min(in_flight);
        }
        round
    }
}

impl CounterStore for Wire {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.memory.exchange_lease_message(now, message)
    }
}

impl AuditStore for Wire {}

impl BudgetStore for Wire {}

impl FleetStore for Wire {
    fn report_shares<'a>(
        &'a self,
        _now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        let (answer, heard) = oneshot::channel();
        let round = round.clone();
        let round = if self.flaw == Flaw::Torn { self.torn(round) } else { round };
        self.said.lock().unwrap().push(SentRound { round, answer });
        // The simulation drops the sender if the call gets no reply.
        StoreReply::Pending(Box::pin(async { heard.await.map_err(|_| StoreFailure::Unreachable) }))
    }
}
