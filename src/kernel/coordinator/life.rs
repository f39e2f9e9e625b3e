//! The coordinator's incarnation: detection of lost state, and the grace period after it.
//!
//! A store has one incarnation for all limits, so a limit without state is known to be unused. The
//! store starts a new incarnation if it finds none, or if its state was replaced by an older one.
//!
//! A membership table from before the incarnation counts as complete, with two
//! exceptions. All its replicas may be dead ([`lists_nobody`]), or a replica
//! received a later reply than the table records ([`Life::has_lost`]).
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
//! - A record stays for [`Terms::longest`] after the last heartbeat, unless the replica left.
//! - A heartbeat of a replica without a record is rejected.
//! - A leaving replica does not call [`Life::settle`].
//! - `longest` covers every possible timing, not only those in use.
//!
//! Not covered:
//! - The membership table itself.

use super::terms::Terms;
use crate::kernel::units::{Incarnation, MemberId, Nanos};

/// The period of recent writes that a failover may lose.
///
/// It also bounds the age difference between the records of live replicas.
pub const MOMENT: Nanos = Nanos(3 * Nanos::SECOND.0);

/// Returns `true` if all listed replicas may be dead, so the table is no evidence.
///
/// The store's last heartbeat was at `heard`; `longest` is the longest [`Terms::longest`].
#[must_use]
pub fn lists_nobody(heard: Option<Nanos>, longest: Nanos, now: Nanos) -> bool {
    heard.is_none_or(|heard| heard.plus(longest) <= now.plus(MOMENT))
}

/// One incarnation of the coordinator, stored beside the states of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    /// Its number, never used before.
    pub incarnation: Incarnation,
    /// Its start, on the store's clock.
    pub born: Nanos,
    /// Set once the whole fleet confirmed that no share of an earlier incarnation is in use.
    pub settled: bool,
}

/// One incarnation of a replica, as the membership table records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The replica.
    pub member: MemberId,
    /// The replica's incarnation.
    pub life: Incarnation,
    /// The coordinator incarnation of all its grants, if they have the same one.
    pub under: Option<Incarnation>,
}

impl Life {
    /// A new incarnation, in its grace period.
    #[must_use]
    pub const fn begin(incarnation: Incarnation, now: Nanos) -> Self {
        Self { incarnation, born: now, settled: false }
    }

    /// Ends the grace period if the table is complete and every live record names this incarnation.
    ///
    /// The table exists since `since`; `longest` is the longest
    /// [`Terms::longest`] in the store. Cost: O(records) until settled.
    ///
    /// A recent heartbeat is no evidence: it may have been sent before the loss and arrived
    /// after it. Only a record with this incarnation proves that the replica received its reply.
    pub fn settle(&mut self, now: Nanos, longest: Nanos, since: Nanos, fleet: &[Record]) {
        // A table that was lost too lists only the replicas that returned first.
        let complete = since.plus(longest) <= now;
        let under = |record: &Record| record.under == Some(self.incarnation);
        self.settled |= complete && fleet.iter().all(under);
    }

    /// Returns `true` if a replica received a reply that this store's state does not include.
    ///
    /// The replica's last reply was at `answered`, from the store before this incarnation. The
    /// state reaches up to `knew`. If a reply is missing, then other replicas may be missing too.
    #[must_use]
    pub fn has_lost(&self, knew: Option<Nanos>, answered: Option<Nanos>) -> bool {
        let is_lost = |at| at < self.born && knew.is_none_or(|knew| knew.plus(MOMENT) < at);
        answered.is_some_and(is_lost)
    }

    /// Returns `true` while a share of an earlier incarnation may be in use.
    #[must_use]
    pub fn is_in_grace(&self, now: Nanos, terms: &Terms) -> bool {
        !self.settled && now < self.born.plus(terms.longest())
    }
}
