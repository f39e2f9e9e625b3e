//! The Redis store: counters in a Redis that replicas share.
//!
//! Guarantees:
//! - One script call decides a check with any number of charges.
//! - Checks that arrive during a store call share the next call.
//! - The Lua scripts compute the same numbers as the Rust code in `crates/kernel`.
//! - Every charge has an outcome within the deadline: from Redis, or a [`StoreFailure`].
//! - A charge is sent at most once, and never after its caller stopped waiting.
//! - All instants are those of the clock of Redis, not of the replica.
//! - A replica starts and serves without Redis, and keeps reconnecting.
//! - No error and no log line contains the password.
//! - In a Cluster, a check makes one call for each slot.
//! - Behind a proxy, each call has one counter or one budget: the proxy routes it by its first key.
//! - A check in several slots is charged as with `charge: each`: no script decides over them.
//!
//! Not covered:
//! - The fallback for a failed charge (`engine::decide::fallback`).
//! - Several connections to one Redis process: its single thread would not reply faster.

mod audit;
mod batch;
mod batch_calls;
mod budgets;
mod call_error;
pub mod charge_call;
mod client;
mod cluster;
pub mod codec;
mod connect_help;
mod connection;
mod connection_signals;
pub(crate) mod files;
mod fleet_start;
mod fleet_store;
mod hash_reader;
pub mod inspect;
mod keeper;
mod link;
pub mod membership;
mod open;
mod options;
mod outcome;
mod permits;
mod redirect;
pub mod reference;
mod relay;
mod route;
mod script;
mod sentinel;
mod server_address;
mod server_location;
mod slot_map;
mod slot_parts;
mod store_group;
pub(crate) mod tls;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::lease::{LeaseMessage, LeaseOutcome};
use super::stats::{ConnectionCounter, StoreStats};
use super::{Charge, Charges, CounterStore, Outcomes, StoreFailure, StoreReply};
use crate::kernel::units::Nanos;
use batch::Batcher;
use codec::lease;
pub use hash_reader::HashReader;
pub use options::{
    Address, Batching, ClientIdentity, Password, ProxyMode, RedisOptions, RedisTls, RedisTopology,
    SentinelOptions,
};
use outcome::{all_failed, decode_outcomes, log_invalid_reply};
use route::Route;
pub use script::{
    ACQUIRE_SCRIPT, BUDGET_SCRIPT, CHARGE_SCRIPT, HEARTBEAT_SCRIPT, LEASE_SCRIPT,
    PERMIT_REPORT_SCRIPT,
};
use slot_parts::{fail_stale_parts, split_by_slot};
pub use store_group::StoreGroup;

/// A [`CounterStore`] whose counters are in Redis.
#[derive(Debug)]
pub struct RedisStore {
    route: Route,
    check_batcher: Arc<Batcher<codec::PackedCheck>>,
    lease_batcher: Arc<Batcher<lease::PackedMessage>>,
    key_prefix: String,
    call_timeout: Duration,
    connection_counter: Arc<ConnectionCounter>,
}

