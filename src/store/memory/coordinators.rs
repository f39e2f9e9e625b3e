//! The coordinators of fleet-wide concurrency limits, their incarnation, and the fleet table.
//!
//! This is the kernel's step; `heartbeat.lua` is the same step in Redis. Only
//! replicas in one process share this store. Tests compare the script with it.
//!
//! Guarantees:
//! - A replica has a line in the table before its reports are applied.
//!
//! Not covered:
//! - Dropping unused limits: they stay until the process ends.

use std::collections::{BTreeMap, HashMap};

use crate::kernel::coordinator::incarnation::{IncarnationRecord, may_list_only_dead};
use crate::kernel::coordinator::{Coordinator, CoordinatorIncarnation, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId};
use crate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};

/// The fleet-wide concurrency limits of one store.
#[derive(Debug, Default)]
pub struct Coordinators {
    incarnation: Option<CoordinatorIncarnation>,
    /// The name of the store when the incarnation began.
    store: String,
    /// The instant since which the table is complete.
    complete_since: Nanos,
    /// The instant of the last report of any replica, and its value when the incarnation began.
    last_report_at: Option<Nanos>,
    last_report_before: Option<Nanos>,
    fleet_table: BTreeMap<(ReplicaId, Incarnation), FleetTableLine>,
    states: HashMap<BucketKey, Coordinator>,
}

#[derive(Clone, Copy, Debug)]
struct FleetTableLine {
    reported_at: Nanos,
    /// The time after `reported_at` in which a share of this replica may be in use.
    longest_use: Nanos,
    granted_by: Option<Incarnation>,
}

impl Coordinators {
    /// Creates a store in which no earlier share can exist, because it began with the process.
    #[must_use]
    pub fn settled() -> Self {
        let life = CoordinatorIncarnation {
            is_settled: true,
            ..CoordinatorIncarnation::start(Incarnation(1), Nanos(0))
        };
        Self { incarnation: Some(life), ..Self::default() }
    }

    /// Applies `round` at `now` in the store with the name `store`.
    ///
    /// A new name means another store, or the same store after a
    /// restart. An empty name means that the caller does not know it.
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
        // A leaving replica proves nothing: it may be the
        // first to reach a store that lost its state.
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
            // The store lost the limit's state, but not the table.
            self.last_report_before = Some(now);
        }
        reply
    }
}

/// Returns true if an incarnation that began in the store `known` continues in the store `named`.
///
/// A caller without the name must not end the incarnation. Otherwise callers with and
/// without the name would restart it in turns, and no request would ever be allowed.
pub(super) fn is_same_store(known: &str, named: &str) -> bool {
    named.is_empty() || known == named
}

/// Begins the incarnation after `before`. Its number is the
/// instant in microseconds, but larger than any number before.
fn begin_incarnation(before: Option<CoordinatorIncarnation>, now: Nanos) -> CoordinatorIncarnation {
    let after = before.map_or(0, |life| life.incarnation.0.saturating_add(1));
    CoordinatorIncarnation::start(Incarnation(after.max(now.0 / Nanos::MICRO.0)), now)
}
