//! Renders `/overview`: checks, latency, store, replicas and connections.
//!
//! Guarantees:
//! - At most [`MAX_ADDRESSES`] addresses of proxies.
//!
//! Not covered:
//! - The latency of other replicas.

use serde_json::{Value, json};

use super::series::series_json;
use crate::connection_gate::ListenPort;
use crate::engine::Engine;
use crate::engine::fleet::live::{CheckCounts, FleetReports};
use crate::engine::fleet::membership::{LiveReplica, Membership, parse_record};
use crate::grpc::peer_addresses::busiest_addresses;
use crate::kernel::decision::StoreFailure;
use crate::kernel::units::Nanos;
use crate::telemetry::metrics::METRICS;

const MAX_ADDRESSES: usize = 100;

/// The name of a replica without a fleet.
const ONLY_REPLICA: &str = "local";

pub(super) fn overview(engine: &Engine, has_load_failed: bool) -> Value {
    let reports = engine.fleet_reports();
    let (scope, checks, history) = engine.checks_view(&reports);
    let envoys = busiest_addresses(MAX_ADDRESSES);
    let envoys: Vec<_> = envoys
        .iter()
        .map(|(address, count)| json!({"address": address, "connections": count}))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "replica": replica_name(engine),
        "uptime_s": engine.uptime().0 / Nanos::SECOND.0,
        "now_unix_ms": engine.clock().now().0 / Nanos::MILLI.0,
        "revision": revision(engine),
        "load_failed": has_load_failed,
        "scope": scope.as_str(),
        "checks": checks_json(checks),
        "latency": latency_json(),
        "store": {
            "kind": engine.store_kind(),
            "failure": engine.store_failure().map(StoreFailure::as_str),
        },
        "replicas": replicas_json(engine, &reports),
        "connections": {"grpc": METRICS.open_connections(ListenPort::Grpc)},
        "envoys": envoys,
        "history": series_json(&history, &["allow", "deny", "shadow_deny"]),
    })
}

pub(super) fn replica_name(engine: &Engine) -> &str {
    engine.membership().map_or(ONLY_REPLICA, |membership| membership.replica_name())
}

fn revision(engine: &Engine) -> u64 {
    engine.config().map_or(0, |config| config.revision.0)
}

fn checks_json(checks: CheckCounts) -> Value {
    let CheckCounts { allow, deny, shadow_deny, error } = checks;
    json!({"allow": allow, "deny": deny, "shadow_deny": shadow_deny, "error": error})
}

fn latency_json() -> Value {
    let durations = METRICS.check_durations();
    let micros = |duration: Nanos| std::time::Duration::from_nanos(duration.0).as_secs_f64() * 1e6;
    let bucket =
        |(bound, count): &(Option<Nanos>, u64)| json!({"le_us": bound.map(micros), "count": count});
    json!({
        "count": durations.buckets.last().map_or(0, |(_, count)| *count),
        "sum_us": durations.sum.0 / Nanos::MICRO.0,
        "buckets": durations.buckets.iter().map(bucket).collect::<Vec<_>>(),
    })
}

fn replicas_json(engine: &Engine, reports: &FleetReports) -> Vec<Value> {
    let own = replica_name(engine);
    let snapshot = engine.membership().and_then(Membership::snapshot);
    let Some(fleet) = snapshot else {
        return vec![json!({
            "replica": own, "is_self": true, "heartbeat_age_ms": 0,
            "build": env!("CARGO_PKG_VERSION"), "revision": revision(engine),
            "in_flight": engine.concurrency_limits().totals().in_flight,
            "checks": checks_json(engine.check_counts()),
        })];
    };
    let replica_json = |LiveReplica { node, silent_for, record }: &LiveReplica| {
        let (record, is_self) = (parse_record(record), **node == *own);
        let checks = if is_self {
            Some(engine.check_counts())
        } else {
            reports.of(node).map(|report| report.checks)
        };
        json!({
            "replica": node, "is_self": is_self,
            "heartbeat_age_ms": silent_for.0 / Nanos::MILLI.0,
            "build": record.build, "revision": record.revision, "in_flight": record.in_flight,
            "checks": checks.map(checks_json),
        })
    };
    fleet.replicas.iter().map(replica_json).collect()
}
