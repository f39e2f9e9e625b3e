//! The name of a bucket, and snapshots of its load.
//!
//! Not covered:
//! - The measurement of a load (see `limits::bucket`).

use crate::kernel::units::Nanos;

/// The limit of a bucket whose concurrency limit a reload removed: every request is allowed.
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// The name of a bucket, made from its domain and descriptor entries. Two different buckets have
/// different names.
pub type BucketName = Box<[u8]>;

/// The load of one bucket at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLoad {
    /// The number of requests in flight.
    pub in_flight: u32,
    /// The number of requests in the queue.
    pub waiting: usize,
    /// The limit; with a pace, the rate in requests per unit. `u32::MAX` if no concurrency limit covers
    /// the bucket any longer.
    pub limit: u32,
}

impl BucketLoad {
    /// Returns the limit. `None` if no concurrency limit covers the bucket any longer.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        Some(self.limit).filter(|limit| *limit != NO_LIMIT)
    }
}

/// A snapshot of one bucket: its load and the latency of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketMetrics {
    /// The load.
    pub load: BucketLoad,
    /// The smoothed latency of successful requests. `None` before the first successful request.
    pub rtt: Option<Nanos>,
    /// The min RTT (latency without queueing), if the adaptive algorithm has an estimate.
    pub min_rtt: Option<Nanos>,
    /// The rate of a limit with a pace, in thousandths of a request per second.
    pub pace: Option<u64>,
}

impl BucketMetrics {
    /// Returns min RTT / RTT in millionths: 1,000,000 without queueing, less with queueing.
    #[must_use]
    pub fn gradient(&self) -> Option<u64> {
        let (min_rtt, rtt) = (u128::from(self.min_rtt?.0), u128::from(self.rtt?.0.max(1)));
        u64::try_from(min_rtt.saturating_mul(1_000_000).checked_div(rtt)?).ok()
    }
}

/// The loads of all buckets, summed. The buckets are read one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketTotals {
    /// The number of buckets.
    pub buckets: usize,
    /// The largest allowed number of buckets.
    pub max_buckets: usize,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of requests in queues.
    pub waiting: usize,
}
