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

use crate::kernel::coordinator::incarnation::{IncarnationRecord, may_list_only_dead};
use crate::kernel::coordinator::{Coordinator, CoordinatorIncarnation, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId};
use crate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};

/// The state of all shared concurrency limits in one store.
#[derive(Debug, Default)]
pub struct Coordinators {
    incarnation: Option<CoordinatorIncarnation>,
    /// The store's name (in Redis: its `run_id`) when the incarnation began.
    store: String,
    /// The instant since which the fleet table contains every replica that reported.
    complete_since: Nanos,
    /// The instant of the last share round of any replica, and the same instant when the
    /// incarnation began.
    last_report_at: Option<Nanos>,
    last_report_before: Option<Nanos>,
    fleet_table: BTreeMap<(ReplicaId, Incarnation), FleetTableLine>,
    states: HashMap<BucketKey, Coordinator>,
}

#[derive(Clone, Copy, Debug)]
struct FleetTableLine {
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
        let life = CoordinatorIncarnation {
            is_settled: true,
            ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
        };
        Self { incarnation: Some(life), ..Self::default() }
    }

    /// Applies the share round `round` at `now`. `store` is the name of the store, which is the
    /// `run_id` in Redis.
    ///
    /// A new name means another store, or the same store after a restart. An empty name means that
    /// the caller does not know the name.
    pub fn apply_round(&mut self, now: Nanos, store: &str, round: &ShareRound) -> ShareRoundReply {
        let mut life = self.incarnation_for(now, store, round.longest_use);
        self.update_table(now, &mut life, round);
        let replies = round
            .reports
            .iter()
            .map(|beat| Some(self.apply_report(now, &mut life, beat)))
            .collect();
        self.incarnation = Some(life);
        let at = Nanos(now.0.saturating_sub(now.0 % Nanos::MICRO.0));
        ShareRoundReply { incarnation: life.incarnation, store_time: at, replies }
    }

    fn incarnation_for(
        &mut self,
        now: Nanos,
        store: &str,
        longest: Nanos,
    ) -> CoordinatorIncarnation {
        if let Some(known) = self.incarnation.filter(|_| is_same_store(&self.store, store)) {
            return known;
        }
        store.clone_into(&mut self.store);
        self.last_report_before = self.last_report_at;
        if may_list_only_dead(self.last_report_at, longest, now) {
            self.complete_since = now;
        }
        begin_incarnation(self.incarnation, now)
    }

    fn update_table(&mut self, now: Nanos, life: &mut CoordinatorIncarnation, round: &ShareRound) {
        let ShareRound {
            record:
                IncarnationRecord { replica: member, incarnation: own, coordinator_incarnation: under },
            last_reply_at: answered,
            longest_use: longest,
            ..
        } = *round;
        let said = FleetTableLine { reported_at: now, longest_use: longest, granted_by: under };
        let is_new = self.fleet_table.insert((member, own), said).is_none();
        if !life.is_settled && life.has_lost_state(self.last_report_before, answered) {
            self.complete_since = life.started_at;
        }
        self.last_report_at = Some(now);
        if round.is_leaving {
            self.fleet_table.remove(&(member, own));
        }
        if is_new || !life.is_settled {
            self.fleet_table.retain(|_, line| now < line.reported_at.plus(line.longest_use));
        }
        // The last report of a replica that shuts down must not end the grace period: it may be the
        // first report after the store lost its state.
        if !life.is_settled && !round.is_leaving {
            let record = |((member, life), line): (&(ReplicaId, Incarnation), &FleetTableLine)| {
                IncarnationRecord {
                    replica: *member,
                    incarnation: *life,
                    coordinator_incarnation: line.granted_by,
                }
            };
            let records: Vec<IncarnationRecord> = self.fleet_table.iter().map(record).collect();
            let longest =
                self.fleet_table.values().map(|line| line.longest_use).max().unwrap_or(longest);
            life.settle(now, longest, self.complete_since, &records);
        }
    }

    fn apply_report(
        &mut self,
        now: Nanos,
        life: &mut CoordinatorIncarnation,
        beat: &ShareReport,
    ) -> HeartbeatReply {
        let state = self.states.entry(beat.bucket.clone()).or_default();
        let reply = state.apply_heartbeat(now, life, &beat.law, &beat.heartbeat);
        if reply == HeartbeatReply::StateLost {
            *life = begin_incarnation(Some(*life), now);
            // The store lost the state of the limit, but not the fleet table.
            self.last_report_before = Some(now);
        }
        reply
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
    let after = before.map_or(0, |life| life.incarnation.0.saturating_add(1));
    CoordinatorIncarnation::start(Incarnation(after.max(now.0 / Nanos::MICRO.0)), now)
}
