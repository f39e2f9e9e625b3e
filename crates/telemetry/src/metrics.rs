//! Sluicegate's own metrics: names, units, labels and counters.
//!
//! The crate `prometheus-client` is too slow here: each count takes a lock and a hash, and all
//! cores share one counter. Its text format also differs.
//!
//! Guarantees:
//! - Counting is exact. Except for rejections, it is wait-free and takes a few nanoseconds.
//! - The metrics page is in Prometheus' text format 0.0.4, or in OpenMetrics with exemplars.
//! - The values of every label come from a closed list or from the limits files.
//!
//! Not covered:
//! - The HTTP endpoint of the metrics page (see `edge::http::metrics`).

mod buckets;
mod concurrency;
mod exemplar;
mod limit_events;
mod mirror;
mod openmetrics;
mod page;
mod process;
mod rule_decisions;
mod tables;
mod text_format;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::label::{
    BanEvent, BudgetEvent, CONCURRENCY_REASONS, CloudEventOutcome, ConnectionFailure, DatagramKind,
    EdgeOutcome, FallbackDebtOutcome, ForwardingEvent, LeasedHitsEvent, LimitEvent, ListenPort,
    MirrorOutcome, PermitIdEvent, Protocol, ProxyMessageKind, ShareEvent, StrictPermitEvent,
    VERDICTS,
};
use crate::kernel::decision::{Reason, StoreFailure};
use crate::kernel::units::Nanos;

use buckets::{CHECK_COUNT_BOUNDS, DURATION_BOUNDS, duration_bucket};
pub use concurrency::{ConcurrencyGauges, MAX_LIMIT_SERIES};
pub use exemplar::SpanIds;
use exemplar::{Exemplar, Exemplars};
use limit_events::LimitEvents;
pub use mirror::MirrorDifferences;
pub use openmetrics::to_openmetrics;
pub use page::MetricsPage;
pub use process::ProcessUsage;
pub use rule_decisions::RuleDecisions;
pub use tables::TableGauges;

/// The metrics of this process.
pub static METRICS: Metrics = Metrics::new();

/// The number of shards, which are copies of all counters. The first 63 threads, among them the
/// runtime's workers, have a shard each. All further threads share the last shard with atomic
/// additions, which cost several times more.
const SHARD_COUNT: usize = 64;

/// A set of all counters of the metrics. A process has one, [`METRICS`]; tests create others.
#[derive(Debug)]
pub struct Metrics {
    shards: [Counters; SHARD_COUNT],
    pub(super) accepted_loads: AtomicU64,
    pub(super) rejected_loads: AtomicU64,
    pub(super) revision: AtomicU64,
    pub(super) loaded_at: AtomicU64,
    /// 1 if the last load of the configuration was rejected, 0 otherwise.
    pub(super) stale: AtomicU64,
    exemplars: Exemplars,
    pub(super) limit_events: LimitEvents,
}

/// The counters of one thread, on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    /// The number of checks that were allowed, denied, and allowed by global shadow mode.
    pub(super) verdicts: [AtomicU64; VERDICTS.len()],
    pub(super) reasons: [AtomicU64; Reason::ALL.len()],
    pub(super) near_limit: AtomicU64,
    pub(super) unknown_table_ids: AtomicU64,
    pub(super) requests: [[AtomicU64; EdgeOutcome::ALL.len()]; Protocol::ALL.len()],
    pub(super) memory_full: [AtomicU64; 2],
    pub(super) failed_charges: [AtomicU64; StoreFailure::ALL.len()],
    pub(super) cached_denials: AtomicU64,
    /// The number of rejections. First index: position in [`CONCURRENCY_REASONS`].
    /// Second index: 1 if enforced.
    pub(super) limit_exceeded: [[AtomicU64; 2]; CONCURRENCY_REASONS.len()],
    pub(super) permit_ids: [AtomicU64; PermitIdEvent::ALL.len()],
    pub(super) budgets: [AtomicU64; BudgetEvent::ALL.len()],
    pub(super) share_events: [AtomicU64; ShareEvent::ALL.len()],
    pub(super) strict_permits: [AtomicU64; StrictPermitEvent::ALL.len()],
    pub(super) fallback_debt: [AtomicU64; FallbackDebtOutcome::ALL.len()],
    pub(super) leased_hits: [AtomicU64; LeasedHitsEvent::ALL.len()],
    pub(super) lease_calls: AtomicU64,
    pub(super) lease_messages: AtomicU64,
    pub(super) proxy_messages: [AtomicU64; ProxyMessageKind::ALL.len()],
    /// The histogram of check durations: one count for each bucket, not cumulative. The last bucket
    /// has no upper bound.
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_sum: AtomicU64,
    /// The histogram of checks per store call, not cumulative.
    checks_per_call: [AtomicU64; CHECK_COUNT_BOUNDS.len() + 1],
    checks_sum: AtomicU64,
    pub(super) datagrams: [AtomicU64; DatagramKind::ALL.len()],
    pub(super) forwarding: [AtomicU64; ForwardingEvent::ALL.len()],
    /// The number of connections that this thread opened minus those that it closed, modulo 2^64.
    pub(super) open_connections: [AtomicU64; ListenPort::ALL.len()],
    pub(super) refused_connections: [AtomicU64; ListenPort::ALL.len()],
    pub(super) failed_connections:
        [[AtomicU64; ConnectionFailure::ALL.len()]; ListenPort::ALL.len()],
    pub(super) refused_bodies: AtomicU64,
    pub(super) wrong_admin_tokens: AtomicU64,
    pub(super) bans: [AtomicU64; BanEvent::ALL.len()],
    pub(super) cloud_events: [AtomicU64; CloudEventOutcome::ALL.len()],
    pub(super) mirrored_checks: [AtomicU64; MirrorOutcome::ALL.len()],
}

