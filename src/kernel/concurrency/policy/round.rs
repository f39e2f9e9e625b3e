//! One round trip: the samples that were admitted since the last change of the limit.
//!
//! A change of the limit affects only requests that are admitted after it. A round counts
//! only those. It ends with half as many samples as may be in flight. So an algorithm
//! reacts once to the effect of each change, and ignores samples from before it.
//!
//! Guarantees:
//! - A round has at least one sample; its mean is exact to a nanosecond.
//!
//! Not covered:
//! - The reaction of the algorithm.

use super::{Outcome, Sample};
use crate::kernel::units::Nanos;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Round {
    began: Nanos,
    successes: u64,
    latency: Nanos,
    dropped: u64,
    most: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    /// The mean latency of the successes; `None` without any.
    pub(super) mean: Option<Nanos>,
    pub(super) dropped: u64,
    /// The largest number in flight.
    pub(super) in_flight: u32,
}

impl Round {
    /// Adds `sample`, and returns the round if it ends. `allowed` requests may be in flight.
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
