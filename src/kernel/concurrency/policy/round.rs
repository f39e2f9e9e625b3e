//! One round trip: the samples that were admitted since the limit last moved.
//!
//! A change of the limit shows only in those admitted after it. A round takes only those, and ends
//! with half as many as may be in flight, so that a policy acts once for each answer to its last
//! act, not once for each of the many samples that still tell of the act before.
//!
//! Guarantees: a round has at least one sample; its mean is exact to a nanosecond.
//! Leaves out: what follows from it.

use super::{Outcome, Sample};
use crate::kernel::units::Nanos;

/// The round that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Round {
    began: Nanos,
    successes: u64,
    latency: Nanos,
    dropped: u64,
    most: u32,
}

/// What a round was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    /// Mean latency of the successes; `None` when there was none.
    pub(super) mean: Option<Nanos>,
    /// How many were dropped.
    pub(super) dropped: u64,
    /// The most that were in flight at once.
    pub(super) in_flight: u32,
}

impl Round {
    /// Takes note of `sample`; the round, when it ends with it. `allowed` may be in flight.
    pub(super) fn push(&mut self, sample: &Sample, allowed: u32) -> Option<Finished> {
        if sample.at.since(sample.rtt) < self.began {
            return None;
        }
        self.most = self.most.max(sample.in_flight);
        if sample.outcome == Outcome::Dropped {
            self.dropped = self.dropped.saturating_add(1);
        } else {
            self.successes = self.successes.saturating_add(1);
            self.latency = self.latency.plus(sample.rtt);
        }
        let count = self.successes.saturating_add(self.dropped);
        (u64::from(allowed.div_ceil(2)) <= count).then(|| self.finish(sample.at))
    }

    fn finish(&mut self, at: Nanos) -> Finished {
        let mean = self.latency.0.checked_div(self.successes).map(Nanos);
        let (dropped, in_flight) = (self.dropped, self.most);
        *self = Self { began: at, ..Self::default() };
        Finished { mean, dropped, in_flight }
    }
}
