//! Renders the metrics page in Prometheus' text format 0.0.4.
//!
//! Guarantees:
//! - Every series of a metric is shown, also at zero.
//!
//! Not covered:
//! - OpenMetrics (see [`super::to_openmetrics`]).

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::buckets::{CHECK_COUNT_BOUNDS, DURATION_BOUNDS, DURATION_METRIC};
use super::concurrency::write_series;
use super::mirror::write_mirror_differences;
use super::rule_decisions::write_rule_decisions;
use super::tables::write_tables;
use super::text_format::{DecimalSeconds, MetricHead};
use super::{ConcurrencyTotals, Counters, Gauges, LeaseTotals, Metrics};
use crate::kernel::decision::{Reason, StoreFailure};
use crate::kernel::units::Nanos;
use crate::label::{
    BanEvent, BudgetEvent, CONCURRENCY_REASONS, CloudEventOutcome, ConnectionFailure, DatagramKind,
    EdgeOutcome, FallbackDebtOutcome, ForwardingEvent, LeasedHitsEvent, ListenPort, MirrorOutcome,
    PermitIdEvent, Protocol, ProxyMessageKind, ShareEvent, StrictPermitEvent, VERDICTS,
};

impl Metrics {
    /// Returns the metrics page in Prometheus' text format 0.0.4.
    #[must_use]
    pub const fn page(&self, gauges: Gauges) -> MetricsPage<'_> {
        MetricsPage { metrics: self, gauges }
    }

    /// Returns the values of a label with their counts, where `counters` are in the order of
    /// `values`.
    fn series<const N: usize>(
        &self,
        values: [&'static str; N],
        counters: impl Fn(&Counters) -> &[AtomicU64; N],
    ) -> [(&'static str, u64); N] {
        array::from_fn(|at| (values[at], self.sum(|shard| &counters(shard)[at])))
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
        write_rule_decisions(f, &self.gauges.rule_decisions)?;
        self.metrics.write_durations(f)?;
        self.metrics.write_requests(f)?;
        self.metrics.write_config(f)?;
        self.metrics.write_store(f, &self.gauges)?;
        self.metrics.write_concurrency(f, &self.gauges.concurrency)?;
        self.metrics.write_leases(f, self.gauges.leases)?;
        self.metrics.write_proxies(f, self.gauges.lease_proxies)?;
        self.metrics.write_datagrams(f)?;
        self.metrics.write_connections(f)?;
        self.metrics.write_bodies(f, &self.gauges)?;
        self.metrics.write_bans(f, self.gauges.bans)?;
        self.metrics.write_cloud_events(f, self.gauges.undelivered_events)?;
        self.metrics.write_mirror(f)?;
        write_mirror_differences(f, &self.gauges.mirror_differences)?;
        write_tables(f, &self.gauges.tables)?;
        write_series(f, &self.gauges.concurrency_limits)?;
        self.metrics.limit_events.write(f)?;
        write_process(f, &self.gauges)
    }
}

impl Metrics {
    fn write_decisions(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdicts = self.series(VERDICTS, |shard| &shard.verdicts);
        MetricHead("sluicegate_checks_total", "Checks, by verdict")
            .write_counters(page, "verdict", verdicts)?;
        let reasons = self.series(Reason::ALL.map(Reason::as_str), |shard| &shard.reasons);
        MetricHead("sluicegate_descriptors_decided_total", "Descriptors, by reason")
            .write_counters(page, "reason", reasons)?;
        MetricHead(
            "sluicegate_descriptors_near_limit_total",
            "Descriptors allowed above the part telemetry.near_limit of their limit",
        )
        .write_counter(page, self.sum(|shard| &shard.near_limit))?;
        MetricHead(
            "sluicegate_table_unknown_ids_total",
            "Limits of ids that their table does not have, by the number of the rule instead",
        )
        .write_counter(page, self.sum(|shard| &shard.unknown_table_ids))
    }

    fn write_durations(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = DURATION_BOUNDS.iter().map(|&(_, bound)| bound).chain(["+Inf"]);
        let count = |(at, bound)| (bound, self.sum(|shard| &shard.durations[at]));
        let sum = DecimalSeconds(Nanos(self.sum(|shard| &shard.duration_sum)));
        MetricHead(DURATION_METRIC, "Time from a message decoded to its reply").write_histogram(
            page,
            bounds.enumerate().map(count),
            sum,
        )
    }

    fn write_requests(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_edge_requests_total";
        MetricHead(name, "Requests, by protocol and outcome").write(page, "counter")?;
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
        let loads = [("accepted", &self.accepted_loads), ("rejected", &self.rejected_loads)];
        MetricHead("sluicegate_config_loads_total", "Configuration loads, by outcome")
            .write_counters(page, "outcome", loads.map(|(name, n)| (name, n.load(Relaxed))))?;
        MetricHead(
            "sluicegate_config_revision",
            "The revision of the current configuration, 0 before the first",
        )
        .write_gauge(page, self.revision.load(Relaxed))?;
        MetricHead("sluicegate_config_stale", "1 if the last load was rejected")
            .write_gauge(page, self.stale.load(Relaxed))?;
        MetricHead(
            "sluicegate_config_loaded_timestamp_seconds",
            "The time of the last accepted load, Unix time",
        )
        .write_gauge(page, DecimalSeconds(Nanos(self.loaded_at.load(Relaxed))))
    }

    fn write_store(&self, page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
        MetricHead("sluicegate_memory_keys", "Live keys of the memory store")
            .write_gauge(page, gauges.keys)?;
        MetricHead("sluicegate_memory_keys_max", "The largest number of live keys")
            .write_gauge(page, gauges.max_keys)?;
        MetricHead(
            "sluicegate_memory_full_total",
            "New keys while the memory store was full, by the verdict of `when_full`",
        )
        .write_counters(
            page,
            "verdict",
            self.series(["allow", "deny"], |shard| &shard.memory_full),
        )?;
        let causes = StoreFailure::ALL.map(StoreFailure::as_str);
        MetricHead(
            "sluicegate_store_failures_total",
            "Charges without a reply from the shared store, by cause",
        )
        .write_counters(
            page,
            "cause",
            self.series(causes, |shard| &shard.failed_charges),
        )?;
        MetricHead(
            "sluicegate_cached_denials_total",
            "Denials from the deny cache, without a store call",
        )
        .write_counter(page, self.sum(|shard| &shard.cached_denials))?;
        let outcomes = FallbackDebtOutcome::ALL.map(FallbackDebtOutcome::as_str);
        MetricHead(
            "sluicegate_fallback_debt_hits_total",
            "Hits allowed while the store was unavailable, by outcome of their fallback debt",
        )
        .write_counters(
            page,
            "outcome",
            self.series(outcomes, |shard| &shard.fallback_debt),
        )?;
        self.write_store_calls(page)?;
        MetricHead("sluicegate_store_up", "1 while the store is available, else 0")
            .write_gauge(page, u8::from(!gauges.is_store_down))
    }

    fn write_store_calls(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = CHECK_COUNT_BOUNDS.iter().map(u64::to_string).chain(["+Inf".to_owned()]);
        let count = |(at, bound)| (bound, self.sum(|shard| &shard.checks_per_call[at]));
        MetricHead(
            "sluicegate_store_call_checks",
            "Script calls to the shared store, by number of checks",
        )
        .write_histogram(
            page,
            bounds.enumerate().map(count),
            self.sum(|shard| &shard.checks_sum),
        )
    }

    fn write_concurrency(
        &self,
        page: &mut fmt::Formatter<'_>,
        total: &ConcurrencyTotals,
    ) -> fmt::Result {
        let limit_help =
            "The sum of all concurrency limits; of a strict limit, this replica's part";
        let gauges = [
            ("sluicegate_requests_in_flight", "Requests with a permit", total.in_flight),
            ("sluicegate_requests_queued", "Requests that wait for a permit", total.waiting),
            ("sluicegate_concurrency_limits", limit_help, total.limit),
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
            MetricHead(name, help).write_gauge(page, value)?;
        }
        self.write_exceeded_limits(page)?;
        let events = BudgetEvent::ALL.map(BudgetEvent::as_str);
        MetricHead("sluicegate_budget_requests_total", "Requests that use budgets, by event")
            .write_counters(page, "event", self.series(events, |shard| &shard.budgets))?;
        let events = PermitIdEvent::ALL.map(PermitIdEvent::as_str);
        MetricHead("sluicegate_permit_ids_total", "Request ids, by event").write_counters(
            page,
            "event",
            self.series(events, |shard| &shard.permit_ids),
        )?;
        let events = ShareEvent::ALL.map(ShareEvent::as_str);
        MetricHead("sluicegate_shares_total", "Shares of fleet-wide concurrency limits, by event")
            .write_counters(page, "event", self.series(events, |shard| &shard.share_events))?;
        let events = StrictPermitEvent::ALL.map(StrictPermitEvent::as_str);
        MetricHead(
            "sluicegate_strict_permits_total",
            "Permits of strict concurrency limits, by event",
        )
        .write_counters(page, "event", self.series(events, |shard| &shard.strict_permits))
    }

    fn write_exceeded_limits(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_concurrency_limit_reached_total";
        let help = "Requests rejected by a concurrency limit; enforced is no in shadow mode";
        MetricHead(name, help).write(page, "counter")?;
        for (at, reason) in CONCURRENCY_REASONS.iter().enumerate() {
            for (enforced, word) in ["no", "yes"].into_iter().enumerate() {
                let n = self.sum(|shard| &shard.limit_exceeded[at][enforced]);
                let reason = reason.as_str();
                writeln!(page, "{name}{{reason=\"{reason}\",enforced=\"{word}\"}} {n}")?;
            }
        }
        Ok(())
    }

    fn write_leases(&self, page: &mut fmt::Formatter<'_>, totals: LeaseTotals) -> fmt::Result {
        MetricHead("sluicegate_lease_keys", "Keys of leased limits with a balance")
            .write_gauge(page, totals.keys)?;
        MetricHead("sluicegate_lease_balance_hits", "Unspent hits of leases")
            .write_gauge(page, totals.hits)?;
        MetricHead(
            "sluicegate_lease_calls_total",
            "Script calls that borrow or return hits, for one or more keys",
        )
        .write_counter(page, self.sum(|shard| &shard.lease_calls))?;
        MetricHead("sluicegate_lease_messages_total", "Lease messages, one for each key")
            .write_counter(page, self.sum(|shard| &shard.lease_messages))?;
        let events = LeasedHitsEvent::ALL.map(LeasedHitsEvent::as_str);
        MetricHead("sluicegate_lease_hits_total", "Leased hits, by outcome").write_counters(
            page,
            "outcome",
            self.series(events, |shard| &shard.leased_hits),
        )
    }

    fn write_proxies(&self, page: &mut fmt::Formatter<'_>, proxies: u64) -> fmt::Result {
        MetricHead("sluicegate_lease_proxies", "Connected proxies that enforce limits themselves")
            .write_gauge(page, proxies)?;
        let kinds = ProxyMessageKind::ALL.map(ProxyMessageKind::as_str);
        MetricHead(
            "sluicegate_proxy_messages_total",
            "Messages of proxies that enforce limits themselves, by kind",
        )
        .write_counters(page, "kind", self.series(kinds, |shard| &shard.proxy_messages))
    }

    fn write_datagrams(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = DatagramKind::ALL.map(DatagramKind::as_str);
        MetricHead("sluicegate_syslog_datagrams_total", "Datagrams to the syslog port, by kind")
            .write_counters(page, "kind", self.series(kinds, |shard| &shard.datagrams))?;
        let events = ForwardingEvent::ALL.map(ForwardingEvent::as_str);
        MetricHead("sluicegate_forwarded_releases_total", "Forwarded releases, by event")
            .write_counters(page, "event", self.series(events, |shard| &shard.forwarding))
    }

    fn write_bans(&self, page: &mut fmt::Formatter<'_>, bans: u64) -> fmt::Result {
        let events = BanEvent::ALL.map(BanEvent::as_str);
        MetricHead("sluicegate_ban_events_total", "Bans of keys and lost strikes, by event")
            .write_counters(page, "event", self.series(events, |shard| &shard.bans))?;
        MetricHead("sluicegate_bans", "Keys that are banned at present").write_gauge(page, bans)
    }

    fn write_cloud_events(&self, page: &mut fmt::Formatter<'_>, undelivered: u64) -> fmt::Result {
        let outcomes = CloudEventOutcome::ALL.map(CloudEventOutcome::as_str);
        MetricHead("sluicegate_events_total", "Events for other programs, by outcome")
            .write_counters(page, "outcome", self.series(outcomes, |shard| &shard.cloud_events))?;
        MetricHead("sluicegate_events_undelivered", "Events that are queued or being delivered")
            .write_gauge(page, undelivered)
    }

    fn write_mirror(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcomes = MirrorOutcome::ALL.map(MirrorOutcome::as_str);
        MetricHead(
            "sluicegate_mirror_checks_total",
            "Checks that another rate limit service decided too, by result",
        )
        .write_counters(
            page,
            "result",
            self.series(outcomes, |shard| &shard.mirrored_checks),
        )
    }

    fn write_connections(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = ListenPort::ALL.map(ListenPort::as_str);
        let name = "sluicegate_connections_open";
        MetricHead(name, "Open connections, by port").write(page, "gauge")?;
        for (port, open) in self.series(ports, |shard| &shard.open_connections) {
            writeln!(page, "{name}{{port=\"{port}\"}} {open}")?;
        }
        MetricHead(
            "sluicegate_connections_refused_total",
            "Connections above the maximum, by port",
        )
        .write_counters(
            page,
            "port",
            self.series(ports, |shard| &shard.refused_connections),
        )?;
        self.write_failed_connections(page)?;
        MetricHead(
            "sluicegate_admin_wrong_tokens_total",
            "Requests to the admin port with a wrong token",
        )
        .write_counter(page, self.sum(|shard| &shard.wrong_admin_tokens))
    }

    fn write_failed_connections(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_connections_failed_total";
        let help = "Connections that failed before their first request, by port and cause";
        MetricHead(name, help).write(page, "counter")?;
        for port in ListenPort::ALL {
            for cause in ConnectionFailure::ALL {
                let n = self.sum(|shard| &shard.failed_connections[port as usize][cause as usize]);
                let (port, cause) = (port.as_str(), cause.as_str());
                writeln!(page, "{name}{{port=\"{port}\",cause=\"{cause}\"}} {n}")?;
            }
        }
        Ok(())
    }

    fn write_bodies(&self, page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
        MetricHead("sluicegate_body_memory_bytes", "Memory of request bodies in flight")
            .write_gauge(page, gauges.body_memory)?;
        MetricHead("sluicegate_body_memory_bytes_max", "The most memory of request bodies")
            .write_gauge(page, gauges.max_body_memory)?;
        MetricHead(
            "sluicegate_bodies_refused_total",
            "Request bodies refused, because bodies take too much memory",
        )
        .write_counter(page, self.sum(|shard| &shard.refused_bodies))
    }
}

fn write_process(page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
    MetricHead("process_start_time_seconds", "The start of this process, Unix time")
        .write_gauge(page, DecimalSeconds(gauges.started_at))?;
    if let Some(process) = &gauges.process {
        process.write(page)?;
    }
    let name = "sluicegate_build_info";
    MetricHead(name, "Always 1; the version is its label").write(page, "gauge")?;
    writeln!(page, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))
}
