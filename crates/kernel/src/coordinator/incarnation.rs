//! The coordinator's incarnation: detection of lost state, and the grace period after it.
//!
//! A store has one incarnation for all limits, so a limit without state is known to be unused. The
//! store starts a new incarnation if it finds none, or if its state was replaced by an older one.
//!
//! A membership table from before the incarnation counts as complete, with two
//! exceptions. All its replicas may be dead ([`may_list_only_dead`]), or a replica
//! received a later reply than the table records ([`CoordinatorIncarnation::has_lost_state`]).
//!
//! The grace period ends when all replicas confirmed this incarnation, or when the longest
//! lifetime of a share and its requests has passed.
//!
//! Guarantees:
//! - The grace period ends only when no share of an earlier incarnation is in use.
//!
//! Assumes:
//! - A replica is in the membership table before its first heartbeat.
//! - The table has one record for each incarnation of a replica.
//! - A record stays for [`ShareTiming::longest_use`] after the last heartbeat, unless the replica left.
//! - A heartbeat of a replica without a record is rejected.
//! - A leaving replica does not call [`CoordinatorIncarnation::settle`].
//! - `longest_use` covers every possible timing, not only those in use.
//!
//! Not covered:
//! - The membership table itself.

use super::config::ShareTiming;
use crate::units::{Incarnation, Nanos, ReplicaId};

/// The period of recent writes that a failover may lose.
///
/// It also bounds the age difference between the records of live replicas.
pub const FAILOVER_LOSS: Nanos = Nanos(3 * Nanos::SECOND.0);

/// Returns `true` if all listed replicas may be dead, so the table is no evidence.
///
/// The store's last heartbeat was at `last_heartbeat`; `longest_use` is the longest [`ShareTiming::longest_use`].
#[must_use]
pub fn may_list_only_dead(last_heartbeat: Option<Nanos>, longest_use: Nanos, now: Nanos) -> bool {
    last_heartbeat.is_none_or(|heard| heard.plus(longest_use) <= now.plus(FAILOVER_LOSS))
}

/// One incarnation of the coordinator, stored beside the states of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorIncarnation {
    /// Its number, never used before.
    pub incarnation: Incarnation,
    /// Its start, on the store's clock.
    pub started_at: Nanos,
    /// Set once the whole fleet confirmed that no share of an earlier incarnation is in use.
    pub is_settled: bool,
}

/// One incarnation of a replica, as the membership table records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IncarnationRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The coordinator incarnation of all its grants, if they have the same one.
    pub coordinator_incarnation: Option<Incarnation>,
}

impl CoordinatorIncarnation {
    /// A new incarnation, in its grace period.
    #[must_use]
    pub const fn start(incarnation: Incarnation, now: Nanos) -> Self {
        Self { incarnation, started_at: now, is_settled: false }
    }

    /// Ends the grace period if the table is complete and every live record names this incarnation.
    ///
    /// The table exists since `since`; `longest_use` is the longest
    /// [`ShareTiming::longest_use`] in the store. Cost: O(records) until settled.
    ///
    /// A recent heartbeat is no evidence: it may have been sent before the loss and arrived
    /// after it. Only a record with this incarnation proves that the replica received its reply.
    pub fn settle(
        &mut self,
        now: Nanos,
        longest_use: Nanos,
        since: Nanos,
        fleet: &[IncarnationRecord],
    ) {
        // A table that was lost too lists only the replicas that returned first.
        let complete = since.plus(longest_use) <= now;
        let under =
            |record: &IncarnationRecord| record.coordinator_incarnation == Some(self.incarnation);
        self.is_settled |= complete && fleet.iter().all(under);
    }

    /// Returns `true` if a replica received a reply that this store's state does not include.
    ///
    /// The replica's last reply was at `last_reply`, from the store before this incarnation. The
    /// state reaches up to `known_until`. If a reply is missing, then other replicas may be missing too.
    #[must_use]
    pub fn has_lost_state(&self, known_until: Option<Nanos>, last_reply: Option<Nanos>) -> bool {
        let is_lost = |at| {
            at < self.started_at && known_until.is_none_or(|knew| knew.plus(FAILOVER_LOSS) < at)
        };
        last_reply.is_some_and(is_lost)
    }

    /// Returns `true` while a share of an earlier incarnation may be in use.
    #[must_use]
    pub fn is_in_grace(&self, now: Nanos, timing: &ShareTiming) -> bool {
        !self.is_settled && now < self.started_at.plus(timing.longest_use())
    }
}
