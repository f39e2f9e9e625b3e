//! One round of share reports for the fleet-wide concurrency limits.
//!
//! Guarantees:
//! - The store applies a replica's round in one step, by the store's own clock.
//!
//! Not covered:
//! - When a replica reports and how it applies the replies (`engine::concurrency::fleet`).
//! - How shares are computed ([`crate::kernel::coordinator`]).

use crate::kernel::coordinator::incarnation::IncarnationRecord;
use crate::kernel::coordinator::{self, CoordinatorConfig, Heartbeat};
use crate::kernel::units::{Incarnation, Nanos};

/// The most limits in one round. A script blocks the store, so a round stays short.
pub const MAX_REPORTS_PER_ROUND: usize = 64;

/// The time budget of a round and the cost of a limit and of each of its replicas, in microseconds.
const ROUND_BUDGET_MICROS: u64 = 1_000;
const LIMIT_COST_MICROS: u64 = 10;
const REPLICA_COST_MICROS: u64 = 3;

/// Returns how many of the leading limits fit in one round of about one millisecond.
///
/// `replica_counts` gives the number of replicas of each limit. The costs were measured on a slow
/// machine (`benches/heartbeats.rs`). The result is 1 to [`MAX_REPORTS_PER_ROUND`], or 0 without any limit.
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

/// The bucket of a concurrency limit: unique for each limit, and the same at every replica.
pub type BucketKey = Box<[u8]>;

/// The share reports that one replica sends in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRound {
    /// The replica's line in the fleet table.
    pub record: IncarnationRecord,
    /// The store's instant ([`ShareRoundReply::store_time`]) in the last reply that this replica
    /// received. A store that does not remember this instant has lost state.
    pub last_reply_at: Option<Nanos>,
    /// The longest time from now that a share may be in
    /// use: this replica's or a forgotten replica's.
    pub longest_use: Nanos,
    /// The replica leaves for good, without shares or
    /// requests in flight. The store removes its line.
    pub is_leaving: bool,
    /// The reports of at most [`reports_per_round`] limits.
    pub reports: Vec<ShareReport>,
}

/// One replica's report for one concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// The bucket of the limit.
    pub bucket: BucketKey,
    /// The limit's settings, which apply to this report.
    pub law: CoordinatorConfig,
    /// The report.
    pub heartbeat: Heartbeat,
}

/// The store's reply to a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRoundReply {
    /// The store's incarnation.
    pub incarnation: Incarnation,
    /// The store's clock at the round, in whole microseconds. All replicas
    /// use it to name an instant. It is not comparable with another clock.
    pub store_time: Nanos,
    /// The reply to each report, in order. `None` if the store
    /// cannot read the limit's state, which it leaves unchanged.
    pub replies: Vec<Option<coordinator::HeartbeatReply>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat;

    #[test]
    fn a_round_costs_the_store_at_most_a_millisecond() {
        // 70 us for each limit; then 13 us for each limit, up to the maximum number.
        assert_eq!(reports_per_round(repeat(20)), 14);
        assert_eq!(reports_per_round(repeat(1)), MAX_REPORTS_PER_ROUND);
        assert_eq!(reports_per_round([]), 0);
        // 910 us and 70 us fit; 70 us more do not.
        assert_eq!(reports_per_round([300, 20, 20]), 2);
        // The first forty take 520 us; six of 70 us also fit.
        assert_eq!(reports_per_round([1; 40].into_iter().chain(repeat(20))), 46);
        // A limit that exceeds the budget is sent in a round of its own.
        assert_eq!(reports_per_round([1_000, 1]), 1);
    }
}
