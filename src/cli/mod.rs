//! The command line. A command only connects other modules.
//!
//! Guarantees:
//! - Every command ends with a [`CommandOutcome`], which determines the exit code.
//! - Results go to standard output, and errors to standard error.

mod admin_client;
pub mod args;
mod ask;
mod ban;
mod bench;
mod budget;
mod doctor;
pub mod explain;
mod fleet;
mod limits_input;
mod migrate;
pub mod ratelimit;
mod record;
pub mod recording_args;
mod replay;
mod serve;
pub mod settings_input;
mod show;
mod table;
mod table_conflicts;
mod tables_input;
mod terminal;
mod token_file;
mod top;
mod validate;

use std::ffi::OsString;
use std::io;

use crate::clock::Clock;
use crate::config;
use crate::config::settings::{self, LoadedSettings, SettingsInput};
pub use terminal::{CommandOutcome, Terminal};

use args::{Cli, Command, FleetCommand, SchemaKind, ServeArgs};

/// Runs the command line `argv`, whose first element is the program name.
pub fn run(
    argv: Vec<OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> CommandOutcome {
    let result = match args::parse(argv) {
        Ok(cli) => run_command(cli, environment, terminal),
        Err(error) => print_clap_error(&error, terminal),
    };
    // Writing fails if the reader has closed the output, as in `sluicegate schema limits | head`.
    result.unwrap_or(CommandOutcome::Failed)
}

fn run_command(
    cli: Cli,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    match cli.command {
        Command::Serve(serve) => start(&serve, environment, terminal),
        Command::Ratelimit(serve) => start_as_ratelimit(&serve, environment, terminal),
        Command::Schema(schema) => print_schema(schema.of, terminal),
        Command::Validate(validate) => validate::validate(&validate, terminal),
        Command::Doctor(args) => {
            match load_settings(&args.store.as_serve_args(), environment, terminal)? {
                Some(loaded) => doctor::doctor(&args, &loaded.settings, &Clock::system(), terminal),
                None => Ok(CommandOutcome::Failed),
            }
        }
        Command::Migrate(args) => {
            match load_settings(&args.as_serve_args(), environment, terminal)? {
                Some(loaded) => migrate::migrate(&loaded.settings, terminal),
                None => Ok(CommandOutcome::Failed),
            }
        }
        Command::Fleet(FleetCommand::Start(args)) => {
            match load_settings(&args.store.as_serve_args(), environment, terminal)? {
                Some(loaded) => fleet::start(&args, &loaded.settings, &Clock::system(), terminal),
                None => Ok(CommandOutcome::Failed),
            }
        }
        Command::Ask(ask) => ask::ask(&ask, terminal),
        Command::Bench(args) => bench::bench(&args, terminal),
        Command::Show(args) => show::show(&args, terminal),
        Command::Ban(command) => ban::ban(&command, terminal),
        Command::Table(command) => table::table(&command, terminal),
        Command::Budget(command) => budget::budget(&command, terminal),
        Command::Top(args) => top::top(&args, terminal),
        Command::Record(args) => match &args.settings {
            None => record::record(&args, None, terminal),
            Some(file) => {
                let settings = ServeArgs::from_settings_file(file.clone());
                match load_settings(&settings, environment, terminal)? {
                    Some(loaded) => record::record(&args, Some(&loaded.settings), terminal),
                    None => Ok(CommandOutcome::Failed),
                }
            }
        },
        Command::Replay(args) => replay::replay(&args, terminal),
        Command::Suggest(args) => replay::print_suggestion(&args, terminal),
        Command::Explain(explain) => explain::explain(&explain, &Clock::system(), terminal),
    }
}

fn print_clap_error(
    error: &clap::Error,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    if error.use_stderr() {
        write!(terminal.err, "{}", error.render())?;
        return Ok(CommandOutcome::Failed);
    }
    write!(terminal.out, "{}", error.render())?;
    Ok(CommandOutcome::Success)
}

fn start(
    serve: &ServeArgs,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    match load_settings(serve, environment, terminal)? {
        None => Ok(CommandOutcome::Failed),
        Some(loaded) if serve.print_config => print_config(&loaded, terminal),
        Some(loaded) => serve::serve(&loaded.settings, serve.migrate, &[], terminal),
    }
}

/// Serves with settings from the environment variables of envoyproxy/ratelimit.
fn start_as_ratelimit(
    serve: &ServeArgs,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let environment: Vec<_> = environment.into_iter().collect();
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let variables: Vec<_> =
        environment.iter().map(|(name, value)| (text(name), text(value))).collect();
    let Some(input) = collect_settings(serve, environment, terminal)? else {
        return Ok(CommandOutcome::Failed);
    };
    let translated = match ratelimit::read_environment(variables, &input.explicit_setting_names()) {
        Ok(translated) => translated,
        Err(messages) => {
            for message in messages {
                writeln!(terminal.err, "error: {message}")?;
            }
            return Ok(CommandOutcome::Failed);
        }
    };
    match read_settings(
        &SettingsInput { ratelimit_values: translated.settings, ..input },
        terminal,
    )? {
        None => Ok(CommandOutcome::Failed),
        Some(loaded) if serve.print_config => print_config(&loaded, terminal),
        Some(loaded) => serve::serve(&loaded.settings, serve.migrate, &translated.notes, terminal),
    }
}

/// Loads the settings. Returns `None` after printing their errors.
fn load_settings(
    serve: &ServeArgs,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Option<LoadedSettings>> {
    match collect_settings(serve, environment, terminal)? {
        Some(input) => read_settings(&input, terminal),
        None => Ok(None),
    }
}

/// Collects the settings from flags, environment variables and `server.yaml`. Returns `None` after
/// printing an error.
fn collect_settings(
    serve: &ServeArgs,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    terminal: &mut Terminal<'_>,
) -> io::Result<Option<SettingsInput>> {
    match settings_input::collect(serve, environment) {
        Ok(input) => Ok(Some(input)),
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            Ok(None)
        }
    }
}

fn read_settings(
    input: &SettingsInput,
    terminal: &mut Terminal<'_>,
) -> io::Result<Option<LoadedSettings>> {
    let loaded = settings::read(input);
    let problems = loaded.as_ref().map_or_else(|problems| problems, |loaded| &loaded.warnings);
    for problem in problems {
        writeln!(terminal.err, "{problem}")?;
    }
    Ok(loaded.ok())
}

fn print_config(
    loaded: &LoadedSettings,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    write!(terminal.out, "{}", settings::print_config(loaded))?;
    Ok(CommandOutcome::Success)
}

fn print_schema(kind: SchemaKind, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    match kind {
        SchemaKind::Server => writeln!(terminal.out, "{:#}", settings::schema())?,
        SchemaKind::Limits => writeln!(terminal.out, "{:#}", config::schema::limits_schema())?,
    }
    Ok(CommandOutcome::Success)
}
