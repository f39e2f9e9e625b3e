//! Sluicegate's own metrics: names, units, labels and counters.
//!
//! The crate `prometheus-client` would be too slow: each count takes a lock, and all cores share
//! one counter.
//!
//! Guarantees:
//! - Counting is wait-free and exact, and takes a few nanoseconds.
//! - The metrics page is in Prometheus' text format 0.0.4, or in OpenMetrics with exemplars.
//! - The values of every label come from a closed list.

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

/// The number of copies of all counters. Each of the first 63 threads has its own copy; further
/// threads share the last copy.
const SHARD_COUNT: usize = 64;

/// The upper bounds of the histogram of check durations, with the label `le` in seconds.
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

const DURATION_METRIC: &str = "sluicegate_decision_duration_seconds";

const CHECK_COUNT_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// The counters of a process ([`METRICS`]) or of a test.
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

/// One copy of the counters, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct MetricsShard {
    /// The numbers of allowed checks, denied checks, and checks that shadow mode allowed.
    verdicts: [AtomicU64; 3],
    reasons: [AtomicU64; Reason::ALL.len()],
    near_limit: AtomicU64,
    requests: [[AtomicU64; EdgeOutcome::ALL.len()]; Protocol::ALL.len()],
    memory_full: [AtomicU64; 2],
    failed_charges: [AtomicU64; StoreFailure::ALL.len()],
    cached_denials: AtomicU64,
    /// The number of rejections, by [`ConcurrencyLimitExceeded::REASONS`] and `is_enforced`.
    limit_exceeded: [[AtomicU64; 2]; ConcurrencyLimitExceeded::REASONS.len()],
    permit_ids: [AtomicU64; PermitIdEvent::ALL.len()],
    share_events: [AtomicU64; ShareEvent::ALL.len()],
    strict_permits: [AtomicU64; StrictPermitEvent::ALL.len()],
    fallback_debt: [AtomicU64; FallbackDebtOutcome::ALL.len()],
    leased_hits: [AtomicU64; LeasedHitsEvent::ALL.len()],
    lease_calls: AtomicU64,
    lease_messages: AtomicU64,
    /// The number of checks in each bucket of [`DURATION_BOUNDS`]. The last bucket is unbounded.
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_sum: AtomicU64,
    /// The number of store calls in each bucket of [`CHECK_COUNT_BOUNDS`].
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
    /// The sum of all concurrency limits.
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

/// The shard of the next new thread. Never reused, so each shard but the last has one writer.
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

struct ThreadShard<'m> {
    shard: &'m MetricsShard,
    /// `true` if no other thread writes to the shard.
    is_exclusive: bool,
}

impl ThreadShard<'_> {
    fn add(&self, counter: &AtomicU64, count: u64) {
        if self.is_exclusive {
            counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
        } else {
            counter.fetch_add(count, Relaxed);
        }
    }
}

