//! One round of share reports for the fleet-wide concurrency limits.
//!
//! Guarantees:
//! - The store applies a replica's round in one step, by the store's own clock.
//!
//! Not covered:
//! - When a replica reports and how it applies the replies (`engine::admit::fleet`).
//! - How shares are computed ([`crate::kernel::coordinator`]).

use crate::kernel::coordinator::life::Record;
use crate::kernel::coordinator::{self, Heartbeat, Law};
use crate::kernel::units::{Incarnation, Nanos};

/// The most limits in one round. A script blocks the store, so a round stays short.
pub const MOST_BEATS: usize = 64;

/// The time budget of a round and the cost of a limit and of each of its replicas, in microseconds.
const ROUND_MICROS: u64 = 1_000;
const CEILING_MICROS: u64 = 10;
const MEMBER_MICROS: u64 = 3;

/// Returns how many of the leading limits fit in one round of about one millisecond.
///
/// `members` gives the number of replicas of each limit. The costs were measured on a slow
/// machine (`benches/heartbeats.rs`). The result is 1 to [`MOST_BEATS`], or 0 without any limit.
#[must_use]
pub fn most_beats(members: impl IntoIterator<Item = u64>) -> usize {
    let mut left = ROUND_MICROS;
    let fits = |(at, members): &(usize, u64)| {
        let micros = CEILING_MICROS.saturating_add(MEMBER_MICROS.saturating_mul(*members));
        let fits = *at == 0 || micros <= left;
        left = left.saturating_sub(micros);
        fits
    };
    members.into_iter().take(MOST_BEATS).enumerate().take_while(fits).count()
}

/// The bucket of a concurrency limit: unique for each limit, and the same at every replica.
pub type Name = Box<[u8]>;

/// The share reports that one replica sends in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The replica's line in the fleet table.
    pub record: Record,
    /// The store's instant ([`Heard::at`]) in the last reply that this replica
    /// received. A store that does not remember this instant has lost state.
    pub answered: Option<Nanos>,
    /// The longest time from now that a share may be in
    /// use: this replica's or a forgotten replica's.
    pub longest: Nanos,
    /// The replica leaves for good, without shares or
    /// requests in flight. The store removes its line.
    pub leaves: bool,
    /// The reports of at most [`most_beats`] limits.
    pub beats: Vec<Beat>,
}

/// One replica's report for one concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The bucket of the limit.
    pub bucket: Name,
    /// The limit's settings, which apply to this report.
    pub law: Law,
    /// The report.
    pub said: Heartbeat,
}

/// The store's reply to a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The store's incarnation.
    pub life: Incarnation,
    /// The store's clock at the round, in whole microseconds. All replicas
    /// use it to name an instant. It is not comparable with another clock.
    pub at: Nanos,
    /// The reply to each report, in order. `None` if the store
    /// cannot read the limit's state, which it leaves unchanged.
    pub replies: Vec<Option<coordinator::Reply>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat;

    #[test]
    fn a_round_costs_the_store_at_most_a_millisecond() {
        // 70 us for each limit; then 13 us for each limit, up to the maximum number.
        assert_eq!(most_beats(repeat(20)), 14);
        assert_eq!(most_beats(repeat(1)), MOST_BEATS);
        assert_eq!(most_beats([]), 0);
        // 910 us and 70 us fit; 70 us more do not.
        assert_eq!(most_beats([300, 20, 20]), 2);
        // The first forty take 520 us; six of 70 us also fit.
        assert_eq!(most_beats([1; 40].into_iter().chain(repeat(20))), 46);
        // A limit that exceeds the budget is sent in a round of its own.
        assert_eq!(most_beats([1_000, 1]), 1);
    }
}
