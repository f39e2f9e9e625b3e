//! The coordinators of shared concurrency limits in the memory store, and the fleet table: a record
//! of each replica incarnation.
//!
//! The code calls `crates/kernel`; `heartbeat.lua` does the same in Redis. Tests compare the script
//! with this store. Only replicas in one process can share it.
//!
//! Guarantees:
//! - A replica is in the fleet table before its share reports are applied.
//!
//! Not covered:
//! - Dropping the state of unused limits: it stays until the process ends.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::kernel::coordinator::incarnation::{IncarnationRecord, may_list_only_dead};
use crate::kernel::coordinator::{Coordinator, CoordinatorIncarnation, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId};
use crate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};

/// The state of all shared concurrency limits in one store.
///
/// Serialized without the limits, which a store keeps in records of their own
/// ([`Coordinators::set_limit`], [`Coordinators::limit`]).
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Coordinators {
    incarnation: Option<CoordinatorIncarnation>,
    /// The store's name (in Redis: its `run_id`) when the incarnation began.
    store: String,
    /// The instant since which the fleet table contains every replica that reported.
    complete_since: Nanos,
    /// The instant of the last share round of any replica, and the same instant when the
    /// incarnation began.
    last_report: Option<Nanos>,
    known_until: Option<Nanos>,
    fleet_table: BTreeMap<(ReplicaId, Incarnation), FleetTableRecord>,
    #[serde(skip)]
    states: HashMap<BucketKey, Coordinator>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FleetTableRecord {
    reported_at: Nanos,
    /// The longest time after `reported_at` for which a share of this replica may be in use.
    longest_use: Nanos,
    granted_by: Option<Incarnation>,
}

impl Coordinators {
    /// Creates a store without a grace period. No share from before the start of the process can
    /// exist in it.
    #[must_use]
    pub fn settled() -> Self {
        let current = CoordinatorIncarnation {
            is_settled: true,
            ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
        };
        Self { incarnation: Some(current), ..Self::default() }
    }

    /// Sets the state of one limit.
    pub fn set_limit(&mut self, bucket: BucketKey, state: Coordinator) {
        self.states.insert(bucket, state);
    }

    /// Returns the state of one limit.
    #[must_use]
    pub fn limit(&self, bucket: &[u8]) -> Option<&Coordinator> {
        self.states.get(bucket)
    }

    /// Applies the share round `round` at `now`. `store` is the name of the store, which is the
    /// `run_id` in Redis.
    ///
    /// A new name means another store, or the same store after a restart. An empty name means that
    /// the caller does not know the name.
    pub fn apply_round(&mut self, now: Nanos, store: &str, round: &ShareRound) -> ShareRoundReply {
        let mut current = self.incarnation_for(now, store, round.longest_use);
        self.update_table(now, &mut current, round);
        let replies = round
            .reports
            .iter()
            .map(|report| Some(self.apply_report(now, &mut current, report)))
            .collect();
        self.incarnation = Some(current);
        let store_time = Nanos(now.0.saturating_sub(now.0 % Nanos::MICRO.0));
        ShareRoundReply { incarnation: current.incarnation, store_time, replies }
    }

    fn incarnation_for(
        &mut self,
        now: Nanos,
        store: &str,
        longest_use: Nanos,
    ) -> CoordinatorIncarnation {
        if let Some(known) = self.incarnation.filter(|_| is_same_store(&self.store, store)) {
            return known;
        }
        store.clone_into(&mut self.store);
        self.known_until = self.last_report;
        if may_list_only_dead(self.last_report, longest_use, now) {
            self.complete_since = now;
        }
        begin_incarnation(self.incarnation, now)
    }

    fn update_table(
        &mut self,
        now: Nanos,
        current: &mut CoordinatorIncarnation,
        round: &ShareRound,
    ) {
        let IncarnationRecord { replica, incarnation, coordinator_incarnation } = round.record;
        let name = (replica, incarnation);
        let record = FleetTableRecord {
            reported_at: now,
            longest_use: round.longest_use,
            granted_by: coordinator_incarnation,
        };
        let is_new = self.fleet_table.insert(name, record).is_none();
        if !current.is_settled && current.has_lost_state(self.known_until, round.last_reply_at) {
            self.complete_since = current.started_at;
        }
        self.last_report = Some(now);
        if round.is_leaving {
            self.fleet_table.remove(&name);
        }
        if is_new || !current.is_settled {
            self.fleet_table.retain(|_, record| now < record.reported_at.plus(record.longest_use));
        }
        // The last report of a replica that shuts down must not end the grace period: it may be the
        // first report after the store lost its state.
        if !current.is_settled && !round.is_leaving {
            let records: Vec<IncarnationRecord> =
                self.fleet_table.iter().map(|(name, record)| record.named(*name)).collect();
            let longest = self.fleet_table.values().map(|record| record.longest_use).max();
            let longest = longest.unwrap_or(round.longest_use);
            current.settle(now, longest, self.complete_since, &records);
        }
    }

    fn apply_report(
        &mut self,
        now: Nanos,
        current: &mut CoordinatorIncarnation,
        report: &ShareReport,
    ) -> HeartbeatReply {
        let state = self.states.entry(report.bucket.clone()).or_default();
        let reply = state.apply_heartbeat(now, current, &report.law, &report.heartbeat);
        if reply == HeartbeatReply::StateLost {
            *current = begin_incarnation(Some(*current), now);
            // The store lost the state of the limit, but not the fleet table.
            self.known_until = Some(now);
        }
        reply
    }
}

impl FleetTableRecord {
    const fn named(&self, (replica, incarnation): (ReplicaId, Incarnation)) -> IncarnationRecord {
        IncarnationRecord { replica, incarnation, coordinator_incarnation: self.granted_by }
    }
}

/// Returns true if an incarnation that began under the first store name continues under the second.
///
/// A caller that does not know the name must not end the incarnation. Otherwise callers with and
/// without the name would alternately restart it, and no request would ever be allowed.
pub(super) fn is_same_store(recorded_name: &str, current_name: &str) -> bool {
    current_name.is_empty() || recorded_name == current_name
}

/// Begins the next incarnation. Its number is `now` in microseconds, or the previous number plus 1
/// if that is larger.
fn begin_incarnation(before: Option<CoordinatorIncarnation>, now: Nanos) -> CoordinatorIncarnation {
    let after = before.map_or(0, |before| before.incarnation.0.saturating_add(1));
    CoordinatorIncarnation::start(Incarnation(after.max(now.0 / Nanos::MICRO.0)), now)
}
