//! The measurement of one window of samples.
//!
//! Guarantees:
//! - An overload, or its absence, is reported only beyond the doubt of the samples.
//!
//! Not covered:
//! - The measurement itself, and the reaction to it.

use super::super::level::{Level, Ratio};
use crate::kernel::units::Nanos;

const OVERLOAD: u64 = 1_550_000;
/// The standard errors to add before a window counts as free of a queue.
const SURELY_CALM: u64 = 3;
/// The requests beyond the capacity that make an overload: one more than a few is noise.
const EXCESS: Ratio = Ratio::percent(150);

pub(super) struct Finding {
    pub(super) in_flight: Level,
    pub(super) rtt: Nanos,
    /// The standard error of `rtt`, in millionths of it.
    pub(super) error: u64,
    /// Set if single latencies vary much.
    pub(super) is_wide: bool,
    /// The slowdown: latency divided by the min RTT, in millionths.
    pub(super) stretch: u64,
    pub(super) capacity: Level,
}

impl Finding {
    /// Returns `true` if there is no queue, beyond doubt.
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
