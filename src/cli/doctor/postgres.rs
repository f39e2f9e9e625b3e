//! Examines a PostgreSQL for `sluicegate doctor`.
//!
//! Guarantees:
//! - Writes one row, and deletes it.
//! - An unknown fact causes no finding.

use super::evaluate::{DoctorFinding, DoctorSeverity};
use crate::clock::Clock;
use crate::kernel::units::Nanos;
use crate::store::postgres::inspect::{PostgresFacts, collect_facts};
use crate::store::postgres::{ConnectError, PostgresOptions};

/// The oldest version whose statements were tested: PostgreSQL 13.
const MIN_VERSION: i32 = 130_000;

/// A larger difference between the clocks causes a finding. NTP keeps clocks closer.
const MAX_CLOCK_SKEW: Nanos = Nanos(500 * Nanos::MILLI.0);

/// The findings about a PostgreSQL, errors first.
pub(super) struct ExaminedPostgres {
    pub(super) findings: Vec<DoctorFinding>,
    /// True if a pooler may use another server connection for each transaction.
    pub(super) is_pooled: bool,
}

/// Examines the PostgreSQL of `options`.
///
/// # Errors
/// The server is unreachable.
pub(super) async fn examine(
    options: &PostgresOptions,
    address: &str,
    clock: &Clock,
) -> Result<ExaminedPostgres, ConnectError> {
    let facts = collect_facts(options, &|| clock.now()).await?;
    let deadline = Nanos(u64::try_from(options.call_timeout.as_nanos()).unwrap_or(u64::MAX));
    let findings = evaluate(&facts, deadline, address);
    Ok(ExaminedPostgres { findings, is_pooled: facts.is_pooled == Some(true) })
}

