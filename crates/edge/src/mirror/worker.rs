//! Calls the other service for each mirrored check, and records the comparison.
//!
//! Guarantees:
//! - A call ends after [`MirrorOptions::call_timeout`].
//! - Each queue has one call in flight, so checks of one key stay in order.
//! - A repeated error is logged once, then counted once a minute.
//! - Differences are logged as one line a minute.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use futures_util::future::{join, join_all};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::comparison::{ComparableReply, DescriptorPair};
use super::report::{DifferentCheck, DifferentDescriptor, MirrorReport};
use crate::config::descriptor_text::{borrow_entries, format_entries};
use crate::config::settings::Percentage;
use crate::engine::Engine;
use crate::telemetry::event::{Event as _, MirrorOutcome};
use crate::telemetry::reason_log::QuietLog;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The largest number of descriptors that a recorded difference has.
const MAX_DESCRIPTORS: usize = 8;

/// The timeout of one call of a mirror, including the connection.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(200);

/// The other service, and the sample of checks that it gets.
#[derive(Clone, Debug)]
pub struct MirrorOptions {
    /// The address of the other service, for the report.
    pub to: String,
    /// The part of all keys whose checks are mirrored.
    pub sample: Percentage,
    /// The connection to the other service.
    pub channel: Channel,
    /// The timeout of one call to the other service, including the connection.
    pub call_timeout: Duration,
}

/// A check that waits for the other service, with this service's decision.
#[derive(Debug)]
pub(super) struct MirroredCheck {
    pub(super) request: RateLimitRequest,
    pub(super) ours: ComparableReply,
}

type MirrorClient = RateLimitServiceClient<Channel>;

/// The background work of a [`super::Mirror`].
#[derive(Debug)]
pub struct MirrorWorker {
    lanes: Vec<mpsc::Receiver<MirroredCheck>>,
    client: MirrorClient,
    call_timeout: Duration,
    report: Arc<MirrorReport>,
    engine: Arc<Engine>,
    log: Mutex<QuietLog>,
}

impl MirrorWorker {
    pub(super) fn new(
        options: MirrorOptions,
        lanes: Vec<mpsc::Receiver<MirroredCheck>>,
        report: Arc<MirrorReport>,
        engine: Arc<Engine>,
    ) -> Self {
        let client = RateLimitServiceClient::new(options.channel);
        let call_timeout = options.call_timeout;
        Self { lanes, client, call_timeout, report, engine, log: Mutex::default() }
    }

    /// Calls the other service as long as the mirror exists. Never returns.
    pub async fn run(mut self) {
        let lanes = std::mem::take(&mut self.lanes);
        let calls = join_all(lanes.into_iter().map(|lane| self.serve_lane(lane)));
        join(calls, self.log_differences()).await;
    }

    async fn serve_lane(&self, mut lane: mpsc::Receiver<MirroredCheck>) {
        while let Some(check) = lane.recv().await {
            let outcome = match self.ask(&check).await {
                Ok(theirs) => self.compare(&check, &theirs),
                Err(status) => {
                    self.log_failure(&status);
                    MirrorOutcome::Failed
                }
            };
            self.report.count(outcome);
            outcome.emit();
        }
    }

    async fn ask(&self, check: &MirroredCheck) -> Result<ComparableReply, Status> {
        let mut request = Request::new(check.request.clone());
        request.set_timeout(self.call_timeout);
        let mut client = self.client.clone();
        let call = client.should_rate_limit(request);
        let reply = tokio::time::timeout(self.call_timeout, call).await;
        let reply = reply.map_err(|_| Status::deadline_exceeded("timeout"))??;
        Ok(ComparableReply::new(reply.get_ref()))
    }

    fn compare(&self, check: &MirroredCheck, theirs: &ComparableReply) -> MirrorOutcome {
        let Some(pairs) = check.ours.differences(theirs) else { return MirrorOutcome::Equal };
        let pairs = pairs.iter().take(MAX_DESCRIPTORS);
        let descriptors = pairs.map(|pair| self.different_descriptor(check, *pair)).collect();
        self.report.record(DifferentCheck {
            at: self.engine.clock().now(),
            domain: self.engine.short_text(&check.request.domain),
            overall: [check.ours.overall, theirs.overall],
            descriptors,
        });
        MirrorOutcome::Different
    }

    /// Names the rule and the entries of a descriptor.
    fn different_descriptor(
        &self,
        MirroredCheck { request, .. }: &MirroredCheck,
        pair: DescriptorPair,
    ) -> DifferentDescriptor {
        let descriptor = request.descriptors.get(pair.index);
        let entries = descriptor.map(entries_of).unwrap_or_default();
        let config = self.engine.config();
        let domain = config.as_ref().and_then(|config| config.domains.get(&*request.domain));
        let rule = domain.and_then(|domain| domain.tree.lookup(entries.iter().copied()));
        let rule = rule.map_or_else(|| "no rule".into(), |found| found.rule.path.to_string());
        let shown = self.engine.redacted_entries(&entries);
        DifferentDescriptor { rule, descriptor: format_entries(borrow_entries(&shown)), pair }
    }

    fn log_failure(&self, status: &Status) {
        let error = format!("{:?}: {}", status.code(), status.message());
        if let Some(line) = self.log.lock().count(&error, Instant::now()) {
            let (to, times) = (self.report.to(), line.times);
            tracing::warn!(to, error, times, "a mirrored check failed (setting mirror.to)");
        }
    }

    async fn log_differences(&self) {
        let mut ticks = tokio::time::interval(LOG_INTERVAL);
        let mut logged = 0;
        loop {
            ticks.tick().await;
            let checks = self.report.checks();
            let different = checks.different - logged;
            if different != 0 {
                let (to, equal) = (self.report.to(), checks.equal);
                let dropped = checks.failed + checks.dropped;
                tracing::warn!(
                    to,
                    different,
                    all_different = checks.different,
                    equal,
                    uncompared = dropped,
                    "the mirror decided differently; GET /mirror on the admin port lists checks"
                );
            }
            logged = checks.different;
        }
    }
}

fn entries_of(descriptor: &RateLimitDescriptor) -> Vec<(&str, &str)> {
    descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect()
}
