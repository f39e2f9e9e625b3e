//! Renders the admin pages `/config` and `/fleet` as JSON, and `/rlconfig` as text.
//!
//! Guarantees:
//! - `/config` shows the findings of the last failed load, as the command `check` prints them, and
//!   the number of omitted findings.
//! - `/rlconfig` has one line for each rule, in the format of envoyproxy/ratelimit.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::config::diagnostic::SeverityCounts;
use crate::config::{Config, Rule, Unit};
use crate::engine::concurrency::fleet::FleetReporter;
use crate::engine::concurrency::{BucketName, ShareSnapshot, StrictSnapshot};
use crate::engine::fleet::membership::{LiveReplica, Membership, parse_record};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

/// The results of all configuration loads since the start of the process.
#[derive(Clone, Debug, Default)]
pub struct ConfigLoads {
    /// The number of successful loads.
    pub successful: u64,
    /// The number of failed loads.
    pub failed: u64,
    /// The time of the last successful load, since the Unix epoch.
    pub loaded_at: Option<Nanos>,
    /// The names of the loaded files.
    pub files: Vec<Arc<str>>,
    /// The warnings about the loaded files, each as JSON.
    pub warnings: Vec<Value>,
    /// The number of warnings that `warnings` omits.
    pub omitted_warnings: usize,
    /// The error of the last load, if it failed.
    pub last_error: Option<LoadError>,
}

/// A failed load of the configuration.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The time of the load, since the Unix epoch.
    pub at: Nanos,
    /// The findings as JSON, or one sentence if the files could not be read.
    pub diagnostics: Vec<Value>,
    /// The number of findings that `diagnostics` omits, by severity.
    pub omitted: SeverityCounts,
}

/// Returns the page `/config` as JSON.
#[must_use]
pub fn config(loads: &ConfigLoads, config: Option<&Config>) -> Value {
    let last_error = loads.last_error.as_ref();
    json!({
        "revision": config.map_or(0, |config| config.revision.0),
        "loaded_at": loads.loaded_at.map(format_time),
        "loads": loads.successful,
        "refused": loads.failed,
        "last_error": last_error.map(|error| {
            json!({"at": format_time(error.at), "diagnostics": error.diagnostics, "more": error.omitted})
        }),
        "files": loads.files.iter().map(|file| Value::from(&**file)).collect::<Value>(),
        "domains": config.map(domains).unwrap_or_default(),
        "warnings": loads.warnings,
        "more_warnings": loads.omitted_warnings,
    })
}

fn domains(config: &Config) -> Map<String, Value> {
    let mut sorted: Vec<_> = config.domains.values().collect();
    sorted.sort_unstable_by_key(|domain| &domain.name);
    sorted
        .into_iter()
        .map(|domain| (domain.name.to_string(), json!({"rules": domain.tree.rules().len()})))
        .collect()
}

/// Returns the page `/fleet` as JSON: the replicas in the last membership list, and `shares`. Null
/// with the memory store, which has no fleet.
#[must_use]
pub fn fleet(membership: Option<&Membership>, shares: &Value, now: Nanos) -> Value {
    let Some(membership) = membership else { return Value::Null };
    let snapshot = membership.snapshot();
    let millis = |duration: Nanos| duration.0 / Nanos::MILLI.0;
    let replica_json = |replica: &LiveReplica| {
        let record = parse_record(&replica.record);
        json!({"node": replica.node, "silent_ms": millis(replica.silent_for), "build": record.build,
            "peer": Some(&record.peer).filter(|peer| !peer.is_empty()),
            "incarnation": record.incarnation, "revision": record.revision,
            "share": record.share, "in_flight": record.in_flight,
            "fences": record.fences, "handoffs": record.handoffs, "seats": record.seats})
    };
    let replicas = snapshot.iter().flat_map(|fleet| &fleet.replicas);
    json!({
        "node": membership.replica_name(),
        "replicas": membership.replicas(),
        "seen_ms_ago": snapshot.as_ref().map(|fleet| millis(now.since(fleet.taken_at))),
        "members": replicas.map(replica_json).collect::<Vec<_>>(),
        "shares": shares,
    })
}

