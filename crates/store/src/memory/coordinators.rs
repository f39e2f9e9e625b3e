//! The coordinators of shared concurrency limits in the memory store, and the fleet table: a record
//! of each replica incarnation.
//!
//! The code calls `crates/kernel`; `heartbeat.lua` does the same in Redis. Tests compare the script
//! with this store. Only one process uses it: the replica, for itself
//! and for the proxies that are connected to it.
//!
//! Guarantees:
//! - A replica is in the fleet table before its share reports are applied.
//!
//! - States without shares are dropped before the number of states doubles, from [`MIN_SWEEP`] on.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::fleet_start::FleetState;
use crate::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};
use crate::kernel::coordinator::incarnation::{IncarnationRecord, may_list_only_dead};
use crate::kernel::coordinator::share_state::ShareState;
use crate::kernel::coordinator::{Coordinator, CoordinatorIncarnation, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId};

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
    /// The number of states at which unused ones are dropped.
    #[serde(skip)]
    sweep_at: usize,
}

/// The number of states below which none is dropped.
const MIN_SWEEP: usize = 10_000;

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

    /// Returns the knowledge of the store with the name `store`.
    #[must_use]
    pub fn fleet_state(&self, store: &str) -> FleetState {
        match self.incarnation {
            None => FleetState::New,
            Some(current) if current.is_settled && is_same_store(&self.store, store) => {
                FleetState::Settled
            }
            Some(_) => FleetState::Unsettled,
        }
    }

    /// Ends the grace period, because no request is in flight under an earlier state.
    pub fn start_fleet(&mut self, now: Nanos, store: &str) {
        let current = self.incarnation_for(now, store, Nanos(0));
        self.incarnation = Some(CoordinatorIncarnation { is_settled: true, ..current });
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
        self.drop_unused_states(now);
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

impl Coordinators {
    /// Drops the states of limits that no replica uses, if there are many states.
    fn drop_unused_states(&mut self, now: Nanos) {
        if self.states.len() < self.sweep_at.max(MIN_SWEEP) {
            return;
        }
        let longest_use = self.fleet_table.values().map(|record| record.longest_use).max();
        let longest_use = longest_use.unwrap_or_default();
        let is_used = |share: &ShareState| now < share.expires_at.plus(longest_use);
        self.states.retain(|_, state| state.share_states.iter().any(is_used));
        self.sweep_at = self.states.len().saturating_mul(2);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::coordinator::{CoordinatorConfig, DemandCurve, Heartbeat, ShareTiming};
    use crate::kernel::units::Share;

    /// The first report about one limit.
    fn round(bucket: usize) -> ShareRound {
        let [heartbeat, share_lifetime, margin, max_duration] = [1, 5, 1, 60].map(Nanos::from_secs);
        let timing = ShareTiming { heartbeat, share_lifetime, margin, max_duration };
        let [min, start, max] = [1, 10, 10].map(Share);
        let law = CoordinatorConfig::new(timing, min, start, max).unwrap();
        let (replica, incarnation) = (ReplicaId(1), Incarnation(1));
        let heartbeat = Heartbeat {
            replica,
            incarnation,
            number: 1,
            grant_in_use: None,
            in_flight: Share(0),
            demand: Share(1),
            curve: DemandCurve::EMPTY,
            vote: None,
            is_leaving: false,
            is_claimed: false,
        };
        ShareRound {
            record: IncarnationRecord { replica, incarnation, coordinator_incarnation: None },
            last_reply_at: None,
            longest_use: timing.longest_use(),
            is_leaving: false,
            reports: vec![ShareReport { bucket: name(bucket), law, heartbeat }],
        }
    }

    fn name(bucket: usize) -> BucketKey {
        bucket.to_be_bytes()[..].into()
    }

    #[test]
    fn states_are_dropped_only_without_shares() {
        let mut coordinators = Coordinators::settled();
        let start = Nanos::from_secs(1_000);
        for bucket in 0..MIN_SWEEP {
            coordinators.apply_round(start, "", &round(bucket));
        }
        // All shares are in use: none is dropped.
        coordinators.apply_round(start.plus(Nanos::SECOND), "", &round(MIN_SWEEP));
        assert!(coordinators.limit(&name(0)).is_some());
        let later = start.plus(Nanos::from_secs(600));
        for bucket in MIN_SWEEP..3 * MIN_SWEEP {
            coordinators.apply_round(later, "", &round(bucket));
        }
        assert!(coordinators.limit(&name(0)).is_none());
        assert!(coordinators.limit(&name(3 * MIN_SWEEP - 1)).is_some());
    }
}
