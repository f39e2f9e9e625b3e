//! What one window of samples shows.
//!
//! Guarantees: an overload is one beyond the doubt of its samples, and so is calm.
//! Leaves out: how it is found, and what follows.

use super::super::level::{Level, Ratio};
use crate::kernel::units::Nanos;

const OVERLOAD: u64 = 1_550_000;
/// Standard errors that leave no doubt of a window without a queue.
const SURELY_CALM: u64 = 3;
/// An overload is at least this many requests too many: with a handful, one more is no news.
const EXCESS: Ratio = Ratio::percent(150);

/// One window, measured.
pub(super) struct Finding {
    pub(super) in_flight: Level,
    pub(super) rtt: Nanos,
    /// In millionths of the latency.
    pub(super) error: u64,
    /// Do single latencies vary much?
    pub(super) is_wide: bool,
    /// In millionths: latency over the ideal.
    pub(super) stretch: u64,
    pub(super) capacity: Level,
}

impl Finding {
    /// Is there no queue, beyond doubt?
    pub(super) fn is_calm(&self) -> bool {
        let most = 1_000_000_u64.saturating_add(self.error.saturating_mul(SURELY_CALM));
        Ratio { times: most, per: 1_000_000 }.of(self.stretch) < super::CALM
    }

    pub(super) fn is_overload(&self, margin: Ratio) -> bool {
        let sure = 1_000_000_u64.saturating_sub(self.error.saturating_mul(2));
        let beyond_doubt = Ratio { times: sure, per: 1_000_000 }.of(self.stretch);
        let excess = Level::whole(1).times(EXCESS);
        margin.of(OVERLOAD) < beyond_doubt && self.capacity.plus(excess) <= self.in_flight
    }
}
