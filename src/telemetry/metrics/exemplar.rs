//! One traced question for each bucket of the histogram of times: the last.
//!
//! Guarantees: as many are kept as there are buckets, whatever is asked; keeping one never waits; while nobody collects traces
//! nothing here is reached.
//! Leaves out: which questions are traced ([`crate::telemetry::trace`]).

use parking_lot::Mutex;

use super::BOUNDS;
use crate::kernel::units::Nanos;

/// Buckets, the one without end among them.
const BUCKETS: usize = BOUNDS.len() + 1;

/// A span that is told to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The trace that it is in.
    pub trace: u128,
    /// Its own number.
    pub span: u64,
}

/// A question that took so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exemplar {
    pub(super) traced: Traced,
    pub(super) took: Nanos,
    /// When it was answered, since the Unix epoch.
    pub(super) at: Nanos,
}

/// By bucket.
#[derive(Debug)]
pub(super) struct Exemplars(Mutex<[Option<Exemplar>; BUCKETS]>);

impl Exemplars {
    pub(super) const fn new() -> Self {
        Self(Mutex::new([None; BUCKETS]))
    }

    /// Keeps this one, unless another thread keeps one at this moment: either is as good an example.
    pub(super) fn keep(&self, bucket: usize, exemplar: Exemplar) {
        let Some(mut kept) = self.0.try_lock() else { return };
        kept[bucket] = Some(exemplar);
    }

    /// Those that are kept, in the buckets' order.
    pub(super) fn look(&self) -> [Option<Exemplar>; BUCKETS] {
        *self.0.lock()
    }
}
