//! Implements `sluicegate bench`, which sends checks at given rates and measures the replies.
//!
//! Guarantees:
//! - Connects before it charges anything: an unreachable service is an error, not a result.
//! - Ends after the durations of its steps and one call timeout for each of them.
//! - Ctrl-C ends the load, also while replies are missing. The results so far are printed.
//! - A file of `--svg` that cannot be written is an error before the load.
//!
//! Not covered:
//! - HTTPS.

mod progress;
mod target;

use std::fs::OpenOptions;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::args::{BenchArgs, BenchFormat, BenchStrategy, RequestsPerUnit};
use super::{CommandOutcome, Terminal};
use crate::bench::cpu::cpu_time;
use crate::bench::{
    BenchLoad, BenchReport, CheckSeries, FirstError, KEY_PLACEHOLDER, KeyChooser, LawStrategy,
    LimitLaw, SendSchedule, StepResult, law_error, svg,
};
use crate::clock::Clock;
use crate::config::descriptor_text;
use progress::{INTERVAL, Progress};
use target::BenchTarget;

/// The most checks of a bench with `--limit`, which needs up to 64 bytes for each check.
const MAX_COMPARED_CHECKS: u64 = 5_000_000;

pub(super) fn bench(args: &BenchArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    let report = match run(args, terminal) {
        Ok(report) => report,
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            return Ok(CommandOutcome::Failed);
        }
    };
    match args.format {
        BenchFormat::Table => write!(terminal.out, "{}", report.text())?,
        BenchFormat::Json => writeln!(terminal.out, "{:#}", report.json())?,
    }
    if let Some(path) = &args.svg
        && let Err(error) = std::fs::write(path, svg(&report))
    {
        writeln!(terminal.err, "error: --svg {}: {error}", path.display())?;
        return Ok(CommandOutcome::Failed);
    }
    Ok(if report.is_negative() { CommandOutcome::Negative } else { CommandOutcome::Success })
}

fn run(args: &BenchArgs, terminal: &mut Terminal<'_>) -> Result<BenchReport, String> {
    let (checks, law) = (checks(args)?, law(args)?);
    if let Some(path) = &args.svg {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| format!("--svg {}: {error}", path.display()))?;
    }
    let target = BenchTarget::read(args)?;
    args.pid.map(cpu_time).transpose().map_err(|error| format!("--pid: {error}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start: {error}"))?;
    let first_error = FirstError::default();
    let mut load = BenchLoad {
        checks,
        senders: runtime.block_on(target.connect(args, &first_error))?,
        timeout: Duration::from_nanos(args.timeout.0),
        pid: args.pid,
        clock: Arc::new(Clock::system()),
        answers: law.map(|_| Arc::default()),
    };
    let notice = format!("charges the counters of domain `{}` at {target}", args.domain);
    writeln!(terminal.err, "{notice}").map_err(|error| error.to_string())?;
    let steps = runtime.block_on(run_steps(args, &load, terminal))?;
    if let Some(error) = first_error.get() {
        writeln!(terminal.err, "first failed check: {error}").map_err(|error| error.to_string())?;
    }
    // The calls in flight have ended. Idle connections need no graceful end.
    runtime.shutdown_background();
    let answers = load.answers.take().map(|answers| std::mem::take(&mut *Mutex::lock(&answers)));
    let law = law.zip(answers).map(|(law, mut answers)| (law, law_error(&law, &mut answers)));
    let BenchArgs { keys, skew, hits, seed, .. } = *args;
    Ok(BenchReport { target: target.to_string(), keys, skew, hits, seed, steps, law })
}

/// Runs the steps in turn, until the last one or Ctrl-C.
async fn run_steps(
    args: &BenchArgs,
    load: &BenchLoad,
    terminal: &mut Terminal<'_>,
) -> Result<Vec<StepResult>, String> {
    let (mut results, mut first) = (Vec::new(), 0);
    let mut progress = Progress::new(terminal.err);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    for rate in &args.rate {
        let schedule = SendSchedule { rate: *rate, duration: args.duration };
        let started = load.start(schedule, first);
        let mut step = started.map_err(|error| format!("failed to start a thread: {error}"))?;
        let label = format!("step {} of {}", results.len() + 1, args.rate.len());
        let is_interrupted = loop {
            tokio::select! {
                () = step.wait() => break false,
                // The checks in flight are not counted.
                _ = &mut interrupt => break true,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            progress.show(&label, schedule, (step.sent(), step.decisions()));
        };
        step.stop();
        results.push(load.finish(&step));
        first += schedule.count();
        if is_interrupted {
            break;
        }
    }
    progress.clear();
    Ok(results)
}

/// Reads the descriptors and the flags about keys.
fn checks(args: &BenchArgs) -> Result<CheckSeries, String> {
    let parse = |text: &String| {
        descriptor_text::parse_entries(text).map_err(|why| format!("--descriptor {text}: {why}"))
    };
    let descriptors: Vec<_> = args.descriptors.iter().map(parse).collect::<Result<_, _>>()?;
    if descriptors.iter().flatten().any(|(key, _)| key.contains(KEY_PLACEHOLDER)) {
        return Err(format!("--descriptor: {KEY_PLACEHOLDER} has a meaning in values only"));
    }
    let has_key = |(_, value): &(String, String)| value.contains(KEY_PLACEHOLDER);
    if 1 < args.keys && !descriptors.iter().flatten().any(has_key) {
        return Err(format!(
            "--keys {} has no effect: write {KEY_PLACEHOLDER} in a value of --descriptor, such as \
             api_key=client-{KEY_PLACEHOLDER}",
            args.keys
        ));
    }
    Ok(CheckSeries {
        domain: args.domain.clone(),
        descriptors,
        copies: args.copies,
        hits: args.hits,
        keys: KeyChooser::new(args.keys, args.skew),
        seed: args.seed,
    })
}

/// Reads the flags about the limit.
fn law(args: &BenchArgs) -> Result<Option<LimitLaw>, String> {
    let Some(RequestsPerUnit { requests, unit }) = args.limit else { return Ok(None) };
    if args.descriptors.len() != 1 || args.copies != 1 {
        return Err("--limit compares one limit: use one --descriptor, without --copies".to_owned());
    }
    let steps = args.rate.iter().map(|rate| SendSchedule { rate: *rate, duration: args.duration });
    let checks: u64 = steps.map(|step| step.count()).sum();
    if MAX_COMPARED_CHECKS < checks {
        return Err(format!(
            "--limit compares at most {MAX_COMPARED_CHECKS} checks, not {checks}; use a lower --rate \
             or a shorter --duration"
        ));
    }
    let strategy = match args.strategy {
        BenchStrategy::FixedWindow if args.burst.is_some() => {
            return Err("--burst needs --strategy gcra: a fixed window has none".to_owned());
        }
        BenchStrategy::FixedWindow => LawStrategy::FixedWindow,
        BenchStrategy::Gcra => LawStrategy::Gcra { burst: args.burst.unwrap_or(requests) },
    };
    Ok(Some(LimitLaw { requests, unit, strategy, hits: u64::from(args.hits) }))
}
