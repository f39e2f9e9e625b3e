//! Sluicegate's own metrics: names, units, labels and counters.
//!
//! The crate `prometheus-client` is too slow here: each count takes a lock and a hash, and all
//! cores share one counter. Its text format also differs.
//!
//! Guarantees:
//! - Counting is wait-free, exact and takes a few nanoseconds.
//! - The metrics page is in Prometheus' text format 0.0.4, or in OpenMetrics with exemplars.
//! - The values of every label come from a closed list.
//!
//! Not covered:
//! - The HTTP endpoint of the metrics page (see [`crate::edge::http::metrics`]).

mod concurrency;
mod exemplar;
mod openmetrics;
mod process;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::event::{
    ChargesFailed, CheckAnswered, ConcurrencyLimitExceeded, ConfigLoaded, DatagramKind,
    EdgeOutcome, FallbackDebtEnded, FallbackDebtOutcome, LeaseCallSent, LeasedHits,
    LeasedHitsEvent, PermitIdEvent, PermitIdObserved, Protocol, RequestCompleted, ShareEvent,
    StoreCallSent, StrictPermitEvent,
};
use super::forwarding::{ForwardingCount, ForwardingEvent};
use crate::kernel::decision::{Reason, StoreFailure, Verdict};
use crate::kernel::units::Nanos;

pub use concurrency::{ConcurrencyGauges, MAX_LIMIT_SERIES};
pub use exemplar::SpanIds;
use exemplar::{Exemplar, Exemplars};
pub use openmetrics::to_openmetrics;
pub use process::ProcessUsage;

/// The metrics of this process.
pub static METRICS: Metrics = Metrics::new();

/// The number of shards, which are copies of all counters. The first 63 threads, among them the
/// runtime's workers, have a shard each. All further threads share the last shard with atomic
/// additions, which cost several times more.
const SHARD_COUNT: usize = 64;

/// Upper bounds of the histogram of check durations: from a decision in memory (0.5 µs) to several
/// store timeouts. The text is the value of the label `le`, in seconds.
const DURATION_BOUNDS: [(Nanos, &str); 13] = [
    (Nanos(500), "5e-07"),
    (Nanos(1_000), "1e-06"),
    (Nanos(2_500), "2.5e-06"),
    (Nanos(10_000), "1e-05"),
    (Nanos(50_000), "5e-05"),
    (Nanos(250_000), "0.00025"),
    (Nanos(1_000_000), "0.001"),
    (Nanos(2_500_000), "0.0025"),
    (Nanos(5_000_000), "0.005"),
    (Nanos(15_000_000), "0.015"),
    (Nanos(20_000_000), "0.02"),
    (Nanos(50_000_000), "0.05"),
    (Nanos(250_000_000), "0.25"),
];

/// The name of the histogram of check durations. Only the buckets of this histogram have exemplars.
const DURATION_METRIC: &str = "sluicegate_decision_duration_seconds";

/// Upper bounds of the histogram of checks per store call, up to the largest call.
const CHECK_COUNT_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// A set of all counters of the metrics. A process has one, [`METRICS`]; tests create others.
#[derive(Debug)]
pub struct Metrics {
    shards: [MetricsShard; SHARD_COUNT],
    accepted_loads: AtomicU64,
    rejected_loads: AtomicU64,
    revision: AtomicU64,
    loaded_at: AtomicU64,
    /// 1 if the last load of the configuration was rejected, 0 otherwise.
    stale: AtomicU64,
    exemplars: Exemplars,
}

