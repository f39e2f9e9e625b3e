//! A share round: the share reports of one replica for shared concurrency limits, in one store
//! call.
//!
//! Guarantees:
//! - The store applies a share round atomically, by the store's own clock.
//!
//! Not covered:
//! - When a replica sends share reports and how it applies the replies
//!   ([`crate::limits::reporter`]).
//! - How shares are computed ([`crate::kernel::coordinator`]).

use crate::kernel::coordinator::incarnation::IncarnationRecord;
use crate::kernel::coordinator::{self, CoordinatorConfig, Heartbeat};
use crate::kernel::units::{Incarnation, Nanos};

/// The most concurrency limits in one share round. The script of a round blocks Redis, so it must
/// be short.
pub const MAX_REPORTS_PER_ROUND: usize = 64;

/// The time budget of a share round, the cost of one limit and the cost of each replica of a limit,
/// in microseconds.
const ROUND_BUDGET_MICROS: u64 = 1_000;
const LIMIT_COST_MICROS: u64 = 10;
const REPLICA_COST_MICROS: u64 = 3;

/// Returns how many concurrency limits, from the first on, fit in a share round of about 1 ms.
///
/// `replica_counts` gives the number of replicas of each limit. The result is at most
/// [`MAX_REPORTS_PER_ROUND`] and at least 1, but 0 if `replica_counts` is empty. The costs were
/// measured on a slow machine (`benches/heartbeats.rs`).
#[must_use]
pub fn reports_per_round(replica_counts: impl IntoIterator<Item = u64>) -> usize {
    let mut left = ROUND_BUDGET_MICROS;
    let fits = |(at, members): &(usize, u64)| {
        let micros = LIMIT_COST_MICROS.saturating_add(REPLICA_COST_MICROS.saturating_mul(*members));
        let fits = *at == 0 || micros <= left;
        left = left.saturating_sub(micros);
        fits
    };
    replica_counts.into_iter().take(MAX_REPORTS_PER_ROUND).enumerate().take_while(fits).count()
}

/// The name of a bucket: a concurrency limit and its descriptor values. All replicas use the same
/// name.
pub type BucketKey = Box<[u8]>;

/// The share reports that one replica sends in one store call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRound {
    /// The replica, its incarnation, and the coordinator's incarnation that granted its shares.
    pub record: IncarnationRecord,
    /// The [`ShareRoundReply::store_time`] of the last reply that this replica received. If the
    /// store's state ends clearly before this instant, the store has lost state.
    pub last_reply_at: Option<Nanos>,
    /// The longest time from now for which any share may be in use: a share of this replica, or of
    /// another replica that the store has lost.
    pub longest_use: Nanos,
    /// True if the replica shuts down and has no shares and no requests in flight. The store then
    /// removes its record.
    pub is_leaving: bool,
    /// The share reports, for at most [`reports_per_round`] concurrency limits.
    pub reports: Vec<ShareReport>,
}

/// One replica's report for one concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// The bucket of the concurrency limit.
    pub bucket: BucketKey,
    /// The coordinator config of the limit, which the store uses for this report.
    pub law: CoordinatorConfig,
    /// The replica's grant in use, requests in flight, demand and vote.
    pub heartbeat: Heartbeat,
}

/// The store's reply to a share round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRoundReply {
    /// The incarnation of the coordinator's state in the store.
    pub incarnation: Incarnation,
    /// The instant of the share round by the store's clock, in whole microseconds. Do not compare
    /// it with an instant of a replica's clock.
    pub store_time: Nanos,
    /// The reply to each share report, in order. `None` if the store cannot read the state of the
    /// limit; it then leaves that state unchanged.
    pub replies: Vec<Option<coordinator::HeartbeatReply>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat;

    #[test]
    fn a_share_round_takes_at_most_a_millisecond() {
        // 20 replicas cost 70 us for each limit, so 14 limits fit. One replica costs 13 us, so the
        // maximum number fits.
        assert_eq!(reports_per_round(repeat(20)), 14);
        assert_eq!(reports_per_round(repeat(1)), MAX_REPORTS_PER_ROUND);
        assert_eq!(reports_per_round([]), 0);
        // The first two limits cost 910 us and 70 us and fit into 1,000 us; the third costs 70 us
        // more.
        assert_eq!(reports_per_round([300, 20, 20]), 2);
        // The first 40 limits cost 520 us; six limits of 70 us also fit.
        assert_eq!(reports_per_round([1; 40].into_iter().chain(repeat(20))), 46);
        // A limit that exceeds the budget alone is sent in a share round of its own.
        assert_eq!(reports_per_round([1_000, 1]), 1);
    }
}
