//! Implements `sluicegate replay` and `sluicegate suggest`, which read a recording.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use super::limits_input::load_limits;
use super::recording_args::{ReplayArgs, ReplayFormat, SuggestArgs, SuggestionFormat};
use super::{CommandOutcome, Terminal};
use crate::replay::comparison::{Comparison, ReplayLimits, compare};
use crate::replay::report::{FailOver, ReportFormat};
use crate::replay::suggestion::{Suggestion, SuggestionOptions, suggest};

/// Runs `sluicegate replay`.
pub(super) fn replay(args: &ReplayArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    let comparison = match run_replay(args) {
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

fn run_replay(args: &ReplayArgs) -> Result<Comparison, String> {
    let old = load_limits(&args.old, args.merge_domains)?;
    let has_new = !args.new.is_empty();
    let new = has_new.then(|| load_limits(&args.new, args.merge_domains)).transpose()?;
    let input = open(&args.from).map_err(|error| recording_error(&args.from, &error))?;
    compare(input, ReplayLimits { old, new }).map_err(|error| recording_error(&args.from, &error))
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