/// The totals of all concurrency limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConcurrencyTotals {
    /// Requests with a permit.
    pub in_flight: u64,
    /// Requests that wait for a permit.
    pub waiting: u64,
    /// The sum of all concurrency limits: the largest number of requests in flight.
    pub limit: u64,
    /// Buckets of concurrency limits in use.
    pub buckets: u64,
    /// The maximum number of buckets.
    pub max_buckets: u64,
    /// Remembered early releases.
    pub early_releases: u64,
    /// The maximum number of remembered early releases.
    pub max_early_releases: u64,
}

/// The histogram of check durations.
#[derive(Clone, Debug)]
pub struct DurationHistogram {
    /// The upper bound of each bucket, and the number of checks within it; the last has no bound.
    pub buckets: Vec<(Option<Nanos>, u64)>,
    /// The sum of all durations.
    pub sum: Nanos,
}

/// The totals of all leases of this replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseTotals {
    /// Keys with a lease balance.
    pub keys: u64,
    /// Hits that can be spent without a store call.
    pub hits: u64,
}

/// Values that are read when the metrics page is rendered.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Live keys of the memory store.
    pub keys: u64,
    /// The maximum number of live keys of the memory store.
    pub max_keys: u64,
    /// `true` while the store is unavailable.
    pub is_store_down: bool,
    /// The totals of all concurrency limits.
    pub concurrency: ConcurrencyTotals,
    /// The totals of all leases of this replica.
    pub leases: LeaseTotals,
    /// The connected proxies that lease hits.
    pub lease_proxies: u64,
    /// The state of each concurrency limit in use.
    pub concurrency_limits: Vec<ConcurrencyGauges>,
    /// The decisions of each rule.
    pub rule_decisions: Vec<RuleDecisions>,
    /// Bans that apply.
    pub bans: u64,
    /// Events for other programs that are queued or being delivered.
    pub undelivered_events: u64,
    /// The rules that another rate limit service decided differently.
    pub mirror_differences: Vec<MirrorDifferences>,
    /// The tables that limits read.
    pub tables: Vec<TableGauges>,
    /// The memory of request bodies in flight, in bytes.
    pub body_memory: u64,
    /// The most memory of request bodies in flight, in bytes.
    pub max_body_memory: u64,
    /// The start of this process, since the Unix epoch.
    pub started_at: Nanos,
    /// The resource usage of this process. `None` if the system does not report it.
    pub process: Option<ProcessUsage>,
}

thread_local! {
    static THREAD_SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The number that the next new thread gets. Numbers are never reused, so that each shard but the
/// last has exactly one writer.
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

/// The shard of the calling thread.
pub(super) struct ThreadShard<'m> {
    pub(super) counters: &'m Counters,
    /// `true` if no other thread writes to the shard.
    is_exclusive: bool,
}

impl ThreadShard<'_> {
    pub(super) fn add(&self, cell: &AtomicU64, by: u64) {
        if self.is_exclusive {
            cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
        } else {
            cell.fetch_add(by, Relaxed);
        }
    }
}