impl Metrics {
    /// Creates a set of counters that are all zero.
    #[must_use]
    #[expect(clippy::large_stack_arrays, reason = "used for a static, which the compiler creates")]
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
        is_shadowed: bool,
        reasons: impl Iterator<Item = Reason>,
        near_limit: u64,
    ) {
        let thread = self.thread_shard();
        if near_limit != 0 {
            thread.add(&thread.shard.near_limit, near_limit);
        }
        thread.add(&thread.shard.verdicts[if is_shadowed { 2 } else { verdict as usize }], 1);
        reasons.for_each(|reason| thread.add(&thread.shard.reasons[reason as usize], 1));
    }

    pub(super) fn count_duration(&self, duration: Nanos) {
        let thread = self.thread_shard();
        thread.add(&thread.shard.durations[bucket_of(duration)], 1);
        thread.add(&thread.shard.duration_sum, duration.0);
    }

    pub(super) fn record_exemplar(&self, answered: CheckAnswered, span: SpanIds) {
        let duration = answered.duration();
        let exemplar = Exemplar { span, duration, replied_at: answered.replied_at };
        self.exemplars.record(bucket_of(duration), exemplar);
    }

    pub(super) fn count_request(&self, request: RequestCompleted) {
        self.add(|shard| &shard.requests[request.protocol as usize][request.outcome as usize], 1);
    }

    pub(super) fn count_memory_full(&self, verdict: Verdict) {
        self.add(|shard| &shard.memory_full[verdict as usize], 1);
    }

    pub(super) fn count_failed_charges(&self, failed: ChargesFailed) {
        self.add(|shard| &shard.failed_charges[failed.cause as usize], failed.charges);
    }

    pub(super) fn count_cached_denials(&self, denials: u64) {
        self.add(|shard| &shard.cached_denials, denials);
    }

    pub(super) fn count_limit_exceeded(&self, rejection: ConcurrencyLimitExceeded) {
        let reasons = ConcurrencyLimitExceeded::REASONS;
        let Some(index) = reasons.iter().position(|reason| *reason == rejection.reason) else {
            return;
        };
        self.add(|shard| &shard.limit_exceeded[index][usize::from(rejection.is_enforced)], 1);
    }

    pub(super) fn count_permit_id(&self, observed: PermitIdObserved) {
        self.add(|shard| &shard.permit_ids[observed.0 as usize], 1);
    }

    pub(super) fn count_share_event(&self, event: ShareEvent) {
        self.add(|shard| &shard.share_events[event as usize], 1);
    }

    pub(super) fn count_strict_permits(&self, event: StrictPermitEvent, permits: u64) {
        self.add(|shard| &shard.strict_permits[event as usize], permits);
    }

    pub(super) fn count_fallback_debt(&self, debt: FallbackDebtEnded) {
        self.add(|shard| &shard.fallback_debt[debt.outcome as usize], debt.hits.0);
    }

    pub(super) fn count_leased_hits(&self, leased: LeasedHits) {
        self.add(|shard| &shard.leased_hits[leased.event as usize], leased.hits.0);
    }

    pub(super) fn count_lease_call(&self, call: LeaseCallSent) {
        let thread = self.thread_shard();
        thread.add(&thread.shard.lease_calls, 1);
        thread.add(&thread.shard.lease_messages, call.messages as u64);
    }

    pub(super) fn count_store_call(&self, call: StoreCallSent) {
        let (thread, checks) =
            (self.thread_shard(), u64::try_from(call.checks).unwrap_or(u64::MAX));
        let bucket = CHECK_COUNT_BOUNDS.iter().position(|bound| checks <= *bound);
        thread.add(&thread.shard.checks_per_call[bucket.unwrap_or(CHECK_COUNT_BOUNDS.len())], 1);
        thread.add(&thread.shard.checks_sum, checks);
    }

    pub(super) fn count_datagram(&self, kind: DatagramKind) {
        self.add(|shard| &shard.datagrams[kind as usize], 1);
    }

    pub(super) fn count_forwarding(&self, forwarded: ForwardingCount) {
        self.add(|shard| &shard.forwarding[forwarded.event as usize], forwarded.releases);
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

    fn add(&self, counter: impl FnOnce(&MetricsShard) -> &AtomicU64, count: u64) {
        let thread = self.thread_shard();
        thread.add(counter(thread.shard), count);
    }

    fn thread_shard(&self) -> ThreadShard<'_> {
        let index = THREAD_SHARD.with(|index| {
            if index.get() == usize::MAX {
                index.set(NEXT_THREAD.fetch_add(1, Relaxed).min(SHARD_COUNT - 1));
            }
            index.get()
        });
        ThreadShard { shard: &self.shards[index], is_exclusive: index < SHARD_COUNT - 1 }
    }

    fn sum(&self, counter: impl Fn(&MetricsShard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| counter(shard).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

fn bucket_of(duration: Nanos) -> usize {
    DURATION_BOUNDS
        .iter()
        .position(|&(bound, _)| duration <= bound)
        .unwrap_or(DURATION_BOUNDS.len())
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
        for (index, verdict) in ["admit", "deny", "shadow_deny"].into_iter().enumerate() {
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
        write_value(
            page,
            "sluicegate_descriptors_near_limit_total",
            "counter",
            "Descriptors allowed above near_limit_ratio of their limit",
            self.sum(|shard| &shard.near_limit),
        )?;
        Ok(())
    }

    fn write_durations(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = DURATION_METRIC;
        write_head(page, name, "histogram", "Time from a message decoded to its reply")?;
        let mut cumulative = 0;
        for (index, le) in DURATION_BOUNDS.iter().map(|&(_, le)| le).chain(["+Inf"]).enumerate() {
            cumulative += self.sum(|shard| &shard.durations[index]);
            writeln!(page, "{name}_bucket{{le=\"{le}\"}} {cumulative}")?;
        }
        let sum = DecimalSeconds(Nanos(self.sum(|shard| &shard.duration_sum)));
        writeln!(page, "{name}_sum {sum}\n{name}_count {cumulative}")
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
        for (outcome, counter) in
            [("accepted", &self.accepted_loads), ("refused", &self.rejected_loads)]
        {
            writeln!(page, "{name}{{outcome=\"{outcome}\"}} {}", counter.load(Relaxed))?;
        }
        write_value(
            page,
            "sluicegate_config_revision",
            "gauge",
            "The revision of the current configuration, 0 before the first",
            self.revision.load(Relaxed),
        )?;
        write_value(
            page,
            "sluicegate_config_stale",
            "gauge",
            "1 if the last load was rejected",
            self.stale.load(Relaxed),
        )?;
        write_value(
            page,
            "sluicegate_config_loaded_timestamp_seconds",
            "gauge",
            "The time of the last accepted load, Unix time",
            DecimalSeconds(Nanos(self.loaded_at.load(Relaxed))),
        )
    }

    fn write_store(&self, page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
        write_value(
            page,
            "sluicegate_memory_keys",
            "gauge",
            "Live keys of the memory store",
            gauges.keys,
        )?;
        write_value(
            page,
            "sluicegate_memory_keys_max",
            "gauge",
            "The largest number of live keys",
            gauges.max_keys,
        )?;
        let name = "sluicegate_memory_full_total";
        write_head(
            page,
            name,
            "counter",
            "New keys while the memory store was full, by the verdict of `when_full`",
        )?;
        for (index, verdict) in ["admit", "deny"].into_iter().enumerate() {
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
        write_value(
            page,
            "sluicegate_denials_remembered_total",
            "counter",
            "Denials from the deny cache, without a store call",
            self.sum(|shard| &shard.cached_denials),
        )?;
        let name = "sluicegate_local_hits_total";
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
        write_value(
            page,
            "sluicegate_store_up",
            "gauge",
            "1 while the store is available, else 0",
            u8::from(!gauges.is_store_down),
        )
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
        let mut cumulative = 0;
        for (index, bound) in CHECK_COUNT_BOUNDS.iter().enumerate() {
            cumulative += self.sum(|shard| &shard.checks_per_call[index]);
            writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {cumulative}")?;
        }
        cumulative += self.sum(|shard| &shard.checks_per_call[CHECK_COUNT_BOUNDS.len()]);
        writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {cumulative}")?;
        let sum = self.sum(|shard| &shard.checks_sum);
        writeln!(page, "{name}_sum {sum}\n{name}_count {cumulative}")
    }
}

impl Metrics {
    fn write_concurrency(
        &self,
        page: &mut fmt::Formatter<'_>,
        total: &ConcurrencyTotals,
    ) -> fmt::Result {
        let gauges = [
            ("sluicegate_requests_in_flight", "Requests that hold a permit", total.in_flight),
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
            write_value(page, name, "gauge", help, value)?;
        }
        let name = "sluicegate_concurrency_limit_reached_total";
        write_head(
            page,
            name,
            "counter",
            "Requests rejected by a concurrency limit; enforced is no in shadow mode",
        )?;
        for (index, reason) in ConcurrencyLimitExceeded::REASONS.iter().enumerate() {
            for (is_enforced, enforced) in ["no", "yes"].into_iter().enumerate() {
                let n = self.sum(|shard| &shard.limit_exceeded[index][is_enforced]);
                let reason = reason.as_str();
                writeln!(page, "{name}{{reason=\"{reason}\",enforced=\"{enforced}\"}} {n}")?;
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
        write_value(
            page,
            "sluicegate_lease_keys",
            "gauge",
            "Keys of leased limits with a balance",
            totals.keys,
        )?;
        write_value(
            page,
            "sluicegate_lease_balance_hits",
            "gauge",
            "Unspent hits of leases",
            totals.hits,
        )?;
        write_value(
            page,
            "sluicegate_lease_calls_total",
            "counter",
            "Script calls that borrow or return hits, for one or more keys",
            self.sum(|shard| &shard.lease_calls),
        )?;
        write_value(
            page,
            "sluicegate_lease_messages_total",
            "counter",
            "Lease messages, one for each key",
            self.sum(|shard| &shard.lease_messages),
        )?;
        let name = "sluicegate_lease_hits_total";
        write_head(page, name, "counter", "Leased hits, by outcome")?;
        for event in LeasedHitsEvent::ALL {
            let n = self.sum(|shard| &shard.leased_hits[event as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", event.as_str())?;
        }
        Ok(())
    }

    fn write_datagrams(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_syslog_datagrams_total";
        write_head(page, name, "counter", "Datagrams to the syslog port, by kind")?;
        for kind in DatagramKind::ALL {
            let n = self.sum(|shard| &shard.datagrams[kind as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", kind.as_str())?;
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
    write_value(
        page,
        "process_start_time_seconds",
        "gauge",
        "The start of this process, Unix time",
        DecimalSeconds(gauges.started_at),
    )?;
    if let Some(process) = &gauges.process {
        process.write(page)?;
    }
    let name = "sluicegate_build_info";
    write_head(page, name, "gauge", "Always 1; the version is its label")?;
    writeln!(page, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))
}

fn write_value(
    page: &mut fmt::Formatter<'_>,
    name: &str,
    kind: &str,
    help: &str,
    value: impl fmt::Display,
) -> fmt::Result {
    write_head(page, name, kind, help)?;
    writeln!(page, "{name} {value}")
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
