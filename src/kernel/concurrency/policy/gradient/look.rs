//! A stretch of time in which all members of a fleet have fewer in flight.
//!
//! Guarantees: it ends; what it measures was admitted once the queue of before was gone and as long as
//! all others were held low, too.
//! Leaves out: what follows.

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Sample};
use crate::kernel::units::Nanos;

/// Of what is in flight, where it is not known what the backend can serve at once.
pub(super) const DEEP: Ratio = Ratio::percent(25);
/// By how much the members' ideas of when it begins may differ.
const APART: Nanos = Nanos(10 * Nanos::MILLI.0);
/// Round trips that it lasts, and where little is in flight and much depends on it.
pub(super) const LASTS: u64 = 4;
pub(super) const LASTS_DEEP: u64 = 8;

/// One look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Look {
    pub(super) began: Nanos,
    /// What is admitted from the first to the second is alone.
    pub(super) measures: (Nanos, Nanos),
    pub(super) ends: Nanos,
    /// When those have returned.
    pub(super) closes: Nanos,
    pub(super) limit: Level,
    pub(super) alone: Tally,
}

impl Look {
    /// Begins at `now`, when requests take `rtt`, and lasts `lasts` and some more.
    pub(super) fn new(now: Nanos, limit: Level, rtt: Nanos, lasts: Nanos) -> Self {
        let lasts = lasts.plus(APART).plus(APART).plus(APART);
        let ends = now.plus(lasts);
        let from = now.plus(rtt).plus(APART);
        // Members that differ a little in what they see end it a little apart.
        let until = ends.since(Nanos(rtt.0 / 2)).since(APART);
        let closes = ends.plus(lasts);
        Self { began: now, measures: (from, until), ends, closes, limit, alone: Tally::default() }
    }

    pub(super) fn note(&mut self, sample: &Sample) {
        let (from, until) = self.measures;
        let admitted = sample.at.since(sample.rtt);
        if sample.outcome == Outcome::Success && from <= admitted && admitted < until {
            self.alone.push(sample.in_flight, sample.rtt);
        }
    }
}
