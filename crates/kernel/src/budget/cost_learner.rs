//! Learns the cost of requests, to estimate that of the next one.
//!
//! The estimate is the smallest amount that keeps the mean excess (what requests cost above it) at
//! most [`EXCESS_SHARE`] of their mean cost. Costs are counted in buckets that grow by about 19 %, each
//! with its upper bound. After 1,024 samples all counts are halved, so older costs fade.
//!
//! ```
//! use sluicegate_kernel::budget::{Amount, CostLearner};
//!
//! let mut learner = CostLearner::default();
//! (0..100).for_each(|_| learner.observe(Amount(1_000)));
//! let estimate = learner.estimate().expect("enough samples");
//! assert!((1_000..1_200).contains(&estimate.0));
//! ```
//!
//! Guarantees:
//! - Over the counted samples, the excess above the estimate is at most [`EXCESS_SHARE`] of the costs.
//! - Cost: 212 counters; an estimate reads each once. No allocation after the first sample.
//!
//! Not covered:
//! - Costs that change: until enough new samples, the estimate follows the old ones.

use super::Amount;

/// The largest mean excess: one part in this many of the mean cost.
pub const EXCESS_SHARE: u64 = 100;

/// The fewest samples for an estimate.
const MIN_SAMPLES: u32 = 30;

/// The number of samples at which all counts are halved.
const MAX_SAMPLES: u32 = 1_024;

/// The buckets of a factor of two.
const STEPS: u64 = 4;

/// Four buckets for each power of two below 2^53.
const BUCKETS: usize = 212;

/// The costs of the last requests.
#[derive(Clone, Debug, Default)]
pub struct CostLearner {
    /// The number of samples in each bucket; empty before the first sample.
    counts: Box<[u16]>,
    samples: u32,
}

impl CostLearner {
    /// Counts the cost of a request.
    pub fn observe(&mut self, cost: Amount) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS].into();
        }
        if self.samples >= MAX_SAMPLES {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
        if let Some(count) = self.counts.get_mut(bucket_of(cost.0)) {
            *count = count.saturating_add(1);
            self.samples = self.samples.saturating_add(1);
        }
    }

    /// Returns the estimate; `None` before 30 samples.
    #[must_use]
    pub fn estimate(&self) -> Option<Amount> {
        if self.samples < MIN_SAMPLES {
            return None;
        }
        let total = self.sum(lower_bound);
        let (mut estimate, mut above, mut sum_above) = (0, 0_u128, 0_u128);
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            let bound = upper_bound(bucket);
            // The excess of all larger buckets above this bound.
            let excess = sum_above.saturating_sub(above.saturating_mul(bound.into()));
            if total < excess.saturating_mul(EXCESS_SHARE.into()) {
                break;
            }
            estimate = bound;
            above = above.saturating_add((*count).into());
            sum_above = sum_above.saturating_add(u128::from(*count).saturating_mul(bound.into()));
        }
        Some(Amount::bounded(estimate))
    }

    fn sum(&self, cost: impl Fn(usize) -> u64) -> u128 {
        let counts = self.counts.iter().enumerate();
        let sums = counts.map(|(at, count)| u128::from(*count).saturating_mul(cost(at).into()));
        sums.fold(0, u128::saturating_add)
    }
}

/// Returns the bucket of a cost: small numbers have one each.
fn bucket_of(cost: u64) -> usize {
    let Some(exponent) = cost.checked_ilog2().filter(|exponent| 2 <= *exponent) else {
        return usize::try_from(cost).unwrap_or_default();
    };
    let step = (cost >> exponent.saturating_sub(2)) & (STEPS.saturating_sub(1));
    let index = u64::from(exponent).saturating_sub(1).saturating_mul(STEPS).saturating_add(step);
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS.saturating_sub(1))
}

/// Returns the smallest cost in a bucket.
fn lower_bound(bucket: usize) -> u64 {
    let index = u64::try_from(bucket).unwrap_or(u64::MAX);
    if index < STEPS {
        return index;
    }
    let (octave, step) = (index / STEPS, index % STEPS);
    let shift = u32::try_from(octave.saturating_sub(1)).unwrap_or(u32::MAX);
    STEPS.saturating_add(step).checked_shl(shift).unwrap_or(u64::MAX)
}

/// Returns the largest cost in a bucket.
fn upper_bound(bucket: usize) -> u64 {
    lower_bound(bucket.saturating_add(1)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_is_in_the_bounds_of_its_bucket() {
        let costs = (0..2_000).chain((11..53).flat_map(|bits| {
            let power = 1_u64 << bits;
            [power - 1, power, power + 1, power + power / 3]
        }));
        for cost in costs {
            let bucket = bucket_of(cost);
            assert!(lower_bound(bucket) <= cost && cost <= upper_bound(bucket), "{cost}");
            assert!(upper_bound(bucket) <= cost + cost / 4, "{cost}");
        }
    }
}
