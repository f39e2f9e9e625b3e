//! Implements `sluicegate doctor`, which examines a Redis or PostgreSQL for use as the store, or an
//! Envoy with Sluicegate's module.
//!
//! Guarantees:
//! - Every finding names the address of the store or Envoy, and the fix.
//! - Exits with 0 (suitable), 1 (errors, or warnings with `--warnings-as-errors`) or 2
//!   (unreachable).
//! - `serve` logs the same findings once the store is reachable, and starts in spite of them.

mod collect;
mod envoy;
mod evaluate;
mod info;
mod postgres;
mod product;

use std::io;
use std::time::Duration;

use serde_json::json;

use super::args::{DoctorArgs, OutputFormat};
use super::serve::store;
use super::{CommandOutcome, Terminal};
use crate::clock::Clock;
use crate::config::settings::{KeyFormat, Settings, StoreUrl};
use crate::store::postgres::PostgresOptions;
use crate::store::redis::RedisOptions;
use envoy::ExaminedEnvoy;
use evaluate::{DoctorFinding, DoctorRequirements, DoctorSeverity, evaluate_facts};
use postgres::ExaminedPostgres;
use product::StoreProduct;

/// An examined store or Envoy.
struct Examined {
    address: String,
    /// Text about the product, or nothing.
    product: String,
}