impl RedisStore {
    /// Returns a store that is not connected yet, and the task that
    /// keeps it connected. Every charge fails unless that task runs.
    pub fn new(options: RedisOptions) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (key_prefix, deadline) = (options.key_prefix.clone(), options.call_timeout);
        let batching = options.batching;
        let connections = Arc::clone(&options.connection_counter);
        let (route, kept) = Route::new(options);
        let calls = Batcher::new(route.clone(), deadline, batching);
        let messages = Batcher::new(route.clone(), deadline, batching);
        let redis = Self {
            route,
            check_batcher: calls,
            lease_batcher: messages,
            key_prefix,
            call_timeout: deadline,
            connection_counter: connections,
        };
        (redis, kept)
    }

    /// Returns the Cluster slot of each charge's key; behind a proxy, the number of its counter.
    /// With one server: a single 0 for all charges.
    fn slots_of(&self, charges: &Charges) -> SmallVec<[u16; 2]> {
        if !self.route.has_several_servers() {
            return SmallVec::from_elem(0, 1);
        }
        let prefix = self.key_prefix.as_bytes();
        let key = |charge: &Charge| codec::counter_key(&charge.key, charge.placement, prefix);
        let keys: SmallVec<[Vec<u8>; 2]> = charges.list.iter().map(key).collect();
        self.route.group_keys(&keys)
    }

    async fn charge_slot(&self, slot: u16, charges: &Charges) -> Outcomes {
        let packed_check = codec::pack(charges, self.key_prefix.as_bytes());
        let results = self.check_batcher.submit(slot, packed_check).await;
        results
            .and_then(|said| decode_outcomes(charges, &said))
            .unwrap_or_else(|c| all_failed(charges, c))
    }

    /// Sends the charges of each slot in one call, to all slots concurrently. Each slot decides its
    /// charges independently.
    async fn charge_each_slot(&self, charges: &Charges, slots: SmallVec<[u16; 2]>) -> Outcomes {
        let parts = split_by_slot(charges, &slots);
        let calls = parts.iter().map(|part| self.charge_slot(part.slot, &part.charges));
        let mut outcomes = all_failed(charges, StoreFailure::InvalidReply);
        for (part, answered) in parts.iter().zip(join_all(calls).await) {
            part.write_to(answered, &mut outcomes);
        }
        fail_stale_parts(charges.mode, &mut outcomes);
        outcomes
    }

    async fn send_lease_message(
        &self,
        slot: u16,
        message: &LeaseMessage,
        packed: lease::PackedMessage,
    ) -> LeaseOutcome {
        let raw_result = self.lease_batcher.submit(slot, packed).await;
        let lent = raw_result.and_then(|said| {
            lease::read(message, &said).map_err(|refused| log_invalid_reply(&refused))
        });
        lent.unwrap_or_else(LeaseOutcome::Failed)
    }
}

impl CounterStore for RedisStore {
    fn charge<'a>(&'a self, _now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        if charges.list.is_empty() {
            return StoreReply::Ready(Outcomes::new());
        }
        if charge_call::MAX_CHARGES < charges.list.len() {
            return StoreReply::Ready(all_failed(charges, StoreFailure::Overloaded));
        }
        let slots = self.slots_of(charges);
        let first = slots.first().copied().unwrap_or_default();
        if slots.iter().any(|slot| *slot != first) {
            return StoreReply::Pending(Box::pin(self.charge_each_slot(charges, slots)));
        }
        match self.route.connection(first) {
            Ok(_) => StoreReply::Pending(Box::pin(self.charge_slot(first, charges))),
            Err(cause) => StoreReply::Ready(all_failed(charges, cause)),
        }
    }

    fn node_of(&self, _now: Nanos, charge: &Charge) -> u32 {
        if !self.route.has_several_servers() {
            return 0;
        }
        let key = codec::counter_key(&charge.key, charge.placement, self.key_prefix.as_bytes());
        codec::cluster_slot(&key).into()
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        let packed = lease::pack(message, self.key_prefix.as_bytes(), None);
        let slot = self.route.slot_of(&packed.keys[0]);
        match self.route.connection(slot) {
            Ok(_) => StoreReply::Pending(Box::pin(self.send_lease_message(slot, message, packed))),
            Err(cause) => StoreReply::Ready(LeaseOutcome::Failed(cause)),
        }
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        self.lease_batcher.send_together(begin);
    }

    fn max_wait(&self) -> Option<Nanos> {
        u64::try_from(self.call_timeout.as_nanos()).ok().map(Nanos)
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.route.outage_cause()
    }

    fn stats(&self) -> StoreStats {
        StoreStats { connections: Some(self.connection_counter.counts()), ..StoreStats::default() }
    }
}
