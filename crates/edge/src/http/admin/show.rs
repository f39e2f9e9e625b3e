//! Renders the admin pages `/config` and `/fleet` as JSON, and `/rlconfig` as text.
//!
//! Guarantees:
//! - `/config` shows the findings of the last failed load, as the command `validate` prints them.
//! - `/config` shows how many findings it omits.
//! - `/rlconfig` has one line for each limit, in the format of envoyproxy/ratelimit.
//!
//! Not covered:
//! - Loading the configuration (see `source`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::config::diagnostic::SeverityCounts;
use crate::config::{Config, Limit, Rule, Unit};
use crate::engine::Engine;
use crate::engine::concurrency::{BucketName, ShareSnapshot, StrictSnapshot};
use crate::engine::fleet::membership::{LiveReplica, Membership, parse_record};
use crate::engine::fleet::reporter::FleetReporter;
use crate::engine::proxies::{ProxyBucket, ProxyInfo};
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
    /// The findings of the validation as JSON, or one sentence if the files could not be read.
    pub diagnostics: Vec<Value>,
    /// The number of findings that `diagnostics` omits, by severity.
    pub omitted: SeverityCounts,
}

/// Returns the page `/config`: the domains and files of the loaded
/// configuration, and the error of the last load.
#[must_use]
pub fn config(loads: &ConfigLoads, config: Option<&Config>) -> Value {
    let last_error = loads.last_error.as_ref();
    json!({
        "revision": config.map_or(0, |config| config.revision.0),
        "loaded_at": loads.loaded_at.map(format_time),
        "loads": loads.successful,
        "rejected": loads.failed,
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

/// Returns the page `/fleet`: the replicas in the last membership list, `shares`, and the proxies
/// that lease hits from this replica. With the memory store, which has no fleet, only the proxies.
#[must_use]
pub fn fleet(
    membership: Option<&Membership>,
    (shares, proxies): (&Value, &Value),
    now: Nanos,
) -> Value {
    let Some(membership) = membership else { return json!({"proxies": proxies}) };
    let seen = membership.snapshot();
    let millis = |duration: Nanos| duration.0 / Nanos::MILLI.0;
    let live_replica = |replica: &LiveReplica| {
        let record = parse_record(&replica.record);
        json!({"replica": replica.node, "heartbeat_age_ms": millis(replica.silent_for), "build": record.build,
            "peer": Some(&record.peer).filter(|peer| !peer.is_empty()),
            "incarnation": record.incarnation, "revision": record.revision,
            "share": record.share, "in_flight": record.in_flight,
            "fences": record.fences, "handoffs": record.handoffs, "largest_shares": record.largest_shares})
    };
    json!({
        "replica": membership.replica_name(),
        "replicas": membership.replicas(),
        "snapshot_age_ms": seen.as_ref().map(|seen| millis(now.since(seen.taken_at))),
        "live_replicas": seen.iter().flat_map(|seen| &seen.replicas).map(live_replica).collect::<Vec<_>>(),
        "shares": shares,
        "proxies": proxies,
    })
}

/// Returns the proxies that lease hits from this replica.
pub(super) fn proxies_json(engine: &Engine) -> Value {
    let now = engine.clock().now();
    let bucket = |ProxyBucket { bucket, load }: &ProxyBucket| {
        json!({"limit": CounterKey::describe(bucket), "in_flight": load.in_flight,
            "waiting": load.waiting, "share": load.limit()})
    };
    let proxy = |proxy: ProxyInfo| {
        let ProxyInfo { identity, connected_at, hits, messages, borrowed_hits, concurrency } =
            proxy;
        json!({
            "name": identity.name, "software": identity.software,
            "incarnation": identity.incarnation.0,
            "peer": identity.peer.map(|peer| peer.to_string()),
            "connected_ms": now.since(connected_at).0 / Nanos::MILLI.0,
            "leased_keys": hits.leased_keys, "leased_hits": hits.leased_hits,
            "messages": messages, "borrowed_hits": borrowed_hits,
            "concurrency": concurrency.iter().map(bucket).collect::<Vec<_>>(),
        })
    };
    engine.proxies().list().into_iter().map(proxy).collect()
}

/// Returns this replica's state of the fleet-wide concurrency limits: at
/// most [`MAX_LIMITS`] with shares and [`MAX_LIMITS`] in strict mode.
#[must_use]
pub(super) fn shares_json(fleet: Option<&FleetReporter>, clock: &Clock) -> Value {
    let Some(fleet) = fleet else { return Value::Null };
    let (store, replica, incarnation) = fleet.incarnations();
    let share_json = |(name, snapshot): (BucketName, ShareSnapshot)| {
        let grant = snapshot.grant.as_ref();
        json!({
            "limit": CounterKey::describe(&name),
            "share": snapshot.share.0,
            "fair_share": grant.map(|grant| grant.fair_share.0),
            "fleet_limit": grant.map(|grant| grant.limit.0),
            "replicas": grant.map(|grant| grant.replicas),
            "generation": grant.map(|grant| grant.generation.0),
            "coordinator_incarnation": grant.map(|grant| grant.coordinator_incarnation.0),
            "recovering": grant.is_some_and(|grant| grant.is_recovering),
            "expires_in_ms": snapshot.time_left.0 / Nanos::MILLI.0,
            "in_flight": snapshot.in_flight,
            "wanted": snapshot.wanted.0,
            "fences": snapshot.fences,
            "handoffs": snapshot.handoffs,
            "last_handoff_ms": snapshot.handoff_duration.map(|took| took.0 / Nanos::MILLI.0),
            "outage": snapshot.is_outage,
        })
    };
    let shares: Vec<_> =
        fleet.share_snapshots(clock, MAX_LIMITS).into_iter().map(share_json).collect();
    let strict: Vec<_> =
        fleet.strict_snapshots(MAX_LIMITS).into_iter().map(strict_limit_json).collect();
    json!({"coordinator_incarnation": store.map(|incarnation| incarnation.0), "replica_id": replica.0,
        "incarnation": incarnation.0, "shared": shares, "strict": strict})
}

/// Renders a concurrency limit in strict mode, whose permits the store counts.
fn strict_limit_json((name, snapshot): (BucketName, StrictSnapshot)) -> Value {
    json!({
        "limit": CounterKey::describe(&name),
        "fleet_limit": snapshot.limit,
        "fleet_permits": snapshot.fleet_permits.map(|permits| permits.0),
        "in_flight": snapshot.in_flight,
        "waiting": snapshot.waiting,
        "grants_paused_ms": snapshot.closed_for.0 / Nanos::MILLI.0,
        "outage": snapshot.is_outage,
    })
}

const MAX_LIMITS: usize = 200;

pub(super) fn format_time(at: Nanos) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(at.0.into()).ok()?;
    Some(at.to_string())
}

/// Returns the page `/rlconfig`: one line for each limit. The lines are
/// sorted, so that operators can compare two pages.
#[must_use]
pub fn rlconfig(config: &Config) -> String {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let mut lines: Vec<_> = rules.flat_map(rlconfig_lines).collect();
    lines.sort_unstable();
    lines.concat()
}

fn rlconfig_lines(rule: &Rule) -> Vec<String> {
    let line = |limit| format!("{}\n", RlconfigLine(rule, limit));
    match &*rule.limits {
        [] => vec![line(None)],
        limits => limits.iter().map(|limit| line(Some(limit))).collect(),
    }
}

/// A limit of a rule as one line of `/rlconfig`, in the format of envoyproxy/ratelimit.
/// A period that is no unit of Envoy is shown as a duration.
struct RlconfigLine<'r>(&'r Rule, Option<&'r Limit>);

impl fmt::Display for RlconfigLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rule, limit) = self;
        let path = limit.map_or(Cow::Borrowed(&*rule.path), |limit| rule.path_of(limit));
        write!(f, "{path}: unit=")?;
        match limit.map(|limit| (limit.window.unit(), limit.window.length())) {
            None => f.write_str("UNKNOWN")?,
            Some((Some(unit), _)) => f.write_str(unit_name(unit))?,
            Some((None, period)) => write!(f, "{period}")?,
        }
        let Rule { shadow, quota, .. } = rule;
        let requests = limit.map_or(0, |limit| limit.requests);
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