/// The counters of one thread, on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct MetricsShard {
    /// The number of checks that were allowed, denied, and allowed by global shadow mode.
    verdicts: [AtomicU64; 3],
    reasons: [AtomicU64; Reason::ALL.len()],
    near_limit: AtomicU64,
    requests: [[AtomicU64; EdgeOutcome::ALL.len()]; Protocol::ALL.len()],
    memory_full: [AtomicU64; 2],
    failed_charges: [AtomicU64; StoreFailure::ALL.len()],
    cached_denials: AtomicU64,
    /// The number of rejections. First index: position in [`ConcurrencyLimitExceeded::REASONS`].
    /// Second index: 1 if enforced.
    limit_exceeded: [[AtomicU64; 2]; ConcurrencyLimitExceeded::REASONS.len()],
    permit_ids: [AtomicU64; PermitIdEvent::ALL.len()],
    share_events: [AtomicU64; ShareEvent::ALL.len()],
    strict_permits: [AtomicU64; StrictPermitEvent::ALL.len()],
    fallback_debt: [AtomicU64; FallbackDebtOutcome::ALL.len()],
    leased_hits: [AtomicU64; LeasedHitsEvent::ALL.len()],
    lease_calls: AtomicU64,
    lease_messages: AtomicU64,
    /// The histogram of check durations: one count for each bucket, not cumulative. The last bucket
    /// has no upper bound.
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_sum: AtomicU64,
    /// The histogram of checks per store call, not cumulative.
    checks_per_call: [AtomicU64; CHECK_COUNT_BOUNDS.len() + 1],
    checks_sum: AtomicU64,
    datagrams: [AtomicU64; DatagramKind::ALL.len()],
    forwarding: [AtomicU64; ForwardingEvent::ALL.len()],
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
    /// The state of each concurrency limit in use.
    pub concurrency_limits: Vec<ConcurrencyGauges>,
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
struct ThreadShard<'m> {
    shard: &'m MetricsShard,
    /// `true` if no other thread writes to the shard.
    is_exclusive: bool,
}

