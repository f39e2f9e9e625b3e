//! The events that metrics count, one type each.
//!
//! Guarantees:
//! - Counting costs a few relaxed atomic additions, mostly to memory of the calling thread.
//!
//! Not covered:
//! - Names, units and labels of metrics (see [`super::metrics`]).

use std::sync::atomic::Ordering::Relaxed;

pub use super::label::{
    BanEvent, BudgetEvent, CloudEventOutcome, ConnectionFailure, DatagramKind, EdgeOutcome,
    FallbackDebtOutcome, ForwardingEvent, LeasedHitsEvent, LimitEvent, ListenPort, MirrorOutcome,
    PermitIdEvent, Protocol, ProxyMessageKind, RuleVerdict, ShareEvent, StrictPermitEvent,
};
use super::label::{CONCURRENCY_REASONS, SHADOW_DENY};
use super::metrics::{METRICS, Metrics};
use super::trace;
use crate::kernel::decision::{Reason, StoreFailure, Verdict};
use crate::kernel::units::{Hits, Nanos, Revision};

/// An event that [`Metrics`] count.
pub trait Event: Sized {
    /// Counts this event in `metrics`.
    fn count(self, metrics: &Metrics);

    /// Counts this event in the metrics of the process, [`METRICS`].
    fn emit(self) {
        self.count(&METRICS);
    }
}

/// A check was decided.
#[derive(Clone, Copy, Debug)]
pub struct CheckDecided<R> {
    /// The overall verdict, after global shadow mode.
    pub verdict: Verdict,
    /// `true` if global shadow mode turned a denial into an allowed check.
    pub is_shadowed: bool,
    /// One reason for each descriptor.
    pub reasons: R,
    /// The number of descriptors that were allowed beyond `telemetry.near_limit` of
    /// their limit.
    pub near_limit: u64,
}

impl<R: Iterator<Item = Reason>> Event for CheckDecided<R> {
    fn count(self, metrics: &Metrics) {
        let shard = metrics.thread_shard();
        if self.near_limit != 0 {
            shard.add(&shard.counters.near_limit, self.near_limit);
        }
        let verdict = if self.is_shadowed { SHADOW_DENY } else { self.verdict as usize };
        shard.add(&shard.counters.verdicts[verdict], 1);
        self.reasons.for_each(|reason| shard.add(&shard.counters.reasons[reason as usize], 1));
    }
}

/// A proxy reported decisions about one descriptor, which it made itself.
#[derive(Clone, Copy, Debug)]
pub struct ProxyDecisions {
    /// The number of decisions.
    pub count: u64,
    /// The verdict, after shadow mode.
    pub verdict: Verdict,
    /// `true` if global shadow mode turned denials into allowed requests.
    pub is_shadowed: bool,
    /// The reason of the verdict before shadow mode.
    pub reason: Reason,
}

impl Event for ProxyDecisions {
    fn count(self, metrics: &Metrics) {
        let shard = metrics.thread_shard();
        let verdict = if self.is_shadowed { SHADOW_DENY } else { self.verdict as usize };
        shard.add(&shard.counters.verdicts[verdict], self.count);
        shard.add(&shard.counters.reasons[self.reason as usize], self.count);
    }
}

impl Event for ProxyMessageKind {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.proxy_messages[self as usize], 1);
    }
}

/// A concurrency limit rejected requests, or would have without shadow mode.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyLimitExceeded<'l> {
    /// The path of the limit in the configuration.
    pub limit: &'l str,
    /// The class of the requests, if the limit has classes and the class is known.
    pub class: Option<&'l str>,
    /// The reason of the rejection, one of [`CONCURRENCY_REASONS`].
    pub reason: Reason,
    /// `false` if shadow mode allowed the request.
    pub is_enforced: bool,
    /// The number of requests.
    pub count: u64,
}

impl Event for ConcurrencyLimitExceeded<'_> {
    fn count(self, metrics: &Metrics) {
        let mut reasons = CONCURRENCY_REASONS.iter();
        let Some(at) = reasons.position(|reason| *reason == self.reason) else { return };
        metrics.add(|shard| &shard.limit_exceeded[at][usize::from(self.is_enforced)], self.count);
        if self.is_enforced
            && let Some(event) = LimitEvent::ALL.get(at)
        {
            metrics.limit_events.count(self.limit, *event, self.class, self.count);
        }
    }
}

