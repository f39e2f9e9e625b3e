//! Additive increase, multiplicative decrease, on requests in flight.
//!
//! Once a round trip: × 0.9 when one was dropped or the mean latency is above twice the minimum of
//! the last 100 rounds; else + 1, if at least half of what was allowed was in use.
//!
//! Leaves out: speed. From 1 to 100 takes 99 round trips, which is why it is not the default.

use super::level::{Level, Ratio};
use super::min_rtt::MinRtt;
use super::round::{Finished, Round};
use super::{Sample, was_used};
use crate::kernel::units::Nanos;

/// Rounds over which the minimum is taken.
const WINDOW: u16 = 100;
/// Latency up to this many times the minimum is no sign of a queue.
const TOLERANCE: u64 = 2;
const BACK_OFF: Ratio = Ratio::percent(90);

/// What AIMD remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Aimd {
    round: Round,
    min_rtt: MinRtt,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { round: Round::default(), min_rtt: MinRtt::over(WINDOW) }
    }
}

impl Aimd {
    /// The minimum: of the means of round trips.
    pub(super) fn ideal(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    pub(super) fn step(&mut self, estimate: Level, sample: &Sample, share: u32) -> Level {
        let allowed = estimate.floor().min(share);
        let Some(round) = self.round.push(sample, allowed) else { return estimate };
        if self.is_late(&round) {
            return estimate.times(BACK_OFF);
        }
        let used = Sample { in_flight: round.in_flight, ..*sample };
        if was_used(&used, estimate, share) { estimate.plus(Level::whole(1)) } else { estimate }
    }

    fn is_late(&mut self, round: &Finished) -> bool {
        let Some(mean) = round.mean else { return true };
        let min_rtt = self.min_rtt.push(mean);
        0 < round.dropped || min_rtt.0.saturating_mul(TOLERANCE) < mean.0
    }
}
