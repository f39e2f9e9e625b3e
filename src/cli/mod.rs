//! The command line.
//!
//! Guarantees:
//! - Every command ends with an [`Outcome`], which determines the exit code.
//! - Results go to standard output, and errors to standard error.
//!
//! Not covered:
//! - Logic: commands only connect the layers below.

pub mod args;
mod ask;
mod check;
mod doctor;
pub mod doors;
pub mod explain;
pub mod ratelimit;
mod remote;
mod serve;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::clock::Clock;
use crate::config;
use crate::config::settings::{self, Doors, Loaded};
use args::{Cli, Command, SchemaOf, Serve};

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a finding. Exit code 0.
    Yes,
    /// Success with a negative result, such as a finding or a denial. Exit code 1.
    No,
    /// The command failed. Exit code 2.
    CouldNotSay,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Yes => 0,
            Outcome::No => 1,
            Outcome::CouldNotSay => 2,
        })
    }
}

/// The output streams of a command.
pub struct Terminal<'a> {
    /// Receives the results.
    pub out: &'a mut dyn Write,
    /// Receives the errors.
    pub err: &'a mut dyn Write,
}

/// Runs the command line `argv`, whose first element is the program name.
pub fn run(
    argv: Vec<OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> Outcome {
    let done = match args::parse(argv) {
        Ok(cli) => command(cli, environment, terminal),
        Err(error) => refused(&error, terminal),
    };
    // The reader of the output has closed it, as in `sluicegate schema limits | head`.
    done.unwrap_or(Outcome::CouldNotSay)
}

fn command(
    cli: Cli,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Outcome> {
    match cli.command {
        Command::Serve(serve) => start(&serve, environment, terminal),
        Command::Ratelimit(serve) => start_as_ratelimit(&serve, environment, terminal),
        Command::Schema(schema) => print_schema(schema.of, terminal),
        Command::Check(check) => check::check(&check, terminal),
        Command::Doctor(args) => {
            let with = args::Serve {
                settings: args.settings.clone(),
                print_config: false,
                flags: args.flags.clone(),
            };
            match load(&with, environment, terminal)? {
                Some(it) => doctor::doctor(&args, &it.settings, &Clock::system(), terminal),
                None => Ok(Outcome::CouldNotSay),
            }
        }
        Command::Ask(ask) => ask::ask(&ask, terminal),
        Command::Explain(explain) => explain::explain(&explain, &Clock::system(), terminal),
    }
}

fn refused(error: &clap::Error, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    if error.use_stderr() {
        write!(terminal.err, "{}", error.render())?;
        return Ok(Outcome::CouldNotSay);
    }
    write!(terminal.out, "{}", error.render())?;
    Ok(Outcome::Yes)
}

fn start(
    serve: &Serve,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Outcome> {
    match load(serve, environment, terminal)? {
        None => Ok(Outcome::CouldNotSay),
        Some(loaded) if serve.print_config => print_config(&loaded, terminal),
        Some(loaded) => serve::serve(&loaded.settings, &[], terminal),
    }
}

/// Serves with settings from the environment variables of envoyproxy/ratelimit.
fn start_as_ratelimit(
    serve: &Serve,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Outcome> {
    let environment: Vec<_> = environment.into_iter().collect();
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let known: Vec<_> = environment.iter().map(|(name, value)| (text(name), text(value))).collect();
    let Some(doors) = open(serve, environment, terminal)? else {
        return Ok(Outcome::CouldNotSay);
    };
    let read = match ratelimit::read(known, &doors.named_settings()) {
        Ok(read) => read,
        Err(sentences) => {
            for sentence in sentences {
                writeln!(terminal.err, "error: {sentence}")?;
            }
            return Ok(Outcome::CouldNotSay);
        }
    };
    match settle(&Doors { named: read.named, ..doors }, terminal)? {
        None => Ok(Outcome::CouldNotSay),
        Some(loaded) if serve.print_config => print_config(&loaded, terminal),
        Some(loaded) => serve::serve(&loaded.settings, &read.notes, terminal),
    }
}

/// Returns the settings, or `None` after it has printed the errors.
fn load(
    serve: &Serve,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Option<Loaded>> {
    match open(serve, environment, terminal)? {
        Some(doors) => settle(&doors, terminal),
        None => Ok(None),
    }
}

/// Collects the settings from all sources, or returns `None` after it has printed the error.
fn open(
    serve: &Serve,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Option<Doors>> {
    match doors::open(serve, environment) {
        Ok(doors) => Ok(Some(doors)),
        Err(sentence) => {
            writeln!(terminal.err, "error: {sentence}")?;
            Ok(None)
        }
    }
}

fn settle(doors: &Doors, terminal: &mut Terminal<'_>) -> io::Result<Option<Loaded>> {
    let loaded = settings::read(doors);
    let problems = loaded.as_ref().map_or_else(|problems| problems, |loaded| &loaded.warnings);
    for problem in problems {
        writeln!(terminal.err, "{problem}")?;
    }
    Ok(loaded.ok())
}

fn print_config(loaded: &Loaded, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    write!(terminal.out, "{}", settings::print_config(loaded))?;
    Ok(Outcome::Yes)
}

fn print_schema(of: SchemaOf, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    match of {
        SchemaOf::Server => writeln!(terminal.out, "{:#}", settings::schema())?,
        SchemaOf::Limits => writeln!(terminal.out, "{:#}", config::schema::limits())?,
    }
    Ok(Outcome::Yes)
}
