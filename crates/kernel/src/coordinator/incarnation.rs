//! The coordinator's incarnation: detection of lost state, and the grace period after the loss.
//!
//! A store has one coordinator incarnation for all limits. While it exists, a limit without state
//! is unused: its state was not lost. The store starts a new incarnation if a heartbeat finds none,
//! or if an older copy replaced the store's data, for example after a failover.
//!
//! A membership that is older than the incarnation counts as the complete list of replicas, except
//! in two cases:
//! - All listed replicas may be dead ([`may_list_only_dead`]).
//! - A replica received a later reply than the membership records
//!   ([`CoordinatorIncarnation::has_lost_state`]).
//!
//! The grace period ends when all replicas confirmed this incarnation, or when the longest
//! lifetime of a share and its requests has passed.
//!
//! Guarantees:
//! - The grace period ends only when no share from an earlier incarnation is in use.
//!
//! Assumes:
//! - A replica is in the membership before its first heartbeat.
//! - The membership has one record for each incarnation of a replica.
//! - A record stays for [`ShareTiming::longest_use`] after the last heartbeat, unless the replica
//!   left the fleet.
//! - The store rejects a heartbeat of a replica without a record.
//! - The heartbeat of a leaving replica does not call [`CoordinatorIncarnation::settle`].
//! - The caller's `longest_use` covers every valid [`ShareTiming`], not only those in use.
//!
//! Not covered:
//! - The membership itself.

use serde::{Deserialize, Serialize};

use super::config::ShareTiming;
use crate::units::{Incarnation, Nanos, ReplicaId};

/// The period of recent writes that a Redis failover may lose.
///
/// It also bounds the age difference between the membership records of live replicas.
pub const FAILOVER_LOSS: Nanos = Nanos(3 * Nanos::SECOND.0);

/// Returns `true` if all replicas in the membership may be dead, so it may lack the live ones.
///
/// The store received its last heartbeat at `last_heartbeat`. `longest_use` is the largest
/// [`ShareTiming::longest_use`].
#[must_use]
pub fn may_list_only_dead(last_heartbeat: Option<Nanos>, longest_use: Nanos, now: Nanos) -> bool {
    last_heartbeat.is_none_or(|heard| heard.plus(longest_use) <= now.plus(FAILOVER_LOSS))
}

/// One incarnation of the coordinator, stored beside the states of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CoordinatorIncarnation {
    /// The number of this incarnation, never used before.
    pub incarnation: Incarnation,
    /// The start of this incarnation, on the store's clock.
    pub started_at: Nanos,
    /// Set once the whole fleet confirmed that no share of an earlier incarnation is in use.
    pub is_settled: bool,
}

/// One incarnation of a replica, as the membership records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IncarnationRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The coordinator incarnation that made all grants of this replica; `None` without a common
    /// one.
    pub coordinator_incarnation: Option<Incarnation>,
}

impl CoordinatorIncarnation {
    /// A new coordinator incarnation, at the start of its grace period.
    #[must_use]
    pub const fn start(incarnation: Incarnation, now: Nanos) -> Self {
        Self { incarnation, started_at: now, is_settled: false }
    }

    /// Ends the grace period if the membership is complete and every record names this incarnation.
    ///
    /// The membership exists since `membership_since`. `longest_use` is the largest
    /// [`ShareTiming::longest_use`] in the store. Cost: O(records) until the grace period has
    /// ended.
    ///
    /// A recent heartbeat is no evidence: it may have been sent before the loss of state and
    /// arrived after it. Only a record with this incarnation proves that the replica received a
    /// reply from it.
    pub fn settle(
        &mut self,
        now: Nanos,
        longest_use: Nanos,
        membership_since: Nanos,
        fleet: &[IncarnationRecord],
    ) {
        // If the membership was lost too, it lists only the replicas that returned first.
        let is_complete = membership_since.plus(longest_use) <= now;
        let under =
            |record: &IncarnationRecord| record.coordinator_incarnation == Some(self.incarnation);
        self.is_settled |= is_complete && fleet.iter().all(under);
    }

    /// Returns `true` if a replica received a reply that is missing in this store's state.
    ///
    /// `last_reply` is the instant of the replica's last reply; only replies from before this
    /// incarnation count. The state reaches up to `known_until`, and [`FAILOVER_LOSS`] more is
    /// tolerated. If a reply is missing, then other replicas may be missing too.
    #[must_use]
    pub fn has_lost_state(&self, known_until: Option<Nanos>, last_reply: Option<Nanos>) -> bool {
        let is_lost = |at| {
            at < self.started_at && known_until.is_none_or(|knew| knew.plus(FAILOVER_LOSS) < at)
        };
        last_reply.is_some_and(is_lost)
    }

    /// Returns `true` while a share from an earlier incarnation may be in use.
    #[must_use]
    pub fn is_in_grace(&self, now: Nanos, timing: &ShareTiming) -> bool {
        !self.is_settled && now < self.started_at.plus(timing.longest_use())
    }
}
