//! Implements `sluicegate explain`, which shows the limit that a descriptor matches.
//!
//! Exits with 0 if a descriptor has a limit, and with 1 if none has. Shows the state of counters
//! only with a running replica.

use std::io;

use super::args::{ExplainArgs, OutputFormat};
use super::limits_input::load_limits;
use super::tables_input::GivenTables;
use super::top::printable;
use super::{CommandOutcome, Terminal, admin_client};
use crate::clock::Clock;
use crate::config::descriptor_text;
use crate::config::explain::{
    BucketSnapshot, BudgetExplanation, Candidate, ConcurrencyExplanation, DescriptorExplanation,
    EntryExplanation, Explanation, RuleExplanation, explain as explained,
};
use crate::config::table_limits::TableLimits;
use crate::kernel::units::{Hits, Nanos};

/// The maximum number of non-matching patterns to print for an entry. Others are only counted.
const MAX_ABSENT_PATTERNS: usize = 3;

/// The units of durations in an [`Explanation`], with their lengths in nanoseconds.
const DURATION_UNITS: [(&str, u64); 4] =
    [("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)];

/// Runs `sluicegate explain`: prints the limits that a check would match now, by `clock`.
///
/// # Errors
/// Writing to the terminal failed.
pub fn explain(
    args: &ExplainArgs,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let explanation = match explain_check(args, clock.now(), terminal.err) {
        Ok(explanation) => explanation,
        Err(message) => {
            writeln!(terminal.err, "{message}")?;
            return Ok(CommandOutcome::Failed);
        }
    };
    match args.format {
        OutputFormat::Json => {
            let json = serde_json::to_string_pretty(&explanation).map_err(io::Error::other)?;
            writeln!(terminal.out, "{json}")?;
        }
        OutputFormat::Text => print_text(&explanation, terminal.out)?,
    }
    let has_limit = explanation.descriptors.iter().any(|descriptor| {
        let has_budget = !descriptor.budgets.is_empty();
        has_budget || descriptor.rule.is_some() || descriptor.concurrency.is_some()
    });
    Ok(if has_limit { CommandOutcome::Success } else { CommandOutcome::Negative })
}

fn explain_check(
    args: &ExplainArgs,
    now: Nanos,
    err: &mut dyn io::Write,
) -> Result<Explanation, String> {
    if let Some(server) = &args.server {
        let explanation = admin_client::explain(server, &args.domain, &args.descriptors, args.hits);
        return explanation.map_err(|message| format!("error: {message}"));
    }
    let descriptors: Result<Vec<_>, String> =
        args.descriptors.iter().map(|descriptor| parse_descriptor(descriptor)).collect();
    let (descriptors, config) = (descriptors?, load_limits(&args.limits, args.merge_domains)?);
    let tables = GivenTables::read("--tables", &args.tables, None)?;
    let (config, bad_rows) = tables.load(config, &TableLimits::default())?;
    // A closed standard error is no reason to fail.
    bad_rows.print(err).ok();
    let descriptors: Vec<_> =
        descriptors.iter().map(|entries| descriptor_text::borrow_entries(entries)).collect();
    Ok(explained(&config, &args.domain, &descriptors, Hits(args.hits), now))
}

fn parse_descriptor(descriptor: &str) -> Result<Vec<(String, String)>, String> {
    if descriptor.is_empty() {
        return Ok(Vec::new());
    }
    descriptor_text::parse_entries(descriptor)
        .map_err(|error| format!("error: --descriptor {descriptor}: {error}"))
}

fn print_text(explanation: &Explanation, out: &mut dyn io::Write) -> io::Result<()> {
    for descriptor in &explanation.descriptors {
        writeln!(out, "{}: {}", explanation.domain, descriptor.descriptor)?;
        print_steps(descriptor, out)?;
        writeln!(out, "  {}", descriptor.outcome)?;
        if let Some(nearest) = &descriptor.nearest {
            writeln!(out, "  nearest: {nearest}")?;
        }
        descriptor.limits().try_for_each(|rule| print_rule(rule, out))?;
        if let Some(concurrency_limit) = &descriptor.concurrency {
            writeln!(
                out,
                "    limit     {} ({})",
                concurrency_limit.text, concurrency_limit.location
            )?;
            if let Some(row) = &concurrency_limit.from_table {
                writeln!(out, "    table     {row}")?;
            }
            if let Some(class) = &concurrency_limit.class {
                writeln!(out, "    class     {}", printable(class))?;
            }
            if let Some(customer) = &concurrency_limit.customer {
                writeln!(out, "    customer  {}", printable(customer))?;
            }
            print_bucket_state(concurrency_limit, out)?;
        }
        descriptor.budgets.iter().try_for_each(|budget| print_budget(budget, out))?;
    }
    Ok(())
}

fn print_budget(budget: &BudgetExplanation, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "    budget    {} ({})", budget.text, budget.location)?;
    if let Some(row) = &budget.from_table {
        writeln!(out, "    table     {row}")?;
    }
    writeln!(out, "    counter   {}", budget.counter)
}

fn print_bucket_state(
    concurrency_limit: &ConcurrencyExplanation,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let Some(bucket) = &concurrency_limit.now else { return Ok(()) };
    let BucketSnapshot { in_flight, waiting, limit, rate_per_second, rtt, min_rtt, gradient } =
        bucket;
    match rate_per_second {
        Some(rate) => write!(out, "    now       {rate} per second, {in_flight} in flight")?,
        None => write!(out, "    now       {in_flight} of {limit} in flight")?,
    }
    write!(out, ", {waiting} waiting")?;
    if let Some(rtt) = rtt {
        write!(out, ", RTT {rtt}")?;
    }
    if let Some(min_rtt) = min_rtt {
        write!(out, ", min RTT {min_rtt}")?;
    }
    if let Some(gradient) = gradient {
        write!(out, ", gradient {gradient:.2}")?;
    }
    writeln!(out)
}

fn print_steps(descriptor: &DescriptorExplanation, out: &mut dyn io::Write) -> io::Result<()> {
    descriptor.steps.iter().try_for_each(|step| print_step(step, out))
}

fn print_step(step: &EntryExplanation, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "  {}", step.entry)?;
    let is_absent =
        |candidate: &Candidate| candidate.kind == "pattern" && candidate.verdict == "absent";
    let more = step
        .candidates
        .iter()
        .filter(|candidate| is_absent(candidate))
        .count()
        .saturating_sub(MAX_ABSENT_PATTERNS);
    let mut shown = 0;
    for candidate in &step.candidates {
        shown += usize::from(is_absent(candidate));
        if !is_absent(candidate) || shown <= MAX_ABSENT_PATTERNS {
            let verdict = candidate_text(candidate);
            writeln!(out, "    {:<8}  {:<24}  {verdict}", candidate.kind, candidate.name)?;
        }
    }
    if 0 < more {
        writeln!(out, "    pattern   and {more} more that do not match")?;
    }
    Ok(())
}