/// Returns this replica's shares and strict permits as JSON: at most [`MAX_LIMITS`] of each.
#[must_use]
pub(super) fn shares_json(fleet: Option<&FleetReporter>, clock: &Clock) -> Value {
    let Some(fleet) = fleet else { return Value::Null };
    let (store, replica, incarnation) = fleet.incarnations();
    let share_json = |(name, snapshot): (BucketName, ShareSnapshot)| {
        let grant = snapshot.grant.as_ref();
        json!({
            "ceiling": CounterKey::describe(&name),
            "share": snapshot.share.0,
            "fair": grant.map(|grant| grant.fair_share.0),
            "whole": grant.map(|grant| grant.limit.0),
            "seats": grant.map(|grant| grant.replicas),
            "generation": grant.map(|grant| grant.generation.0),
            "granted_by": grant.map(|grant| grant.coordinator_incarnation.0),
            "recovering": grant.is_some_and(|grant| grant.is_recovering),
            "ends_in_ms": snapshot.time_left.0 / Nanos::MILLI.0,
            "in_flight": snapshot.in_flight,
            "wanted": snapshot.wanted.0,
            "fences": snapshot.fences,
            "handoffs": snapshot.handoffs,
            "handoff_took_ms": snapshot.handoff_duration.map(|took| took.0 / Nanos::MILLI.0),
            "outage": snapshot.is_outage,
        })
    };
    let shares: Vec<_> =
        fleet.share_snapshots(clock, MAX_LIMITS).into_iter().map(share_json).collect();
    let strict: Vec<_> =
        fleet.strict_snapshots(MAX_LIMITS).into_iter().map(strict_limit_json).collect();
    json!({"store": store.map(|incarnation| incarnation.0), "member": replica.0,
        "life": incarnation.0, "ceilings": shares, "strict": strict})
}

/// Renders a concurrency limit in strict mode as JSON.
fn strict_limit_json((name, snapshot): (BucketName, StrictSnapshot)) -> Value {
    json!({
        "ceiling": CounterKey::describe(&name),
        "whole": snapshot.limit,
        "held": snapshot.fleet_permits.map(|permits| permits.0),
        "in_flight": snapshot.in_flight,
        "waiting": snapshot.waiting,
        "closed_for_ms": snapshot.closed_for.0 / Nanos::MILLI.0,
        "outage": snapshot.is_outage,
    })
}

const MAX_LIMITS: usize = 200;

fn format_time(instant: Nanos) -> Option<String> {
    let instant = jiff::Timestamp::from_nanosecond(instant.0.into()).ok()?;
    Some(instant.to_string())
}

/// Returns the page `/rlconfig`: one line for each rule, sorted, so that operators can compare two
/// pages.
#[must_use]
pub fn rlconfig(config: &Config) -> String {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let mut lines: Vec<_> = rules.map(|rule| format!("{}\n", RlconfigLine(rule))).collect();
    lines.sort_unstable();
    lines.concat()
}

/// A rule as one line of `/rlconfig`. A period that is no unit of Envoy is shown as a duration.
struct RlconfigLine<'r>(&'r Rule);

impl fmt::Display for RlconfigLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { path, limit, shadow, quota, .. } = self.0;
        write!(f, "{path}: unit=")?;
        match limit.as_ref().map(|limit| (limit.window.unit(), limit.window.length())) {
            None => f.write_str("UNKNOWN")?,
            Some((Some(unit), _)) => f.write_str(unit_name(unit))?,
            Some((None, period)) => write!(f, "{period}")?,
        }
        let requests = limit.as_ref().map_or(0, |limit| limit.requests);
        write!(f, " requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}")
    }
}

/// Returns the name of the unit in Envoy's protobuf enum.
pub(super) const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "SECOND",
        Unit::Minute => "MINUTE",
        Unit::Hour => "HOUR",
        Unit::Day => "DAY",
        Unit::Week => "WEEK",
        Unit::Month => "MONTH",
        Unit::Year => "YEAR",
    }
}
