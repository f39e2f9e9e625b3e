//! A histogram of latencies with bounded memory.
//!
//! Buckets are those of `HdrHistogram`: 128 of equal width for each power of two, so the width is at
//! most 1/128 of the value. Not the crate, because this is all that a bench needs of it.
//!
//! Guarantees:
//! - 60 KB for any number of latencies.
//! - A quantile is never below the real one, and at most 0.8 % above it.
//! - The largest latency is exact.

use crate::kernel::units::Nanos;

/// Each power of two has 2⁷ = 128 buckets.
const PRECISION_BITS: u32 = 7;
const BUCKETS: usize = ((64 - PRECISION_BITS as usize) << PRECISION_BITS) + (1 << PRECISION_BITS);

/// A histogram of latencies.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    buckets: Vec<u64>,
    count: u64,
    max: Nanos,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, max: Nanos(0) }
    }
}

impl LatencyHistogram {
    /// Adds one latency.
    pub fn record(&mut self, latency: Nanos) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(latency.0)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(latency);
    }

    /// Returns the number of latencies.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the largest latency; zero without any.
    #[must_use]
    pub const fn max(&self) -> Nanos {
        self.max
    }

    /// Returns the smallest latency that `millionths` of all latencies do not exceed: 990,000 for
    /// p99. Zero without any latency.
    #[must_use]
    pub fn quantile(&self, millionths: u64) -> Nanos {
        let rank = (u128::from(self.count) * u128::from(millionths)).div_ceil(1_000_000);
        let mut sum = 0_u128;
        for (bucket, count) in self.buckets.iter().enumerate() {
            sum += u128::from(*count);
            if rank <= sum && 0 < sum {
                return Nanos(largest_in(bucket)).min(self.max);
            }
        }
        self.max
    }
}

/// Returns the bucket of a latency. Below 256 ns, a bucket has one value.
fn bucket_of(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.leading_zeros();
    let shift = bits.saturating_sub(PRECISION_BITS + 1);
    ((shift as usize) << PRECISION_BITS) + usize::try_from(nanos >> shift).unwrap_or(0)
}

fn largest_in(bucket: usize) -> u64 {
    let shift = (bucket >> PRECISION_BITS).saturating_sub(1);
    let top = (bucket - (shift << PRECISION_BITS)) as u128 + 1;
    u64::try_from((top << shift) - 1).unwrap_or(u64::MAX)
}
