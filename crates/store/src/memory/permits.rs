//! The permits of strict concurrency limits in the memory store.
//!
//! The code calls `crates/kernel`; `acquire.lua` and `report_permits.lua` do the same in Redis, and tests
//! compare both. Only one process uses this store.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::coordinators::is_same_store;
use crate::fleet_start::FleetState;
use crate::heartbeat::BucketKey;
use crate::kernel::units::Nanos;
use crate::permits::{
    AcquireGate, LimitPermitsReply, PermitReport, PermitTable, PermitTiming, StrictPermitReply,
    StrictPermitRequest,
};

/// The permits of all strict concurrency limits in one store.
///
/// Serialized without the limits, which a store keeps in records of their own
/// ([`StrictLimits::set_limit`], [`StrictLimits::limit`]).
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StrictLimits {
    gate: Option<AcquireGate>,
    /// The store's name (in Redis: its `run_id`) when `gate` was created.
    store: String,
    #[serde(skip)]
    states: HashMap<BucketKey, PermitTable>,
}

impl StrictLimits {
    /// Creates a store that allows acquires at once, as no permit from before the process start
    /// exists.
    #[must_use]
    pub fn settled() -> Self {
        Self { gate: Some(AcquireGate::open()), ..Self::default() }
    }

    /// Sets the permits of one limit.
    pub fn set_limit(&mut self, bucket: BucketKey, permits: PermitTable) {
        self.states.insert(bucket, permits);
    }

    /// Returns the permits of one limit; `None` if it has none.
    #[must_use]
    pub fn limit(&self, bucket: &[u8]) -> Option<&PermitTable> {
        self.states.get(bucket)
    }

    /// Acquires a permit at `now`. `store` is the name of the store: in Redis the `run_id`. A new
    /// name means another store, or a restart. An empty name means an unknown name.
    pub fn acquire(
        &mut self,
        now: Nanos,
        store: &str,
        request: &StrictPermitRequest,
    ) -> StrictPermitReply {
        let mut gate = self.gate_for(now, store, &request.permit.timing);
        let closed_for = gate.closed_for(now, &request.permit.timing);
        self.gate = Some(gate);
        let permits = self.states.entry(request.bucket.clone()).or_default();
        let result = permits.acquire(now, closed_for, &request.permit);
        let held = permits.count();
        self.drop_if_unused(&request.bucket);
        StrictPermitReply { result, held }
    }

    /// Applies a permit report, and returns one reply for each limit.
    pub fn apply_report(
        &mut self,
        now: Nanos,
        store: &str,
        report: &PermitReport,
    ) -> Vec<LimitPermitsReply> {
        let mut gate = self.gate_for(now, store, &report.times);
        gate.closed_for(now, &report.times);
        gate.record_report(now);
        self.gate = Some(gate);
        let mut replies = Vec::new();
        for limit in &report.limits {
            let permits = self.states.entry(limit.bucket.clone()).or_default();
            let changes = if limit.is_claimed {
                let in_use = permits.listed(now, &limit.in_use);
                permits.apply_report(now, &in_use, &limit.released)
            } else {
                permits.apply_report(now, &limit.in_use, &limit.released)
            };
            replies.push(LimitPermitsReply { changes, held: permits.count() });
            self.drop_if_unused(&limit.bucket);
        }
        replies
    }

    /// Returns the knowledge of the store with the name `store`.
    #[must_use]
    pub fn fleet_state(&self, now: Nanos, store: &str) -> FleetState {
        match self.gate {
            None => FleetState::New,
            Some(gate) if gate.is_open(now) && is_same_store(&self.store, store) => {
                FleetState::Settled
            }
            Some(_) => FleetState::Unsettled,
        }
    }

    /// Ends the grace period, because no request is in flight under an earlier state.
    pub fn start_fleet(&mut self, store: &str) {
        store.clone_into(&mut self.store);
        self.gate = Some(AcquireGate::open());
    }

    fn gate_for(&mut self, now: Nanos, store: &str, times: &PermitTiming) -> AcquireGate {
        let known = self.gate.filter(|_| is_same_store(&self.store, store));
        known.unwrap_or_else(|| {
            store.clone_into(&mut self.store);
            AcquireGate::closed(now, times.grace)
        })
    }

    fn drop_if_unused(&mut self, bucket: &BucketKey) {
        if self.states.get(bucket).is_some_and(|permits| permits.last_deadline().is_none()) {
            self.states.remove(bucket);
        }
    }
}
