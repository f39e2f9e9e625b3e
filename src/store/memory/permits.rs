//! The permits of strict concurrency limits in the memory store.
//!
//! The code calls `crates/kernel`; `acquire.lua` and `report_permits.lua` do the same in Redis. Tests compare
//! the scripts with this store. Only replicas in one process can share it.
//!
//! Guarantees:
//! - A limit without permits uses no memory.

use std::collections::HashMap;

use super::coordinators::is_same_store;
use crate::kernel::units::Nanos;
use crate::store::heartbeat::BucketKey;
use crate::store::permits::{
    AcquireGate, LimitPermitsReply, PermitReport, PermitTable, PermitTiming, StrictPermitReply,
    StrictPermitRequest,
};

/// The permits of all strict concurrency limits in one store.
#[derive(Debug, Default)]
pub struct StrictLimits {
    incarnation: Option<AcquireGate>,
    /// The store's name (in Redis: its `run_id`) when the incarnation began.
    store: String,
    states: HashMap<BucketKey, PermitTable>,
}

impl StrictLimits {
    /// Creates a store that allows acquires at once. No permit from before the start of the process
    /// can exist in it.
    #[must_use]
    pub fn settled() -> Self {
        Self { incarnation: Some(AcquireGate::open()), ..Self::default() }
    }

    /// Acquires a permit at `now`. `store` is the name of the store, which is the `run_id` in
    /// Redis.
    ///
    /// A new name means another store, or the same store after a restart. An empty name means that
    /// the caller does not know the name.
    pub fn acquire(
        &mut self,
        now: Nanos,
        store: &str,
        request: &StrictPermitRequest,
    ) -> StrictPermitReply {
        let mut life = self.incarnation_for(now, store, &request.permit.timing);
        let closed_for = life.closed_for(now, &request.permit.timing);
        self.incarnation = Some(life);
        let permits = self.states.entry(request.bucket.clone()).or_default();
        let acquired = permits.acquire(now, closed_for, &request.permit);
        let held = permits.count();
        self.drop_if_unused(&request.bucket);
        StrictPermitReply { result: acquired, held }
    }

    /// Applies the permit report `round`, and returns one reply for each limit.
    pub fn apply_report(
        &mut self,
        now: Nanos,
        store: &str,
        round: &PermitReport,
    ) -> Vec<LimitPermitsReply> {
        let mut life = self.incarnation_for(now, store, &round.times);
        life.closed_for(now, &round.times);
        life.record_report(now);
        self.incarnation = Some(life);
        let mut replies = Vec::new();
        for told in &round.limits {
            let permits = self.states.entry(told.bucket.clone()).or_default();
            let found = permits.apply_report(now, &told.in_use, &told.released);
            replies.push(LimitPermitsReply { changes: found, held: permits.count() });
            self.drop_if_unused(&told.bucket);
        }
        replies
    }

    fn incarnation_for(&mut self, now: Nanos, store: &str, times: &PermitTiming) -> AcquireGate {
        let known = self.incarnation.filter(|_| is_same_store(&self.store, store));
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
