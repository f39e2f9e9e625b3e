//! The exemplars of the histogram of check durations: the last sampled check of each bucket.
//!
//! Guarantees:
//! - Storing an exemplar never blocks.
//! - Without a trace collector, checks never run this code.

use parking_lot::Mutex;

use super::buckets::DURATION_BOUNDS;
use crate::kernel::units::Nanos;

const BUCKET_COUNT: usize = DURATION_BOUNDS.len() + 1;

/// The identity of a span that is exported to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    /// The OpenTelemetry trace ID.
    pub trace_id: u128,
    /// The OpenTelemetry span ID.
    pub span_id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exemplar {
    pub(super) span: SpanIds,
    pub(super) duration: Nanos,
    /// The instant of the reply, since the Unix epoch.
    pub(super) replied_at: Nanos,
}

#[derive(Debug)]
pub(super) struct Exemplars(Mutex<[Option<Exemplar>; BUCKET_COUNT]>);

impl Exemplars {
    pub(super) const fn new() -> Self {
        Self(Mutex::new([None; BUCKET_COUNT]))
    }

    /// Stores `exemplar`, unless another thread stores an exemplar at this moment.
    pub(super) fn record(&self, bucket: usize, exemplar: Exemplar) {
        if let Some(mut exemplars) = self.0.try_lock() {
            exemplars[bucket] = Some(exemplar);
        }
    }

    pub(super) fn snapshot(&self) -> [Option<Exemplar>; BUCKET_COUNT] {
        *self.0.lock()
    }
}
