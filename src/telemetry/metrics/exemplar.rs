//! The exemplars of the duration histogram: the last sampled check of each bucket.
//!
//! Guarantees:
//! - At most one exemplar is stored for each bucket.
//! - Storing an exemplar never blocks.
//! - Without a trace collector, checks never run this code.
//!
//! Not covered:
//! - The choice of sampled checks: the SDK reads `OTEL_TRACES_SAMPLER`.

use parking_lot::Mutex;

use super::BOUNDS;
use crate::kernel::units::Nanos;

/// The number of buckets, including the one without an upper bound.
const BUCKETS: usize = BOUNDS.len() + 1;

/// The identity of a span that is exported to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The trace ID.
    pub trace: u128,
    /// The span ID.
    pub span: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exemplar {
    pub(super) traced: Traced,
    pub(super) took: Nanos,
    /// The instant of the reply, since the Unix epoch.
    pub(super) at: Nanos,
}

#[derive(Debug)]
pub(super) struct Exemplars(Mutex<[Option<Exemplar>; BUCKETS]>);

impl Exemplars {
    pub(super) const fn new() -> Self {
        Self(Mutex::new([None; BUCKETS]))
    }

    /// Stores `exemplar`, unless another thread stores one now: both are equally good examples.
    pub(super) fn keep(&self, bucket: usize, exemplar: Exemplar) {
        let Some(mut kept) = self.0.try_lock() else { return };
        kept[bucket] = Some(exemplar);
    }

    pub(super) fn look(&self) -> [Option<Exemplar>; BUCKETS] {
        *self.0.lock()
    }
}