/// This replica's share of a concurrency limit expired before the store replied.
#[derive(Clone, Copy, Debug)]
pub struct ShareFenced<'l> {
    /// The path of the limit in the configuration.
    pub limit: &'l str,
}

impl Event for ShareFenced<'_> {
    fn count(self, metrics: &Metrics) {
        ShareEvent::Fenced.count(metrics);
        metrics.limit_events.count(self.limit, LimitEvent::Fenced, None, 1);
    }
}

impl Event for BudgetEvent {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.budgets[self as usize], 1);
    }
}

impl Event for PermitIdEvent {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.permit_ids[self as usize], 1);
    }
}

/// A decoded check received its reply, which may be an error.
#[derive(Clone, Copy, Debug)]
pub struct CheckAnswered {
    /// The instant at which the message was decoded, since the Unix epoch.
    pub received_at: Nanos,
    /// The instant at which the reply was ready to be encoded, since the Unix epoch.
    pub replied_at: Nanos,
    /// The time in queues of concurrency limits. This time is subtracted, because it measures the
    /// requests in flight and not Sluicegate.
    pub queue_time: Nanos,
}

impl CheckAnswered {
    const fn duration(self) -> Nanos {
        self.replied_at.since(self.received_at).since(self.queue_time)
    }
}

impl Event for CheckAnswered {
    fn count(self, metrics: &Metrics) {
        metrics.count_duration(self.duration());
    }

    /// Counts the duration of the check in the metrics of the process. If the check's span is
    /// sampled, the span becomes the exemplar of the histogram bucket.
    fn emit(self) {
        self.count(&METRICS);
        if let Some(span) = trace::sampled_span_ids() {
            METRICS.record_exemplar(self.duration(), self.replied_at, span);
        }
    }
}

/// A request of any protocol was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCompleted {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// The outcome of the request.
    pub outcome: EdgeOutcome,
}

impl Event for RequestCompleted {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.requests[self.protocol as usize][self.outcome as usize], 1);
    }

    /// Counts this event in the metrics of the process, and sets the outcome of the current span.
    fn emit(self) {
        trace::set_outcome(self.outcome);
        self.count(&METRICS);
    }
}

/// A configuration was loaded.
#[derive(Clone, Copy, Debug)]
pub struct ConfigLoaded {
    /// The revision of the configuration.
    pub revision: Revision,
    /// The instant of the load, since the Unix epoch.
    pub loaded_at: Nanos,
}

impl Event for ConfigLoaded {
    fn count(self, metrics: &Metrics) {
        metrics.accepted_loads.fetch_add(1, Relaxed);
        metrics.stale.store(0, Relaxed);
        metrics.revision.store(self.revision.0, Relaxed);
        metrics.loaded_at.store(self.loaded_at.0, Relaxed);
    }
}

/// A configuration was invalid, and the previous revision stays in use.
#[derive(Clone, Copy, Debug)]
pub struct ConfigRejected;

impl Event for ConfigRejected {
    fn count(self, metrics: &Metrics) {
        metrics.rejected_loads.fetch_add(1, Relaxed);
        metrics.stale.store(1, Relaxed);
    }
}

/// A check named an id that the table of its limit does not have.
#[derive(Clone, Copy, Debug)]
pub struct UnknownTableId;

impl Event for UnknownTableId {
    fn count(self, metrics: &Metrics) {
        let shard = metrics.thread_shard();
        shard.add(&shard.counters.unknown_table_ids, 1);
    }
}

/// A connection of a port was opened, closed or refused.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionEvent {
    /// The connection was opened.
    Opened(ListenPort),
    /// An opened connection was closed.
    Closed(ListenPort),
    /// The connection was refused, because too many were open.
    Refused(ListenPort),
    /// The connection failed before its first request.
    Failed(ListenPort, ConnectionFailure),
}

impl Event for ConnectionEvent {
    fn count(self, metrics: &Metrics) {
        match self {
            Self::Opened(port) => metrics.add(|shard| &shard.open_connections[port as usize], 1),
            // Subtracts 1: counters and their sum wrap.
            Self::Closed(port) => {
                metrics.add(|shard| &shard.open_connections[port as usize], u64::MAX);
            }
            Self::Refused(port) => {
                metrics.add(|shard| &shard.refused_connections[port as usize], 1);
            }
            Self::Failed(port, cause) => {
                metrics.add(|shard| &shard.failed_connections[port as usize][cause as usize], 1);
            }
        }
    }
}

