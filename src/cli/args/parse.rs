//! Parses the command line.
//!
//! Guarantees:
//! - All unknown flags of commands with settings are reported together.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{Cli, Command, FleetCommand};

const RATELIMIT_PROGRAM: &str = "ratelimit";

/// Parses the command line, whose first element is the program name.
///
/// # Errors
/// The clap error, or the output of `--help` or `--version`. Unknown flags of `serve` are no error
/// here: [`crate::config::settings::read`] reports them with all other problems.
pub fn parse(argv: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut argv = insert_ratelimit_command(argv);
    let mut unknown = Vec::new();
    let mut first_error = None;
    loop {
        match Cli::try_parse_from(&argv) {
            Ok(cli) => return add_unknown_flags(cli, unknown, first_error),
            Err(error) => match unknown_flag(&error).and_then(|flag| remove_flag(&mut argv, &flag))
            {
                Some(flag) => {
                    unknown.push((flag, Vec::new()));
                    first_error = first_error.or(Some(error));
                }
                None => return Err(first_error.unwrap_or(error)),
            },
        }
    }
}

/// Inserts the command `ratelimit` if the program's file name is `ratelimit`.
fn insert_ratelimit_command(mut argv: Vec<OsString>) -> Vec<OsString> {
    let name = argv.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == RATELIMIT_PROGRAM)
        && argv.get(1).is_none_or(|arg| arg != RATELIMIT_PROGRAM)
    {
        argv.insert(1, RATELIMIT_PROGRAM.into());
    }
    argv
}

/// Adds unknown flags to the settings of `serve`, `ratelimit`, `doctor`, `migrate` and `fleet start`.
/// For other commands they are an error.
fn add_unknown_flags(
    mut cli: Cli,
    unknown: Vec<(String, Vec<String>)>,
    first_error: Option<clap::Error>,
) -> Result<Cli, clap::Error> {
    match (&mut cli.command, first_error) {
        (Command::Serve(serve) | Command::Ratelimit(serve), _) => serve.flags.given.extend(unknown),
        (Command::Doctor(doctor), _) => doctor.store.flags.given.extend(unknown),
        (Command::Migrate(args), _) => args.flags.given.extend(unknown),
        (Command::Fleet(FleetCommand::Start(args)), _) => args.store.flags.given.extend(unknown),
        (_, Some(error)) => return Err(error),
        (_, None) => {}
    }
    Ok(cli)
}

/// Returns the flag that clap reports as unknown, without leading dashes.
fn unknown_flag(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => {
            flag.strip_prefix("--").map(str::to_owned)
        }
        _ => None,
    }
}

/// Removes `flag` and its value from `argv`. Returns the name of the flag.
fn remove_flag(argv: &mut Vec<OsString>, flag: &str) -> Option<String> {
    let name = flag.split('=').next()?.to_owned();
    let (bare, with_value) = (format!("--{name}"), format!("--{name}="));
    let index = argv.iter().position(|arg| {
        arg.to_str().is_some_and(|arg| arg == bare || arg.starts_with(&with_value))
    })?;
    let removed = argv.remove(index);
    let has_value = argv.get(index).is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    if removed == *bare && has_value {
        argv.remove(index);
    }
    Some(name)
}
