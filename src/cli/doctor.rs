//! Implements `sluicegate doctor`, which examines a Redis for use as the store.
//!
//! Guarantees:
//! - Every finding names the address of the Redis and the fix.
//! - Exits with 0 (suitable), 1 (errors, or warnings with `--warnings-as-errors`) or 2
//!   (unreachable).
//! - `serve` logs the same findings once Redis is reachable, and starts in spite of them.

mod collect;
mod evaluate;

use std::io;
use std::time::Duration;

use serde_json::json;

use super::args::{DoctorArgs, OutputFormat};
use super::serve::store;
use super::{CommandOutcome, Terminal};
use crate::clock::Clock;
use crate::config::settings::{KeyFormat, Settings};
use crate::store::redis::RedisOptions;
use evaluate::{DoctorFinding, DoctorRequirements, DoctorSeverity, RedisFacts, evaluate_facts};

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn doctor(
    args: &DoctorArgs,
    settings: &Settings,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let stores = store::all_redis_options(settings);
    if stores.is_empty() {
        writeln!(
            terminal.err,
            "error: no Redis is configured; set --store-url to the URL of a Redis"
        )?;
        return Ok(CommandOutcome::Failed);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut findings = Vec::new();
    let mut examined = Vec::new();
    for options in &stores {
        match runtime.block_on(collect::collect_facts(
            options,
            requirements(settings).has_compat_keys,
            clock,
        )) {
            Ok(facts) => {
                findings.extend(
                    facts.iter().flat_map(|facts| evaluate_facts(facts, requirements(settings))),
                );
                examined.extend(facts);
            }
            Err(error) => {
                let fix = "check the address and the credentials in --store-url";
                writeln!(terminal.err, "error: {error}; {fix}")?;
                return Ok(CommandOutcome::Failed);
            }
        }
    }
    match args.format {
        OutputFormat::Text => print_text(&examined, &findings, terminal.out)?,
        OutputFormat::Json => writeln!(terminal.out, "{:#}", to_json(&examined, &findings))?,
    }
    let is_bad = |finding: &DoctorFinding| {
        args.warnings_as_errors || finding.severity == DoctorSeverity::Error
    };
    Ok(if findings.iter().any(is_bad) { CommandOutcome::Negative } else { CommandOutcome::Success })
}

fn requirements(settings: &Settings) -> DoctorRequirements {
    DoctorRequirements {
        call_timeout: settings.store.deadline,
        has_compat_keys: settings.compat.store.key_format == KeyFormat::Compat,
        has_second_store: settings.compat.store.per_second_url.is_some(),
    }
}

fn print_text(
    examined: &[RedisFacts],
    findings: &[DoctorFinding],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for finding in findings {
        writeln!(out, "{finding}")?;
    }
    for facts in examined {
        writeln!(out, "{}: examined", facts.address)?;
    }
    let errors =
        findings.iter().filter(|finding| finding.severity == DoctorSeverity::Error).count();
    let (errors, warnings) =
        (count_text(errors, "error"), count_text(findings.len() - errors, "warning"));
    writeln!(out, "findings: {errors}, {warnings}")
}

fn count_text(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn to_json(examined: &[RedisFacts], findings: &[DoctorFinding]) -> serde_json::Value {
    let stores: Vec<_> = examined.iter().map(|facts| &facts.address).collect();
    json!({"stores": stores, "findings": findings})
}

/// Waits until the Redis of `options` is reachable, then logs the findings about it.
async fn log_findings(options: RedisOptions, requirements: DoctorRequirements, clock: Clock) {
    let facts = loop {
        match collect::collect_facts(&options, requirements.has_compat_keys, &clock).await {
            Ok(facts) => break facts,
            // Not logged, because the store's own connection logs the same failure.
            Err(_unreachable) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    };
    for finding in facts.iter().flat_map(|facts| evaluate_facts(facts, requirements)) {
        tracing::warn!(addr = finding.at, help = finding.help, "{}", finding.message);
    }
}

/// Logs the findings about each Redis in `settings` as soon as it is reachable.
pub(super) async fn log_all_findings(settings: Settings) {
    let requirements = requirements(&settings);
    let mut tasks = tokio::task::JoinSet::new();
    for options in store::all_redis_options(&settings) {
        tasks.spawn(log_findings(options, requirements, Clock::system()));
    }
    tasks.join_all().await;
}