impl Metrics {
    /// Creates a set of counters that are all zero.
    #[must_use]
    #[expect(
        clippy::large_stack_arrays,
        reason = "the set in use is a static, made by the compiler"
    )]
    pub const fn new() -> Self {
        Self {
            shards: [const { Counters::new() }; SHARD_COUNT],
            accepted_loads: AtomicU64::new(0),
            rejected_loads: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            loaded_at: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            exemplars: Exemplars::new(),
            limit_events: LimitEvents::new(),
        }
    }

    pub(super) fn count_duration(&self, duration: Nanos) {
        let shard = self.thread_shard();
        shard.add(&shard.counters.durations[duration_bucket(duration)], 1);
        shard.add(&shard.counters.duration_sum, duration.0);
    }

    pub(super) fn record_exemplar(&self, duration: Nanos, replied_at: Nanos, span: SpanIds) {
        let exemplar = Exemplar { span, duration, replied_at };
        self.exemplars.record(duration_bucket(duration), exemplar);
    }

    pub(super) fn count_store_call(&self, checks: u64) {
        let shard = self.thread_shard();
        let bucket = CHECK_COUNT_BOUNDS.partition_point(|bound| *bound < checks);
        shard.add(&shard.counters.checks_per_call[bucket], 1);
        shard.add(&shard.counters.checks_sum, checks);
    }

    /// Adds `by` to one counter of the calling thread's shard.
    pub(super) fn add(&self, counter: impl Fn(&Counters) -> &AtomicU64, by: u64) {
        let shard = self.thread_shard();
        shard.add(counter(shard.counters), by);
    }

    pub(super) fn thread_shard(&self) -> ThreadShard<'_> {
        let number = THREAD_SHARD.with(|mine| {
            if mine.get() == usize::MAX {
                mine.set(NEXT_THREAD.fetch_add(1, Relaxed).min(SHARD_COUNT - 1));
            }
            mine.get()
        });
        ThreadShard { counters: &self.shards[number], is_exclusive: number < SHARD_COUNT - 1 }
    }

    /// Returns the concurrency limits whose share expired in this process, with the number of
    /// expiries. Limits beyond [`MAX_LIMIT_SERIES`] are one, `other`.
    #[must_use]
    pub fn fenced_limits(&self) -> Vec<(Box<str>, u64)> {
        self.limit_events.counts(LimitEvent::Fenced)
    }

    /// Returns the number of requests of a class that a concurrency limit rejected in this process.
    #[must_use]
    pub fn class_rejections(&self, limit: &str, class: &str) -> u64 {
        self.limit_events.class_rejections(limit, class)
    }

    /// Returns the number of shares that expired in this process.
    #[must_use]
    pub fn fences(&self) -> u64 {
        self.sum(|shard| &shard.share_events[ShareEvent::Fenced as usize])
    }

    /// Returns the number of checks that were allowed, denied, and allowed by global shadow mode.
    #[must_use]
    pub fn verdict_counts(&self) -> [u64; 3] {
        std::array::from_fn(|at| self.sum(|shard| &shard.verdicts[at]))
    }

    /// Returns the number of checks without a decision, because the store was unavailable.
    #[must_use]
    pub fn failed_checks(&self) -> u64 {
        let outcome = EdgeOutcome::StoreUnavailable as usize;
        let of = |protocol: usize| self.sum(|shard| &shard.requests[protocol][outcome]);
        (0..Protocol::ALL.len()).map(of).sum()
    }

    /// Returns the number of open connections of a port.
    #[must_use]
    pub fn open_connections(&self, port: ListenPort) -> u64 {
        self.sum(|shard| &shard.open_connections[port as usize])
    }

    /// Returns the histogram of check durations.
    #[must_use]
    pub fn check_durations(&self) -> DurationHistogram {
        let mut count = 0;
        let bounds = DURATION_BOUNDS.iter().map(|(bound, _)| Some(*bound)).chain([None]);
        let cumulative = bounds.enumerate().map(|(at, bound)| {
            count += self.sum(|shard| &shard.durations[at]);
            (bound, count)
        });
        let buckets = cumulative.collect();
        DurationHistogram { buckets, sum: Nanos(self.sum(|shard| &shard.duration_sum)) }
    }

    fn sum(&self, cell: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| cell(shard).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    const fn new() -> Self {
        Self {
            verdicts: zeros(),
            reasons: zeros(),
            near_limit: AtomicU64::new(0),
            unknown_table_ids: AtomicU64::new(0),
            requests: [const { zeros() }; Protocol::ALL.len()],
            memory_full: zeros(),
            failed_charges: zeros(),
            cached_denials: AtomicU64::new(0),
            limit_exceeded: [const { zeros() }; CONCURRENCY_REASONS.len()],
            permit_ids: zeros(),
            budgets: zeros(),
            share_events: zeros(),
            strict_permits: zeros(),
            fallback_debt: zeros(),
            leased_hits: zeros(),
            lease_calls: AtomicU64::new(0),
            lease_messages: AtomicU64::new(0),
            proxy_messages: zeros(),
            durations: zeros(),
            duration_sum: AtomicU64::new(0),
            checks_per_call: zeros(),
            checks_sum: AtomicU64::new(0),
            datagrams: zeros(),
            forwarding: zeros(),
            open_connections: zeros(),
            refused_connections: zeros(),
            failed_connections: [const { zeros() }; ListenPort::ALL.len()],
            refused_bodies: AtomicU64::new(0),
            wrong_admin_tokens: AtomicU64::new(0),
            bans: zeros(),
            cloud_events: zeros(),
            mirrored_checks: zeros(),
        }
    }
}

const fn zeros<const N: usize>() -> [AtomicU64; N] {
    [const { AtomicU64::new(0) }; N]
}