impl ThreadShard<'_> {
    fn add(&self, cell: &AtomicU64, by: u64) {
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
            shards: [const { MetricsShard::new() }; SHARD_COUNT],
            accepted_loads: AtomicU64::new(0),
            rejected_loads: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            loaded_at: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            exemplars: Exemplars::new(),
        }
    }

    pub(super) fn count_check(
        &self,
        verdict: Verdict,
        shadowed: bool,
        reasons: impl Iterator<Item = Reason>,
        near: u64,
    ) {
        let mine = self.thread_shard();
        if near != 0 {
            mine.add(&mine.shard.near_limit, near);
        }
        mine.add(&mine.shard.verdicts[if shadowed { 2 } else { verdict as usize }], 1);
        reasons.for_each(|reason| mine.add(&mine.shard.reasons[reason as usize], 1));
    }

    pub(super) fn count_duration(&self, took: Nanos) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.durations[bucket_of(took)], 1);
        mine.add(&mine.shard.duration_sum, took.0);
    }

    pub(super) fn record_exemplar(&self, answered: CheckAnswered, traced: SpanIds) {
        let took = answered.duration();
        self.exemplars.record(
            bucket_of(took),
            Exemplar { span: traced, duration: took, replied_at: answered.replied_at },
        );
    }

    pub(super) fn count_request(&self, request: RequestCompleted) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.requests[request.protocol as usize][request.outcome as usize], 1);
    }

    pub(super) fn count_memory_full(&self, verdict: Verdict) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.memory_full[verdict as usize], 1);
    }

    pub(super) fn count_failed_charges(&self, failed: ChargesFailed) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.failed_charges[failed.cause as usize], failed.charges);
    }

    pub(super) fn count_cached_denials(&self, denials: u64) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.cached_denials, denials);
    }

    pub(super) fn count_limit_exceeded(&self, rejection: ConcurrencyLimitExceeded) {
        let reasons = ConcurrencyLimitExceeded::REASONS;
        let Some(at) = reasons.iter().position(|reason| *reason == rejection.reason) else {
            return;
        };
        let mine = self.thread_shard();
        mine.add(&mine.shard.limit_exceeded[at][usize::from(rejection.is_enforced)], 1);
    }

    pub(super) fn count_permit_id(&self, seen: PermitIdObserved) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.permit_ids[seen.0 as usize], 1);
    }

    pub(super) fn count_share_event(&self, event: ShareEvent) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.share_events[event as usize], 1);
    }

    pub(super) fn count_strict_permits(&self, event: StrictPermitEvent, permits: u64) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.strict_permits[event as usize], permits);
    }

    pub(super) fn count_fallback_debt(&self, debt: FallbackDebtEnded) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.fallback_debt[debt.outcome as usize], debt.hits.0);
    }

    pub(super) fn count_leased_hits(&self, leased: LeasedHits) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.leased_hits[leased.event as usize], leased.hits.0);
    }

    pub(super) fn count_lease_call(&self, called: LeaseCallSent) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.lease_calls, 1);
        mine.add(&mine.shard.lease_messages, called.messages as u64);
    }

    pub(super) fn count_store_call(&self, called: StoreCallSent) {
        let (mine, checks) =
            (self.thread_shard(), u64::try_from(called.checks).unwrap_or(u64::MAX));
        let bucket = CHECK_COUNT_BOUNDS.iter().position(|bound| checks <= *bound);
        mine.add(&mine.shard.checks_per_call[bucket.unwrap_or(CHECK_COUNT_BOUNDS.len())], 1);
        mine.add(&mine.shard.checks_sum, checks);
    }

    pub(super) fn count_datagram(&self, outcome: DatagramKind) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.datagrams[outcome as usize], 1);
    }

    pub(super) fn count_forwarding(&self, forwarded: ForwardingCount) {
        let mine = self.thread_shard();
        mine.add(&mine.shard.forwarding[forwarded.event as usize], forwarded.releases);
    }

    pub(super) fn record_load(&self, loaded: ConfigLoaded) {
        self.accepted_loads.fetch_add(1, Relaxed);
        self.stale.store(0, Relaxed);
        self.revision.store(loaded.revision.0, Relaxed);
        self.loaded_at.store(loaded.loaded_at.0, Relaxed);
    }

    pub(super) fn record_rejected_load(&self) {
        self.rejected_loads.fetch_add(1, Relaxed);
        self.stale.store(1, Relaxed);
    }

    fn thread_shard(&self) -> ThreadShard<'_> {
        let number = THREAD_SHARD.with(|mine| {
            if mine.get() == usize::MAX {
                mine.set(NEXT_THREAD.fetch_add(1, Relaxed).min(SHARD_COUNT - 1));
            }
            mine.get()
        });
        ThreadShard { shard: &self.shards[number], is_exclusive: number < SHARD_COUNT - 1 }
    }

    fn sum(&self, cell: impl Fn(&MetricsShard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| cell(shard).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

fn bucket_of(took: Nanos) -> usize {
    DURATION_BOUNDS.iter().position(|&(bound, _)| took <= bound).unwrap_or(DURATION_BOUNDS.len())
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl MetricsShard {
    const fn new() -> Self {
        Self {
            verdicts: [const { AtomicU64::new(0) }; 3],
            reasons: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            near_limit: AtomicU64::new(0),
            requests: [const { [const { AtomicU64::new(0) }; EdgeOutcome::ALL.len()] };
                Protocol::ALL.len()],
            memory_full: [const { AtomicU64::new(0) }; 2],
            failed_charges: [const { AtomicU64::new(0) }; StoreFailure::ALL.len()],
            cached_denials: AtomicU64::new(0),
            limit_exceeded: [const { [const { AtomicU64::new(0) }; 2] };
                ConcurrencyLimitExceeded::REASONS.len()],
            permit_ids: [const { AtomicU64::new(0) }; PermitIdEvent::ALL.len()],
            share_events: [const { AtomicU64::new(0) }; ShareEvent::ALL.len()],
            strict_permits: [const { AtomicU64::new(0) }; StrictPermitEvent::ALL.len()],
            fallback_debt: [const { AtomicU64::new(0) }; FallbackDebtOutcome::ALL.len()],
            leased_hits: [const { AtomicU64::new(0) }; LeasedHitsEvent::ALL.len()],
            lease_calls: AtomicU64::new(0),
            lease_messages: AtomicU64::new(0),
            durations: [const { AtomicU64::new(0) }; DURATION_BOUNDS.len() + 1],
            duration_sum: AtomicU64::new(0),
            checks_per_call: [const { AtomicU64::new(0) }; CHECK_COUNT_BOUNDS.len() + 1],
            checks_sum: AtomicU64::new(0),
            datagrams: [const { AtomicU64::new(0) }; DatagramKind::ALL.len()],
            forwarding: [const { AtomicU64::new(0) }; ForwardingEvent::ALL.len()],
        }
    }
}

impl Metrics {
    /// Returns the metrics page in Prometheus' text format 0.0.4.
    #[must_use]
    pub const fn page(&self, gauges: Gauges) -> MetricsPage<'_> {
        MetricsPage { metrics: self, gauges }
    }
}

/// The metrics page. [`fmt::Display`] renders it.
#[derive(Clone, Debug)]
pub struct MetricsPage<'m> {
    metrics: &'m Metrics,
    gauges: Gauges,
}

impl fmt::Display for MetricsPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metrics.write_decisions(f)?;
        self.metrics.write_durations(f)?;
        self.metrics.write_requests(f)?;
        self.metrics.write_config(f)?;
        self.metrics.write_store(f, &self.gauges)?;
        self.metrics.write_concurrency(f, &self.gauges.concurrency)?;
        self.metrics.write_leases(f, self.gauges.leases)?;
        self.metrics.write_datagrams(f)?;
        concurrency::write_series(f, &self.gauges.concurrency_limits)?;
        write_process(f, &self.gauges)
    }
}