fn evaluate(facts: &PostgresFacts, deadline: Nanos, address: &str) -> Vec<DoctorFinding> {
    let found = [
        check_version(facts),
        facts.write_failure.as_ref().map(|why| {
            (DoctorSeverity::Error, "write", format!("writing a row failed: {why}"), FIX_ACCESS)
        }),
        check_pooler(facts),
        check_time(facts, deadline),
        check_durability(facts),
        check_commit(facts),
        check_replication(facts),
        check_clock(facts),
    ];
    let mut findings: Vec<_> = found
        .into_iter()
        .flatten()
        .map(|(severity, code, message, help)| DoctorFinding {
            severity,
            code,
            at: address.to_owned(),
            message,
            help: help.to_owned(),
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity != DoctorSeverity::Error);
    findings
}

/// Severity, code, message and fix.
type Found = (DoctorSeverity, &'static str, String, &'static str);

const FIX_ACCESS: &str = "connect to the primary, run `sluicegate migrate`, and grant SELECT, INSERT, \
     UPDATE, DELETE on its tables";

fn check_version(facts: &PostgresFacts) -> Option<Found> {
    let version = facts.version.filter(|version| *version < MIN_VERSION)?;
    let message = format!("PostgreSQL {} is too old", version / 10_000);
    Some((DoctorSeverity::Error, "version", message, "use PostgreSQL 13 or later"))
}

fn check_pooler(facts: &PostgresFacts) -> Option<Found> {
    facts.loses_statements.filter(|is_lost| *is_lost)?;
    let message = "a pooler gives each transaction another server connection, which does not know \
                   prepared statements: checks fail"
        .to_owned();
    Some((DoctorSeverity::Error, "pooler", message, "set `store.postgres.prepare` to auto"))
}

fn check_time(facts: &PostgresFacts, deadline: Nanos) -> Option<Found> {
    let time = facts.transaction_time.filter(|time| Nanos(deadline.0 / 2) <= *time)?;
    let micros = time.0 / Nanos::MICRO.0;
    let message = format!("a transaction takes {micros} µs, and `store.timeout` is {deadline}");
    let severity = if deadline <= time { DoctorSeverity::Error } else { DoctorSeverity::Warning };
    let help = "raise `store.timeout`, or set `store.postgres.durability: unlogged` and migrate";
    Some((severity, "latency", message, help))
}

fn check_durability(facts: &PostgresFacts) -> Option<Found> {
    facts.is_unlogged.filter(|is_unlogged| *is_unlogged)?;
    let message = "the tables are unlogged: a crash or a failover resets all counters".to_owned();
    let help = "set `store.postgres.durability: full` and run `sluicegate migrate` to keep them";
    Some((DoctorSeverity::Warning, "durability", message, help))
}

fn check_commit(facts: &PostgresFacts) -> Option<Found> {
    facts.synchronous_commit.as_deref().filter(|mode| *mode == "off")?;
    let message =
        "`synchronous_commit` is off: a crash loses the hits of the last second".to_owned();
    let help = "set synchronous_commit to on for this user, or accept the loss";
    Some((DoctorSeverity::Warning, "synchronous_commit", message, help))
}

fn check_replication(facts: &PostgresFacts) -> Option<Found> {
    let is_asynchronous =
        0 < facts.standbys? && facts.synchronous_standbys.as_deref().is_some_and(str::is_empty);
    is_asynchronous.then_some(())?;
    let message = "standbys are asynchronous: a failover loses the latest hits".to_owned();
    let help = "set synchronous_standby_names, or accept the loss";
    Some((DoctorSeverity::Warning, "replication", message, help))
}

fn check_clock(facts: &PostgresFacts) -> Option<Found> {
    let skew = facts.clock_skew.filter(|skew| MAX_CLOCK_SKEW <= *skew)?;
    let millis = skew.0 / Nanos::MILLI.0;
    let message = format!(
        "the clocks of PostgreSQL and of this machine differ by {millis} ms; counters follow the \
         clock of PostgreSQL"
    );
    Some((DoctorSeverity::Warning, "clock", message, "synchronize both clocks with NTP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Nanos = Nanos(15 * Nanos::MILLI.0);

    fn healthy() -> PostgresFacts {
        PostgresFacts {
            version: Some(150_004),
            is_pooled: Some(false),
            loses_statements: Some(false),
            write_failure: None,
            transaction_time: Some(Nanos(2 * Nanos::MILLI.0)),
            is_unlogged: Some(false),
            synchronous_commit: Some("on".to_owned()),
            standbys: Some(1),
            synchronous_standbys: Some("standby".to_owned()),
            clock_skew: Some(Nanos(0)),
        }
    }

    fn codes(facts: &PostgresFacts) -> Vec<String> {
        let is_error = |finding: &DoctorFinding| finding.severity == DoctorSeverity::Error;
        let code = |finding: DoctorFinding| {
            format!("{}{}", if is_error(&finding) { "!" } else { "" }, finding.code)
        };
        evaluate(facts, DEADLINE, "pg").into_iter().map(code).collect()
    }

    #[test]
    fn a_healthy_server_and_unknown_facts_have_no_findings() {
        assert!(codes(&healthy()).is_empty());
        assert!(codes(&PostgresFacts::default()).is_empty());
    }

    #[test]
    fn each_unsuitable_fact_is_one_finding() {
        let text = |text: &str| Some(text.to_owned());
        let cases = [
            ("!version", PostgresFacts { version: Some(129_999), ..healthy() }),
            ("!write", PostgresFacts { write_failure: text("permission denied"), ..healthy() }),
            ("!pooler", PostgresFacts { loses_statements: Some(true), ..healthy() }),
            ("!latency", PostgresFacts { transaction_time: Some(DEADLINE), ..healthy() }),
            (
                "latency",
                PostgresFacts { transaction_time: Some(Nanos(DEADLINE.0 / 2)), ..healthy() },
            ),
            ("durability", PostgresFacts { is_unlogged: Some(true), ..healthy() }),
            ("synchronous_commit", PostgresFacts { synchronous_commit: text("off"), ..healthy() }),
            ("replication", PostgresFacts { synchronous_standbys: text(""), ..healthy() }),
            ("clock", PostgresFacts { clock_skew: Some(MAX_CLOCK_SKEW), ..healthy() }),
        ];
        for (code, facts) in cases {
            assert_eq!(codes(&facts), [code]);
        }
    }
}
