//! Implements `sluicegate doctor`, which examines a Redis for use as the store.
//!
//! Guarantees:
//! - Every finding names the address and the fix.
//! - Exits with 0 (suitable), 1 (errors) or 2 (unreachable).
//! - Warnings cause exit code 1 only with `--warnings-as-errors`.
//! - `serve` logs the same findings once it is connected, and always starts.
//!
//! Not covered:
//! - Collecting and evaluating the facts, which the submodules do.

mod judge;
mod look;

use std::io;
use std::time::Duration;

use serde_json::json;

use super::args::{Doctor, Form};
use super::serve::store;
use super::{Outcome, Terminal};
use crate::backend::redis::Options;
use crate::clock::Clock;
use crate::config::settings::{CounterKeys, Settings};
use judge::{Facts, Finding, Severity, Wanted, judge};

/// The pause between two attempts to reach a Redis.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) fn doctor(
    args: &Doctor,
    settings: &Settings,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<Outcome> {
    let stores = store::all(settings);
    if stores.is_empty() {
        writeln!(terminal.err, "error: there is no store to look at; name one with --backend")?;
        return Ok(Outcome::CouldNotSay);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut found = Vec::new();
    let mut looked_at = Vec::new();
    for options in &stores {
        match runtime.block_on(look::look(options, wanted(settings).reference, clock)) {
            Ok(facts) => {
                found.extend(facts.iter().flat_map(|facts| judge(facts, wanted(settings))));
                looked_at.extend(facts);
            }
            Err(refused) => {
                let cure = "name a Redis that runs and lets us in with --backend";
                writeln!(terminal.err, "error: {refused}: {cure}")?;
                return Ok(Outcome::CouldNotSay);
            }
        }
    }
    match args.format {
        Form::Text => text(&looked_at, &found, terminal.out)?,
        Form::Json => writeln!(terminal.out, "{:#}", as_json(&looked_at, &found))?,
    }
    let is_bad = |finding: &Finding| args.warnings_as_errors || finding.severity == Severity::Error;
    Ok(if found.iter().any(is_bad) { Outcome::No } else { Outcome::Yes })
}

fn wanted(settings: &Settings) -> Wanted {
    Wanted {
        deadline: settings.backend_deadline,
        reference: settings.counter_keys == CounterKeys::Envoyproxy,
        several: settings.backend_per_second.is_some(),
    }
}

fn text(looked_at: &[Facts], found: &[Finding], out: &mut dyn io::Write) -> io::Result<()> {
    for finding in found {
        writeln!(out, "{finding}")?;
    }
    for facts in looked_at {
        writeln!(out, "{}: looked at", facts.at)?;
    }
    let errors = found.iter().filter(|finding| finding.severity == Severity::Error).count();
    let (errors, warnings) = (counted(errors, "error"), counted(found.len() - errors, "warning"));
    writeln!(out, "findings: {errors}, {warnings}")
}

fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn as_json(looked_at: &[Facts], found: &[Finding]) -> serde_json::Value {
    let stores: Vec<_> = looked_at.iter().map(|facts| &facts.at).collect();
    json!({"stores": stores, "findings": found})
}

/// Waits until the Redis is reachable, then logs its findings.
async fn tell(options: Options, wanted: Wanted, clock: Clock) {
    let facts = loop {
        match look::look(&options, wanted.reference, &clock).await {
            Ok(facts) => break facts,
            // The store's own connection logs this failure.
            Err(_refused) => tokio::time::sleep(PAUSE).await,
        }
    };
    for finding in facts.iter().flat_map(|facts| judge(facts, wanted)) {
        tracing::warn!(at = finding.at, help = finding.help, "{}", finding.message);
    }
}

/// Logs the findings about the stores of `settings`, each once it is reachable.
pub(super) async fn tell_all(settings: Settings) {
    let wanted = wanted(&settings);
    let mut telling = tokio::task::JoinSet::new();
    for options in store::all(&settings) {
        telling.spawn(tell(options, wanted, Clock::system()));
    }
    telling.join_all().await;
}