impl Metrics {
    fn write_decisions(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(page, "sluicegate_checks_total", "counter", "Checks, by verdict")?;
        for (index, verdict) in ["allow", "deny", "shadow_deny"].into_iter().enumerate() {
            let n = self.sum(|shard| &shard.verdicts[index]);
            writeln!(page, "sluicegate_checks_total{{verdict=\"{verdict}\"}} {n}")?;
        }
        write_head(
            page,
            "sluicegate_descriptors_decided_total",
            "counter",
            "Descriptors, by reason",
        )?;
        for reason in Reason::ALL {
            let n = self.sum(|shard| &shard.reasons[reason as usize]);
            let reason = reason.as_str();
            writeln!(page, "sluicegate_descriptors_decided_total{{reason=\"{reason}\"}} {n}")?;
        }
        let name = "sluicegate_descriptors_near_limit_total";
        write_head(
            page,
            name,
            "counter",
            "Descriptors allowed above near_limit_ratio of their limit",
        )?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.near_limit))?;
        Ok(())
    }

    fn write_durations(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = DURATION_METRIC;
        write_head(page, name, "histogram", "Time from a message decoded to its reply")?;
        let mut below = 0;
        for (index, le) in DURATION_BOUNDS.iter().map(|&(_, le)| le).chain(["+Inf"]).enumerate() {
            below += self.sum(|shard| &shard.durations[index]);
            writeln!(page, "{name}_bucket{{le=\"{le}\"}} {below}")?;
        }
        let sum = DecimalSeconds(Nanos(self.sum(|shard| &shard.duration_sum)));
        writeln!(page, "{name}_sum {sum}\n{name}_count {below}")
    }

    fn write_requests(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_edge_requests_total";
        write_head(page, name, "counter", "Requests, by protocol and outcome")?;
        for protocol in Protocol::ALL {
            for outcome in EdgeOutcome::ALL {
                let n = self.sum(|shard| &shard.requests[protocol as usize][outcome as usize]);
                let (protocol, outcome) = (protocol.as_str(), outcome.as_str());
                writeln!(page, "{name}{{protocol=\"{protocol}\",outcome=\"{outcome}\"}} {n}")?;
            }
        }
        Ok(())
    }

    fn write_config(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_config_loads_total";
        write_head(page, name, "counter", "Configuration loads, by outcome")?;
        for (outcome, cell) in
            [("accepted", &self.accepted_loads), ("rejected", &self.rejected_loads)]
        {
            writeln!(page, "{name}{{outcome=\"{outcome}\"}} {}", cell.load(Relaxed))?;
        }
        let name = "sluicegate_config_revision";
        write_head(
            page,
            name,
            "gauge",
            "The revision of the current configuration, 0 before the first",
        )?;
        writeln!(page, "{name} {}", self.revision.load(Relaxed))?;
        let name = "sluicegate_config_stale";
        write_head(page, name, "gauge", "1 if the last load was rejected")?;
        writeln!(page, "{name} {}", self.stale.load(Relaxed))?;
        let name = "sluicegate_config_loaded_timestamp_seconds";
        write_head(page, name, "gauge", "The time of the last accepted load, Unix time")?;
        writeln!(page, "{name} {}", DecimalSeconds(Nanos(self.loaded_at.load(Relaxed))))
    }

    fn write_store(&self, page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
        let name = "sluicegate_memory_keys";
        write_head(page, name, "gauge", "Live keys of the memory store")?;
        writeln!(page, "{name} {}", gauges.keys)?;
        let name = "sluicegate_memory_keys_max";
        write_head(page, name, "gauge", "The largest number of live keys")?;
        writeln!(page, "{name} {}", gauges.max_keys)?;
        let name = "sluicegate_memory_full_total";
        write_head(
            page,
            name,
            "counter",
            "New keys while the memory store was full, by the verdict of `when_full`",
        )?;
        for (index, verdict) in ["allow", "deny"].into_iter().enumerate() {
            let n = self.sum(|shard| &shard.memory_full[index]);
            writeln!(page, "{name}{{verdict=\"{verdict}\"}} {n}")?;
        }
        let name = "sluicegate_store_failures_total";
        write_head(
            page,
            name,
            "counter",
            "Charges without a reply from the shared store, by cause",
        )?;
        for cause in StoreFailure::ALL {
            let n = self.sum(|shard| &shard.failed_charges[cause as usize]);
            writeln!(page, "{name}{{cause=\"{}\"}} {n}", cause.as_str())?;
        }
        let name = "sluicegate_cached_denials_total";
        write_head(page, name, "counter", "Denials from the deny cache, without a store call")?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.cached_denials))?;
        let name = "sluicegate_fallback_debt_hits_total";
        write_head(
            page,
            name,
            "counter",
            "Hits allowed while the store was unavailable, by outcome of their fallback debt",
        )?;
        for outcome in FallbackDebtOutcome::ALL {
            let n = self.sum(|shard| &shard.fallback_debt[outcome as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", outcome.as_str())?;
        }
        self.write_store_calls(page)?;
        let name = "sluicegate_store_up";
        write_head(page, name, "gauge", "1 while the store is available, else 0")?;
        writeln!(page, "{name} {}", u8::from(!gauges.is_store_down))
    }
}