/// The body of a request was refused, because bodies take too much memory.
#[derive(Clone, Copy, Debug)]
pub struct BodyRefused;

impl Event for BodyRefused {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.refused_bodies, 1);
    }
}

/// A request to the admin port had a wrong token.
#[derive(Clone, Copy, Debug)]
pub struct WrongAdminToken;

impl Event for WrongAdminToken {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.wrong_admin_tokens, 1);
    }
}

impl Event for ShareEvent {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.share_events[self as usize], 1);
    }
}

impl Event for BanEvent {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.bans[self as usize], 1);
    }
}

impl Event for CloudEventOutcome {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.cloud_events[self as usize], 1);
    }
}

impl Event for MirrorOutcome {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.mirrored_checks[self as usize], 1);
    }
}

impl StrictPermitEvent {
    /// Counts this event for `permits` permits in the metrics of the process.
    pub fn emit(self, permits: u64) {
        METRICS.add(|shard| &shard.strict_permits[self as usize], permits);
    }
}

/// The memory store had no room for a new key.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStoreFull {
    /// The verdict that the setting `store.when_full` selects.
    pub verdict: Verdict,
}

impl Event for MemoryStoreFull {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.memory_full[self.verdict as usize], 1);
    }
}

/// The deny cache answered denials without a store call.
#[derive(Clone, Copy, Debug)]
pub struct DenialsFromCache {
    /// The number of denials from the deny cache.
    pub denials: u64,
}

impl Event for DenialsFromCache {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.cached_denials, self.denials);
    }
}

/// Fallback debt ended: hits that this replica allowed during a store outage.
#[derive(Clone, Copy, Debug)]
pub struct FallbackDebtEnded {
    /// The number of hits.
    pub hits: Hits,
    /// The way in which the fallback debt ended.
    pub outcome: FallbackDebtOutcome,
}

impl Event for FallbackDebtEnded {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.fallback_debt[self.outcome as usize], self.hits.0);
    }
}

/// Hits were borrowed, returned or lost by expiry of their lease.
#[derive(Clone, Copy, Debug)]
pub struct LeasedHits {
    /// The number of hits.
    pub hits: Hits,
    /// The event of the hits: borrowed, returned or expired.
    pub event: LeasedHitsEvent,
}

impl Event for LeasedHits {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.leased_hits[self.event as usize], self.hits.0);
    }
}

/// A script call with lease messages was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCallSent {
    /// The number of lease messages, one for each counter.
    pub messages: usize,
}

impl Event for LeaseCallSent {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.lease_calls, 1);
        metrics.add(|shard| &shard.lease_messages, self.messages as u64);
    }
}

/// Charges failed, because the store did not reply or replied with an error.
#[derive(Clone, Copy, Debug)]
pub struct ChargesFailed {
    /// The cause of the failure.
    pub cause: StoreFailure,
    /// The number of failed charges.
    pub charges: u64,
}

impl Event for ChargesFailed {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.failed_charges[self.cause as usize], self.charges);
    }
}

/// A script call with checks was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct StoreCallSent {
    /// The number of checks in the call.
    pub checks: usize,
}

impl Event for StoreCallSent {
    fn count(self, metrics: &Metrics) {
        metrics.count_store_call(self.checks as u64);
    }
}

impl Event for DatagramKind {
    /// Counts a datagram of this kind.
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.datagrams[self as usize], 1);
    }
}

/// An event of forwarded releases, with the number of releases. No metric label names a replica.
#[derive(Clone, Copy, Debug)]
pub struct ForwardingCount {
    /// The event of the releases.
    pub event: ForwardingEvent,
    /// The number of releases.
    pub releases: u64,
}

impl Event for ForwardingCount {
    fn count(self, metrics: &Metrics) {
        metrics.add(|shard| &shard.forwarding[self.event as usize], self.releases);
    }
}

impl Event for ForwardingEvent {
    /// Counts this event for one release.
    fn count(self, metrics: &Metrics) {
        ForwardingCount { event: self, releases: 1 }.count(metrics);
    }
}
