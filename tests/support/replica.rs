//! A replica of an engine test: an engine with a manual clock, in a fleet of one process.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;

use super::engine::{advance_clock, block_on, publish};
use super::faulty_store::FaultyStore;

pub const START: Nanos = Nanos::from_secs(1_000);

pub const HEARTBEAT: Nanos = Nanos::SECOND;

/// A replica and its permits.
pub struct Replica {
    pub engine: Engine,
    pub membership: Arc<Membership>,
    pub permits: Vec<RequestPermits>,
}

/// The parts of a replica that few tests change.
pub struct ReplicaOptions {
    pub incarnation: Nanos,
    /// The longest wait for a share.
    pub share_timeout: Duration,
    pub max_buckets: usize,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self { incarnation: START, share_timeout: Duration::from_millis(1), max_buckets: 100 }
    }
}

impl Replica {
    /// A replica whose key `k` has the concurrency limit with these fields.
    pub fn new(store: &Arc<FaultyStore>, name: &str, limit: &str) -> Self {
        Self::with(store, name, limit, &ReplicaOptions::default())
    }

    pub fn with_max_buckets(
        store: &Arc<FaultyStore>,
        name: &str,
        limit: &str,
        max_buckets: usize,
    ) -> Self {
        Self::with(store, name, limit, &ReplicaOptions { max_buckets, ..Default::default() })
    }

    pub fn with(
        store: &Arc<FaultyStore>,
        name: &str,
        limit: &str,
        options: &ReplicaOptions,
    ) -> Self {
        let membership = membership(name);
        let pace = SharePace { heartbeat: HEARTBEAT, share_duration: Nanos::from_secs(5) };
        let fleet = FleetReporter::new(
            membership.clone(),
            options.incarnation,
            pace,
            options.share_timeout,
        );
        let engine = Engine::new(Clock::manual(START), store.clone(), DecisionPolicy::default());
        let engine = engine.with_max_buckets(options.max_buckets, 0).with_fleet(Arc::new(fleet));
        let replica = Self { engine, membership, permits: Vec::new() };
        replica.publish(limit);
        replica
    }

    pub fn without_fleet() -> Self {
        let store = FaultyStore::new();
        let engine = Engine::new(Clock::manual(START), store, DecisionPolicy::default());
        Self { engine, membership: membership("a"), permits: Vec::new() }
    }

    pub fn publish(&self, limit: &str) {
        publish(&self.engine, "", &format!("  [{{key: k, concurrency: {{{limit}}}}}]\n"));
    }

    /// Keeps the permits of an admitted request.
    pub fn keep(&mut self, admitted: AdmissionOutcome) -> bool {
        let permits = admitted_permits(admitted);
        let is_some = permits.is_some();
        self.permits.extend(permits);
        is_some
    }

    pub fn finish(&mut self, count: usize) {
        for permits in self.permits.drain(..count) {
            permits.release(RequestOutcome::Success, None);
        }
    }

    pub fn report(&self) {
        block_on(self.engine.report_once());
    }

    pub fn advance(&self, by: Nanos) {
        advance_clock(&self.engine, by);
    }

    pub fn now(&self) -> Nanos {
        self.engine.clock().now()
    }
}

/// One of four expected replicas.
fn membership(name: &str) -> Arc<Membership> {
    Arc::new(Membership::new(name, 1, NonZeroU32::new(4).unwrap()))
}

pub fn admitted_permits(admitted: AdmissionOutcome) -> Option<RequestPermits> {
    match admitted {
        AdmissionOutcome::Decided(decision, permits) if decision.verdict == Verdict::Allow => {
            Some(permits)
        }
        _ => None,
    }
}

/// Advances all clocks, then sends all reports.
pub fn advance_and_report(fleet: &[&Replica], by: Nanos) {
    for replica in fleet {
        replica.advance(by);
    }
    for replica in fleet {
        replica.report();
    }
}
