//! Implements `sluicegate replay` and `sluicegate suggest`, which read a recording.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use super::limits_input::load_limits;
use super::recording_args::{ReplayArgs, ReplayFormat, SuggestArgs, SuggestionFormat};
use super::tables_input::{BadRows, GivenTables};
use super::{CommandOutcome, Terminal};
use crate::config::table_limits::TableLimits;
use crate::replay::comparison::{Comparison, ReplayLimits, compare};
use crate::replay::report::{FailOver, ReportFormat};
use crate::replay::suggestion::{Suggestion, SuggestionOptions, suggest};

/// Runs `sluicegate replay`.
pub(super) fn replay(args: &ReplayArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    let comparison = match run_replay(args, terminal.err) {
        Ok(comparison) => comparison,
        Err(message) => return fail(&message, terminal),
    };
    let format = match args.format {
        ReplayFormat::Text => ReportFormat::Text,
        ReplayFormat::Json => ReportFormat::Json,
        ReplayFormat::Markdown => ReportFormat::Markdown,
    };
    let fail_over = args.fail_over.map(FailOver);
    write!(terminal.out, "{}", comparison.format(format, fail_over))?;
    let is_above = fail_over.is_some_and(|bound| bound.is_exceeded(&comparison));
    Ok(if is_above { CommandOutcome::Negative } else { CommandOutcome::Success })
}

fn run_replay(args: &ReplayArgs, err: &mut dyn io::Write) -> Result<Comparison, String> {
    let (limits, bad_rows) = replay_limits(args)?;
    // A closed standard error is no reason to fail.
    bad_rows.print(err).ok();
    let input = open(&args.from).map_err(|error| recording_error(&args.from, &error))?;
    let compared = compare(input, limits).map_err(|error| recording_error(&args.from, &error));
    compared.map(|mut comparison| {
        comparison.warnings.extend(bad_rows.summaries());
        comparison
    })
}

/// Loads the old and the new limits. Those that are not given are the same as the old ones, if their
/// tables are given.
fn replay_limits(args: &ReplayArgs) -> Result<(ReplayLimits, BadRows), String> {
    let old_tables = GivenTables::read("--old-tables", &args.old_tables, None)?;
    let new_tables = GivenTables::read("--new-tables", &args.new_tables, Some(&old_tables))?;
    let old = load_limits(&args.old, args.merge_domains)?;
    let new = match (&*args.new, &*args.new_tables) {
        ([], []) => None,
        ([], _) => Some(old.clone()),
        (new, _) => Some(load_limits(new, args.merge_domains)?),
    };
    let (old, mut bad_rows) = old_tables.load(old, &TableLimits::default())?;
    let Some(new) = new else { return Ok((ReplayLimits { old, new }, bad_rows)) };
    let (new, bad_new_rows) = new_tables.load(new, &old.tables)?;
    bad_rows.append(bad_new_rows);
    Ok((ReplayLimits { old, new: Some(new) }, bad_rows))
}

/// Runs `sluicegate suggest`.
pub(super) fn print_suggestion(
    args: &SuggestArgs,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let suggestion = match run_suggest(args) {
        Ok(suggestion) => suggestion,
        Err(message) => return fail(&message, terminal),
    };
    match args.format {
        SuggestionFormat::Text => write!(terminal.out, "{}", suggestion.limits_file())?,
        SuggestionFormat::Json => writeln!(terminal.out, "{:#}", suggestion.json())?,
    }
    Ok(CommandOutcome::Success)
}

fn run_suggest(args: &SuggestArgs) -> Result<Suggestion, String> {
    let options = SuggestionOptions {
        percentile: args.percentile,
        headroom_thousandths: args.headroom,
        unit: args.unit.into(),
    };
    let suggestion = suggest(|| open(&args.from), args.domain.as_deref(), options);
    suggestion.map_err(|error| recording_error(&args.from, &error))
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    File::open(path).map(BufReader::new)
}

fn recording_error(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("error: {}: {error}", path.display())
}

fn fail(message: &str, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    writeln!(terminal.err, "{message}")?;
    Ok(CommandOutcome::Failed)
}
