//! Implements `sluicegate explain`, which shows the limit that a descriptor matches.
//!
//! Guarantees:
//! - Prints the explanation of [`crate::config::explain`].
//! - Exits with 0 if a descriptor has a limit, and with 1 if none has.
//!
//! Not covered:
//! - The state of counters, which needs a running replica.

use std::io;

use super::args::{Explain, Form};
use super::{Outcome, Terminal, remote};
use crate::clock::Clock;
use crate::config::explain::{
    Candidate, Explained, Explanation, Looked, Met, Now, Under, explain as explained,
};
use crate::config::{self, Config, written};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::source::file::read_tree;

/// The maximum number of non-matching patterns to list. The others are counted.
const ABSENT_SHOWN: usize = 3;

/// The duration units below one second, and the number of each in a second.
const SMALL_UNITS: [(&str, u64); 3] = [("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)];

/// Explains a check at the time of `clock`.
///
/// # Errors
/// A failed write to the terminal.
pub fn explain(args: &Explain, clock: &Clock, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    let explanation = match question(args, clock.now()) {
        Ok(explanation) => explanation,
        Err(sentences) => {
            writeln!(terminal.err, "{sentences}")?;
            return Ok(Outcome::CouldNotSay);
        }
    };
    match args.format {
        Form::Json => {
            let json = serde_json::to_string_pretty(&explanation).map_err(io::Error::other)?;
            writeln!(terminal.out, "{json}")?;
        }
        Form::Text => text(&explanation, terminal.out)?,
    }
    let limited =
        explanation.descriptors.iter().any(|one| one.rule.is_some() || one.ceiling.is_some());
    Ok(if limited { Outcome::Yes } else { Outcome::No })
}

fn question(args: &Explain, now: Nanos) -> Result<Explanation, String> {
    if let Some(server) = &args.server {
        let explanation = remote::explain(server, &args.domain, &args.descriptors, args.hits);
        return explanation.map_err(|sentence| format!("error: {sentence}"));
    }
    let descriptors: Result<Vec<_>, String> =
        args.descriptors.iter().map(|descriptor| entries(descriptor)).collect();
    let (descriptors, config) = (descriptors?, load(args)?);
    let descriptors: Vec<_> =
        descriptors.iter().map(|entries| written::borrowed(entries)).collect();
    Ok(explained(&config, &args.domain, &descriptors, Hits(args.hits), now))
}

fn load(args: &Explain) -> Result<Config, String> {
    let files = read_tree(&args.limits).map_err(|error| format!("error: {}", error.in_full()))?;
    let named = files.iter().map(|file| (&*file.name, &*file.bytes));
    match config::load(named, Revision::default(), args.merge_domains) {
        Ok((config, _)) => Ok(config),
        Err(found) => Err(found.to_string()),
    }
}

fn entries(descriptor: &str) -> Result<Vec<(String, String)>, String> {
    if descriptor.is_empty() {
        return Ok(Vec::new());
    }
    written::entries(descriptor).map_err(|why| format!("error: --descriptor {descriptor}: {why}"))
}

fn text(explanation: &Explanation, out: &mut dyn io::Write) -> io::Result<()> {
    for one in &explanation.descriptors {
        writeln!(out, "{}: {}", explanation.domain, one.descriptor)?;
        steps(one, out)?;
        writeln!(out, "  {}", one.outcome)?;
        if let Some(met) = &one.rule {
            rule(met, out)?;
        }
        if let Some(ceiling) = &one.ceiling {
            writeln!(out, "    ceiling   {} ({})", ceiling.says, ceiling.place)?;
            now(ceiling, out)?;
        }
    }
    Ok(())
}

fn now(ceiling: &Under, out: &mut dyn io::Write) -> io::Result<()> {
    let Some(now) = &ceiling.now else { return Ok(()) };
    let Now { in_flight, waiting, limit, rtt, min_rtt, gradient } = now;
    write!(out, "    now       {in_flight} of {limit} in flight, {waiting} waiting")?;
    if let Some(rtt) = rtt {
        write!(out, ", latency {rtt}")?;
    }
    if let Some(min_rtt) = min_rtt {
        write!(out, ", {min_rtt} without a queue")?;
    }
    if let Some(gradient) = gradient {
        write!(out, ", gradient {gradient:.2}")?;
    }
    writeln!(out)
}

fn steps(one: &Explained, out: &mut dyn io::Write) -> io::Result<()> {
    one.steps.iter().try_for_each(|step| looked(step, out))
}

fn looked(step: &Looked, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "  {}", step.entry)?;
    let absent = |one: &Candidate| one.how == "pattern" && one.verdict == "absent";
    let more =
        step.candidates.iter().filter(|one| absent(one)).count().saturating_sub(ABSENT_SHOWN);
    let mut shown = 0;
    for one in &step.candidates {
        shown += usize::from(absent(one));
        if !absent(one) || shown <= ABSENT_SHOWN {
            let verdict = said(one);
            writeln!(out, "    {:<8}  {:<24}  {verdict}", one.how, one.name)?;
        }
    }
    if 0 < more {
        writeln!(out, "    pattern   and {more} more that do not match")?;
    }
    Ok(())
}

fn said(one: &Candidate) -> &'static str {
    match (&*one.verdict, &*one.how) {
        ("taken", _) => "taken",
        ("outranked", "pattern") => "matches too, but comes later",
        ("outranked", _) => "is there, but comes last",
        (_, "pattern") => "does not match",
        (_, _) => "is not in the file",
    }
}

fn rule(met: &Met, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "    limit     {}", met.says)?;
    if let (Some(tick), Some(worth)) = (&met.tick, &met.tick_is_worth) {
        writeln!(out, "    tick      {tick}, worth {worth} hits")?;
    }
    match &met.counter {
        Some(counter) => writeln!(out, "    counter   {counter}")?,
        None => writeln!(out, "    counter   none, nothing is counted")?,
    }
    if let Some(by) = &met.replaced_by {
        return writeln!(out, "    answer    none of its own: replaced by `{by}` in this question");
    }
    let fresh = &met.fresh;
    // A counted limit lacks `remaining` only during a forced decision.
    let is_held = met.counter.is_some() && fresh.remaining.is_none();
    let of = if is_held { ", whatever a counter holds" } else { " on a fresh counter" };
    write!(out, "    answer    {}{of}: {}", hits(fresh.hits), fresh.verdict)?;
    if let (Some(remaining), Some(reset)) = (fresh.remaining, &fresh.reset_after) {
        write!(out, ", {remaining} remaining, at rest again after {}", coarse(reset))?;
    }
    writeln!(out)
}

/// Rounds a duration of more than one second in a small unit up to whole seconds.
fn coarse(time: &str) -> String {
    let seconds = |(unit, per): &(&str, u64)| {
        let number: u64 = time.strip_suffix(*unit)?.parse().ok()?;
        (*per < number).then(|| format!("{}s", number.div_ceil(*per)))
    };
    let found = SMALL_UNITS.iter().find_map(seconds);
    found.unwrap_or_else(|| time.to_owned())
}

fn hits(hits: u64) -> String {
    if hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") }
}