/// The findings about everything that was examined.
struct DoctorReport<'a> {
    /// The name of the list of addresses in JSON.
    list: &'static str,
    examined: &'a [Examined],
    findings: &'a [DoctorFinding],
}

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn doctor(
    args: &DoctorArgs,
    settings: &Settings,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    if let Some(admin) = &args.envoy {
        return doctor_envoy(args, admin, terminal);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(options) = store::all_postgres_options(settings) {
        let address = settings.store.url.to_string();
        let examined = runtime.block_on(postgres::examine(&options, &address, clock));
        return match examined {
            Ok(ExaminedPostgres { findings, is_pooled }) => {
                let product = if is_pooled { " (a pooler in transaction mode)" } else { "" };
                let store = Examined { address, product: product.to_owned() };
                print_stores(args, &[store], &findings, terminal)
            }
            Err(error) => {
                writeln!(terminal.err, "error: {address}: {error}")?;
                Ok(CommandOutcome::Failed)
            }
        };
    }
    let stores = store::all_redis_options(settings);
    if let StoreUrl::File(directory) = &settings.store.url {
        let directory = directory.display();
        writeln!(
            terminal.err,
            "error: doctor examines a Redis; `serve` examines file://{directory} when it starts"
        )?;
        return Ok(CommandOutcome::Failed);
    }
    if stores.is_empty() {
        writeln!(
            terminal.err,
            "error: no shared store is configured; set --store-url to the URL of a Redis or PostgreSQL"
        )?;
        return Ok(CommandOutcome::Failed);
    }
    let mut findings = Vec::new();
    let mut examined = Vec::new();
    for options in &stores {
        match runtime.block_on(collect::collect_facts(
            options,
            requirements(settings).has_compat_keys,
            clock,
        )) {
            Ok(facts) => {
                let found =
                    facts.iter().flat_map(|facts| evaluate_facts(facts, requirements(settings)));
                findings.extend(found);
                examined.extend(facts.into_iter().map(|facts| Examined {
                    product: product_suffix(facts.product),
                    address: facts.address,
                }));
            }
            Err(error) => {
                let fix = "check the address and the credentials in --store-url";
                writeln!(terminal.err, "error: {error}; {fix}")?;
                return Ok(CommandOutcome::Failed);
            }
        }
    }
    print_stores(args, &examined, &findings, terminal)
}

fn doctor_envoy(
    args: &DoctorArgs,
    admin: &str,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    match envoy::examine(admin, args.server.as_deref()) {
        Ok(ExaminedEnvoy { version, findings }) => {
            let product = format!(" (Envoy {version})");
            let examined = [Examined { address: admin.to_owned(), product }];
            let report = DoctorReport { list: "envoys", examined: &examined, findings: &findings };
            print_report(args, &report, terminal)
        }
        Err(error) => {
            writeln!(terminal.err, "error: {error}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}

fn print_stores(
    args: &DoctorArgs,
    examined: &[Examined],
    findings: &[DoctorFinding],
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    print_report(args, &DoctorReport { list: "stores", examined, findings }, terminal)
}

fn print_report(
    args: &DoctorArgs,
    report: &DoctorReport<'_>,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let DoctorReport { list, examined, findings } = *report;
    match args.format {
        OutputFormat::Text => print_text(examined, findings, terminal.out)?,
        OutputFormat::Json => {
            let addresses: Vec<_> = examined.iter().map(|one| &one.address).collect();
            let document = json!({list: addresses, "findings": findings});
            writeln!(terminal.out, "{document:#}")?;
        }
    }
    let is_bad = |finding: &DoctorFinding| {
        args.warnings_as_errors || finding.severity == DoctorSeverity::Error
    };
    Ok(if findings.iter().any(is_bad) { CommandOutcome::Negative } else { CommandOutcome::Success })
}

fn requirements(settings: &Settings) -> DoctorRequirements {
    DoctorRequirements {
        call_timeout: settings.store.call_timeout(),
        has_compat_keys: settings.compat.store.key_format == KeyFormat::Compat,
    }
}

fn print_text(
    examined: &[Examined],
    findings: &[DoctorFinding],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for finding in findings {
        writeln!(out, "{finding}")?;
    }
    for one in examined {
        writeln!(out, "{}: examined{}", one.address, one.product)?;
    }
    let errors =
        findings.iter().filter(|finding| finding.severity == DoctorSeverity::Error).count();
    let (errors, warnings) =
        (count_text(errors, "error"), count_text(findings.len() - errors, "warning"));
    writeln!(out, "findings: {errors}, {warnings}")
}

/// Returns a suffix such as ` (Valkey)` for another product than Redis, and nothing for Redis.
fn product_suffix(product: StoreProduct) -> String {
    if product == StoreProduct::Redis { String::new() } else { format!(" ({})", product.name()) }
}

fn count_text(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Waits until the Redis of `options` is reachable. Returns the findings about it.
async fn await_findings(
    options: RedisOptions,
    requirements: DoctorRequirements,
    clock: Clock,
) -> Vec<DoctorFinding> {
    let facts = loop {
        match collect::collect_facts(&options, requirements.has_compat_keys, &clock).await {
            Ok(facts) => break facts,
            // Not logged, because the store's own connection logs the same failure.
            Err(_unreachable) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    };
    facts.iter().flat_map(|facts| evaluate_facts(facts, requirements)).collect()
}

/// Waits until the PostgreSQL of `options` is reachable. Returns the findings about it.
async fn await_postgres_findings(
    options: PostgresOptions,
    address: String,
    clock: Clock,
) -> Vec<DoctorFinding> {
    loop {
        match postgres::examine(&options, &address, &clock).await {
            Ok(examined) => return examined.findings,
            Err(_unreachable) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Logs the findings about each store in `settings` as soon as it is reachable.
pub(super) async fn log_all_findings(settings: Settings) {
    let requirements = requirements(&settings);
    let mut tasks = tokio::task::JoinSet::new();
    for options in store::all_redis_options(&settings) {
        tasks.spawn(await_findings(options, requirements, Clock::system()));
    }
    if let Some(options) = store::all_postgres_options(&settings) {
        tasks.spawn(await_postgres_findings(
            options,
            settings.store.url.to_string(),
            Clock::system(),
        ));
    }
    while let Some(findings) = tasks.join_next().await {
        for finding in findings.unwrap_or_default() {
            tracing::warn!(addr = finding.at, help = finding.help, "{}", finding.message);
        }
    }
}