impl Metrics {
    fn write_store_calls(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_store_call_checks";
        write_head(
            page,
            name,
            "histogram",
            "Script calls to the shared store, by number of checks",
        )?;
        let mut below = 0;
        for (index, bound) in CHECK_COUNT_BOUNDS.iter().enumerate() {
            below += self.sum(|shard| &shard.checks_per_call[index]);
            writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {below}")?;
        }
        below += self.sum(|shard| &shard.checks_per_call[CHECK_COUNT_BOUNDS.len()]);
        writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {below}")?;
        let sum = self.sum(|shard| &shard.checks_sum);
        writeln!(page, "{name}_sum {sum}\n{name}_count {below}")
    }
}

impl Metrics {
    fn write_concurrency(
        &self,
        page: &mut fmt::Formatter<'_>,
        total: &ConcurrencyTotals,
    ) -> fmt::Result {
        let gauges = [
            ("sluicegate_requests_in_flight", "Requests with a permit", total.in_flight),
            ("sluicegate_requests_queued", "Requests that wait for a permit", total.waiting),
            (
                "sluicegate_concurrency_limits",
                "The sum of all concurrency limits; of a strict limit, this replica's part",
                total.limit,
            ),
            ("sluicegate_concurrency_buckets", "Buckets of concurrency limits", total.buckets),
            (
                "sluicegate_concurrency_buckets_max",
                "The largest number of buckets",
                total.max_buckets,
            ),
            (
                "sluicegate_early_releases",
                "Early releases that wait for their acquire",
                total.early_releases,
            ),
            (
                "sluicegate_early_releases_max",
                "The largest number of early releases",
                total.max_early_releases,
            ),
        ];
        for (name, help, value) in gauges {
            write_head(page, name, "gauge", help)?;
            writeln!(page, "{name} {value}")?;
        }
        let name = "sluicegate_concurrency_limit_reached_total";
        write_head(
            page,
            name,
            "counter",
            "Requests rejected by a concurrency limit; enforced is no in shadow mode",
        )?;
        for (at, reason) in ConcurrencyLimitExceeded::REASONS.iter().enumerate() {
            for (enforced, word) in ["no", "yes"].into_iter().enumerate() {
                let n = self.sum(|shard| &shard.limit_exceeded[at][enforced]);
                let reason = reason.as_str();
                writeln!(page, "{name}{{reason=\"{reason}\",enforced=\"{word}\"}} {n}")?;
            }
        }
        let name = "sluicegate_permit_ids_total";
        write_head(page, name, "counter", "Request ids, by event")?;
        for event in PermitIdEvent::ALL {
            let n = self.sum(|shard| &shard.permit_ids[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        let name = "sluicegate_shares_total";
        write_head(page, name, "counter", "Shares of fleet-wide concurrency limits, by event")?;
        for event in ShareEvent::ALL {
            let n = self.sum(|shard| &shard.share_events[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        let name = "sluicegate_strict_permits_total";
        write_head(page, name, "counter", "Permits of strict concurrency limits, by event")?;
        for event in StrictPermitEvent::ALL {
            let n = self.sum(|shard| &shard.strict_permits[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        Ok(())
    }
}

impl Metrics {
    fn write_leases(&self, page: &mut fmt::Formatter<'_>, totals: LeaseTotals) -> fmt::Result {
        let name = "sluicegate_lease_keys";
        write_head(page, name, "gauge", "Keys of leased limits with a balance")?;
        writeln!(page, "{name} {}", totals.keys)?;
        let name = "sluicegate_lease_balance_hits";
        write_head(page, name, "gauge", "Unspent hits of leases")?;
        writeln!(page, "{name} {}", totals.hits)?;
        let name = "sluicegate_lease_calls_total";
        write_head(
            page,
            name,
            "counter",
            "Script calls that borrow or return hits, for one or more keys",
        )?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.lease_calls))?;
        let name = "sluicegate_lease_messages_total";
        write_head(page, name, "counter", "Lease messages, one for each key")?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.lease_messages))?;
        let name = "sluicegate_lease_hits_total";
        write_head(page, name, "counter", "Leased hits, by outcome")?;
        for end in LeasedHitsEvent::ALL {
            let n = self.sum(|shard| &shard.leased_hits[end as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", end.as_str())?;
        }
        Ok(())
    }

    fn write_datagrams(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_syslog_datagrams_total";
        write_head(page, name, "counter", "Datagrams to the syslog port, by kind")?;
        for kind in DatagramKind::ALL {
            let n = self.sum(|shard| &shard.datagrams[kind as usize]);
            writeln!(page, "{name}{{kind=\"{}\"}} {n}", kind.as_str())?;
        }
        let name = "sluicegate_forwarded_releases_total";
        write_head(page, name, "counter", "Forwarded releases, by event")?;
        for event in ForwardingEvent::ALL {
            let n = self.sum(|shard| &shard.forwarding[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        Ok(())
    }
}

fn write_process(page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
    let name = "process_start_time_seconds";
    write_head(page, name, "gauge", "The start of this process, Unix time")?;
    writeln!(page, "{name} {}", DecimalSeconds(gauges.started_at))?;
    if let Some(process) = &gauges.process {
        process.write(page)?;
    }
    let name = "sluicegate_build_info";
    write_head(page, name, "gauge", "Always 1; the version is its label")?;
    writeln!(page, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))
}

fn write_head(page: &mut fmt::Formatter<'_>, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(page, "# HELP {name} {help}.\n# TYPE {name} {kind}")
}

/// Nanoseconds, formatted as seconds with nine decimals.
struct DecimalSeconds(Nanos);

impl fmt::Display for DecimalSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.0 / 1_000_000_000, self.0.0 % 1_000_000_000)
    }
}
