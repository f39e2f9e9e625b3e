//! Sends a sample of checks to another rate limit service too, and compares the decisions.
//!
//! Guarantees:
//! - The reply to the proxy never waits for the other service.
//! - At most [`LANES`] calls are in flight, each for at most [`MirrorOptions::call_timeout`].
//! - At most [`LANES`] times [`LANE_CAPACITY`] checks wait. Further ones are dropped and counted.
//! - Checks with the same domain and descriptors are either all sampled or not at all, in order.
//!
//! Not covered:
//! - Checks that end with an error, peeks, and checks with permits.
//! - Counters that several different checks share, unless all checks are sampled.

mod comparison;
mod report;
mod sample;
mod worker;

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::sync::mpsc;

use crate::engine::Engine;
use crate::telemetry::event::{Event as _, MirrorOutcome};

use comparison::ComparableReply;
pub use report::MirrorReport;
use sample::SampleBound;
use worker::MirroredCheck;
pub use worker::{CALL_TIMEOUT, MirrorOptions, MirrorWorker};

/// The number of queues. Each has at most one call in flight, so its checks stay in order.
const LANES: usize = 16;

/// The largest number of checks that wait in one queue.
const LANE_CAPACITY: usize = 64;

/// The sending side: accepts decided checks.
#[derive(Clone, Debug)]
pub struct Mirror {
    lanes: Arc<[mpsc::Sender<MirroredCheck>]>,
    sample: SampleBound,
    report: Arc<MirrorReport>,
}

impl Mirror {
    /// Creates a mirror, and the worker that must run for it.
    #[must_use]
    pub fn new(options: MirrorOptions, engine: Arc<Engine>) -> (Self, MirrorWorker) {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..LANES).map(|_| mpsc::channel(LANE_CAPACITY)).unzip();
        let report = Arc::new(MirrorReport::new(options.to.clone(), options.sample));
        let sample = SampleBound::new(options.sample);
        let worker = MirrorWorker::new(options, receivers, Arc::clone(&report), engine);
        (Self { lanes: senders.into(), sample, report }, worker)
    }

    /// Returns the results, for the admin page.
    #[must_use]
    pub fn report(&self) -> Arc<MirrorReport> {
        Arc::clone(&self.report)
    }

    /// Queues a decided check if it is in the sample. Never waits. Costs one hash of the
    /// descriptors, and a copy of a sampled check.
    pub fn offer(&self, request: &RateLimitRequest, ours: &RateLimitResponse) {
        let Some(hash) = self.sample.sampled_hash(request) else { return };
        let lane = usize::try_from(hash % 16).ok().and_then(|lane| self.lanes.get(lane));
        let Some(Ok(permit)) = lane.map(mpsc::Sender::try_reserve) else {
            self.report.count(MirrorOutcome::Dropped);
            return MirrorOutcome::Dropped.emit();
        };
        permit.send(MirroredCheck { request: request.clone(), ours: ComparableReply::new(ours) });
    }
}
