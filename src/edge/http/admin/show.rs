//! What is loaded, as JSON and as the reference's lines.
//!
//! Guarantees: `/config` has every diagnostic of the last refused load that `check` would show, and the count of the others;
//! `/rlconfig` has one line per rule, in the reference's form.
//! Leaves out: how loads are made, which is for [`crate::source`].

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::config::diagnostic::Counts;
use crate::config::{Config, Rule, Unit};
use crate::engine::admit::fleet::Fleet;
use crate::engine::admit::{Name, Seen, Shown};
use crate::engine::membership::{Member, Membership, read};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

/// How loads went.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    /// Loads that were accepted.
    pub loads: u64,
    /// Loads that were refused.
    pub refused: u64,
    /// When the configuration in force was loaded, since the Unix epoch.
    pub loaded_at: Option<Nanos>,
    /// The files in force.
    pub files: Vec<Arc<str>>,
    /// What is probably not as it was meant, as diagnostics.
    pub warnings: Vec<Value>,
    /// How many warnings there are beside them.
    pub more_warnings: usize,
    /// The last load, when it was refused.
    pub last_error: Option<LastError>,
}

/// A refused load.
#[derive(Clone, Debug)]
pub struct LastError {
    /// When, since the Unix epoch.
    pub at: Nanos,
    /// Why: diagnostics, or one sentence where the texts could not be had.
    pub diagnostics: Vec<Value>,
    /// How many diagnostics there are beside them.
    pub more: Counts,
}

/// `/config`: what is in force, how it got there, and what was refused.
#[must_use]
pub fn config(loads: &Loads, config: Option<&Config>) -> Value {
    let last_error = loads.last_error.as_ref();
    json!({
        "revision": config.map_or(0, |config| config.revision.0),
        "loaded_at": loads.loaded_at.map(instant),
        "loads": loads.loads,
        "refused": loads.refused,
        "last_error": last_error.map(|error| {
            json!({"at": instant(error.at), "diagnostics": error.diagnostics, "more": error.more})
        }),
        "files": loads.files.iter().map(|file| Value::from(&**file)).collect::<Value>(),
        "domains": config.map(domains).unwrap_or_default(),
        "warnings": loads.warnings,
        "more_warnings": loads.more_warnings,
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

/// `/fleet`: the replicas that share the store, as this one last saw them; null with counters in
/// memory.
#[must_use]
pub fn fleet(membership: Option<&Membership>, shares: &Value, now: Nanos) -> Value {
    let Some(membership) = membership else { return Value::Null };
    let seen = membership.seen();
    let millis = |duration: Nanos| duration.0 / Nanos::MILLI.0;
    let member = |member: &Member| {
        let record = read(&member.record);
        json!({"node": member.node, "silent_ms": millis(member.silent), "build": record.build,
            "peer": Some(&record.peer).filter(|peer| !peer.is_empty()),
            "incarnation": record.incarnation, "revision": record.revision,
            "share": record.share, "in_flight": record.in_flight,
            "fences": record.fences, "handoffs": record.handoffs, "seats": record.seats})
    };
    json!({
        "node": membership.node(),
        "replicas": membership.replicas(),
        "seen_ms_ago": seen.as_ref().map(|seen| millis(now.since(seen.at))),
        "members": seen.iter().flat_map(|seen| &seen.members).map(member).collect::<Vec<_>>(),
        "shares": shares,
    })
}

/// The ceilings that are shared, as this replica has them; at most [`MOST_SHOWN`].
#[must_use]
pub(super) fn shares(fleet: Option<&Fleet>, clock: &Clock) -> Value {
    let Some(fleet) = fleet else { return Value::Null };
    let (store, member, life) = fleet.lives();
    let ceiling = |(name, shown): (Name, Shown)| {
        let grant = shown.grant.as_ref();
        json!({
            "ceiling": CounterKey::words(&name),
            "share": shown.share.0,
            "fair": grant.map(|grant| grant.fair.0),
            "whole": grant.map(|grant| grant.ceiling.0),
            "seats": grant.map(|grant| grant.members),
            "generation": grant.map(|grant| grant.generation.0),
            "granted_by": grant.map(|grant| grant.coordinator.0),
            "recovering": grant.is_some_and(|grant| grant.recovering),
            "ends_in_ms": shown.left.0 / Nanos::MILLI.0,
            "in_flight": shown.in_flight,
            "wanted": shown.wanted.0,
            "fences": shown.fences,
            "handoffs": shown.handoffs,
            "handoff_took_ms": shown.handoff_took.map(|took| took.0 / Nanos::MILLI.0),
            "outage": shown.outage,
        })
    };
    let ceilings: Vec<_> = fleet.shown(clock, MOST_SHOWN).into_iter().map(ceiling).collect();
    let strict: Vec<_> = fleet.seen(MOST_SHOWN).into_iter().map(strict).collect();
    json!({"store": store.map(|life| life.0), "member": member.0, "life": life.0,
        "ceilings": ceilings, "strict": strict})
}

/// A ceiling that the store counts.
fn strict((name, seen): (Name, Seen)) -> Value {
    json!({
        "ceiling": CounterKey::words(&name),
        "whole": seen.limit,
        "held": seen.held.map(|held| held.0),
        "in_flight": seen.here,
        "waiting": seen.waiting,
        "closed_for_ms": seen.closed_for.0 / Nanos::MILLI.0,
        "outage": seen.outage,
    })
}

/// One screen, or ten.
const MOST_SHOWN: usize = 200;

/// RFC 3339, in UTC.
fn instant(at: Nanos) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(at.0.into()).ok()?;
    Some(at.to_string())
}

/// `/rlconfig`: a line per rule, sorted, so that two dumps can be compared.
#[must_use]
pub fn rlconfig(config: &Config) -> String {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let mut lines: Vec<_> = rules.map(|rule| format!("{}\n", Line(rule))).collect();
    lines.sort_unstable();
    lines.concat()
}

/// A rule as the reference shows it. A period that is none of the units is shown in its place.
struct Line<'r>(&'r Rule);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { path, limit, shadow, quota, .. } = self.0;
        write!(f, "{path}: unit=")?;
        match limit.as_ref().map(|limit| (limit.window.unit(), limit.window.length())) {
            None => f.write_str("UNKNOWN")?,
            Some((Some(unit), _)) => f.write_str(name(unit))?,
            Some((None, period)) => write!(f, "{period}")?,
        }
        let requests = limit.as_ref().map_or(0, |limit| limit.requests);
        write!(f, " requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}")
    }
}

/// A unit's name in capitals, as the protocol spells it.
pub(super) const fn name(unit: Unit) -> &'static str {
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