fn candidate_text(candidate: &Candidate) -> &'static str {
    match (&*candidate.verdict, &*candidate.kind) {
        ("matched", _) => "matched",
        ("outranked", _) => "matches too, with lower precedence",
        (_, "pattern") => "does not match",
        (_, _) => "is not in the file",
    }
}

fn print_rule(rule: &RuleExplanation, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "    limit     {}", rule.text)?;
    if let Some(row) = &rule.from_table {
        writeln!(out, "    table     {row}")?;
    }
    if let Some(refill) = refill_text(rule) {
        writeln!(out, "    refill    {refill}")?;
    }
    match &rule.counter {
        Some(counter) => writeln!(out, "    counter   {counter}")?,
        None => writeln!(out, "    counter   none: nothing is counted")?,
    }
    if let Some(replacement) = &rule.replaced_by {
        return writeln!(out, "    decision  none: replaced by `{replacement}` in this check");
    }
    let fresh = &rule.fresh;
    // A limit with a counter lacks `remaining` only during a forced decision.
    let is_forced = rule.counter.is_some() && fresh.remaining.is_none();
    let counter_note = if is_forced { ", forced by an operator" } else { " on an empty counter" };
    write!(out, "    decision  {}{counter_note}: {}", hits_text(fresh.hits), fresh.verdict)?;
    if let (Some(remaining), Some(reset)) = (fresh.remaining, &fresh.reset_after) {
        write!(out, ", {remaining} remaining, empty again after {}", duration_text(reset))?;
    }
    writeln!(out)
}

/// Returns the refill rate of a `gcra` limit: `1 hit every 100ms`.
fn refill_text(rule: &RuleExplanation) -> Option<String> {
    if rule.strategy.as_deref() != Some("gcra") {
        return None;
    }
    let (hits, ticks) = rule.tick_is_worth.as_deref()?.split_once('/')?;
    let (hits, ticks) = (hits.parse().ok()?, ticks.parse::<u64>().ok()?);
    let tick = parse_duration(rule.tick.as_deref()?)?;
    let interval = Nanos(tick.0.saturating_mul(ticks));
    Some(format!("{} every {}", hits_text(hits), interval.for_people()))
}

/// Formats a duration of an [`Explanation`] for people: `630500ms` as `10m31s`. Durations above one
/// second are rounded up to whole seconds.
fn duration_text(text: &str) -> String {
    let Some(duration) = parse_duration(text) else { return text.to_owned() };
    let is_short = duration <= Nanos::SECOND;
    let shown = if is_short { duration } else { Nanos::from_secs(duration.as_secs_ceil()) };
    shown.for_people()
}

/// Parses a duration of an [`Explanation`], such as `1500ms`.
fn parse_duration(text: &str) -> Option<Nanos> {
    DURATION_UNITS.iter().find_map(|(unit, nanos)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*nanos).map(Nanos)
    })
}

fn hits_text(hits: u64) -> String {
    if hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") }
}
