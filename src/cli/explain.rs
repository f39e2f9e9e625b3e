//! Implements `sluicegate explain`, which shows the limit that a descriptor matches.
//!
//! Exits with 0 if a descriptor has a limit, and with 1 if none has. Shows the state of counters
//! only with a running replica.

use std::io;

use super::args::{ExplainArgs, OutputFormat};
use super::{CommandOutcome, Terminal, admin_client};
use crate::clock::Clock;
use crate::config::explain::{
    BucketSnapshot, Candidate, ConcurrencyExplanation, DescriptorExplanation, EntryExplanation,
    Explanation, RuleExplanation, explain as explained,
};
use crate::config::{self, Config, descriptor_text};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::source::file::read_tree;

/// The maximum number of non-matching patterns to print for an entry. Others are only counted.
const MAX_ABSENT_PATTERNS: usize = 3;

/// The duration units below one second, and how many of each make a second.
const SUBSECOND_UNITS: [(&str, u64); 3] = [("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)];

/// Runs `sluicegate explain`: prints the limits that a check would match now, by `clock`.
///
/// # Errors
/// Writing to the terminal failed.
pub fn explain(
    args: &ExplainArgs,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let explanation = match explain_check(args, clock.now()) {
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
    let has_limit = explanation
        .descriptors
        .iter()
        .any(|descriptor| descriptor.rule.is_some() || descriptor.concurrency.is_some());
    Ok(if has_limit { CommandOutcome::Success } else { CommandOutcome::Negative })
}

fn explain_check(args: &ExplainArgs, now: Nanos) -> Result<Explanation, String> {
    if let Some(server) = &args.server {
        let explanation = admin_client::explain(server, &args.domain, &args.descriptors, args.hits);
        return explanation.map_err(|message| format!("error: {message}"));
    }
    let descriptors: Result<Vec<_>, String> =
        args.descriptors.iter().map(|descriptor| parse_descriptor(descriptor)).collect();
    let (descriptors, config) = (descriptors?, load_config(args)?);
    let descriptors: Vec<_> =
        descriptors.iter().map(|entries| descriptor_text::borrow_entries(entries)).collect();
    Ok(explained(&config, &args.domain, &descriptors, Hits(args.hits), now))
}

fn load_config(args: &ExplainArgs) -> Result<Config, String> {
    let files =
        read_tree(&args.limits).map_err(|error| format!("error: {}", error.with_cause()))?;
    let named_files = files.iter().map(|file| (&*file.name, &*file.bytes));
    match config::load(named_files, Revision::default(), args.merge_domains) {
        Ok((config, _)) => Ok(config),
        Err(findings) => Err(findings.to_string()),
    }
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
        if let Some(rule) = &descriptor.rule {
            print_rule(rule, out)?;
        }
        if let Some(concurrency_limit) = &descriptor.concurrency {
            writeln!(
                out,
                "    limit     {} ({})",
                concurrency_limit.text, concurrency_limit.location
            )?;
            print_bucket_state(concurrency_limit, out)?;
        }
    }
    Ok(())
}

fn print_bucket_state(
    concurrency_limit: &ConcurrencyExplanation,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let Some(bucket) = &concurrency_limit.now else { return Ok(()) };
    let BucketSnapshot { in_flight, waiting, limit, rtt, min_rtt, gradient } = bucket;
    write!(out, "    now       {in_flight} of {limit} in flight, {waiting} waiting")?;
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
    if let (Some(tick), Some(worth)) = (&rule.tick, &rule.tick_is_worth) {
        writeln!(out, "    tick      {tick}, worth {worth} hits")?;
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
    let counter_note =
        if is_forced { ", independent of the counter" } else { " on an empty counter" };
    write!(out, "    decision  {}{counter_note}: {}", hits_text(fresh.hits), fresh.verdict)?;
    if let (Some(remaining), Some(reset)) = (fresh.remaining, &fresh.reset_after) {
        write!(out, ", {remaining} remaining, empty again after {}", round_up_to_seconds(reset))?;
    }
    writeln!(out)
}

/// Rounds a duration above one second in ms, us or ns up to whole seconds: `1500ms` to `2s`.
fn round_up_to_seconds(time: &str) -> String {
    let seconds = |(unit, per_second): &(&str, u64)| {
        let number: u64 = time.strip_suffix(*unit)?.parse().ok()?;
        (*per_second < number).then(|| format!("{}s", number.div_ceil(*per_second)))
    };
    let rounded = SUBSECOND_UNITS.iter().find_map(seconds);
    rounded.unwrap_or_else(|| time.to_owned())
}

fn hits_text(hits: u64) -> String {
    if hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") }
}
