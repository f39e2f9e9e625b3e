//! The command line's shape.
//!
//! Guarantees: every setting of [`crate::config::settings`] is a flag of `serve`, with its default
//! and its sentence in `--help`; misspelt flags of `serve` are collected, not met one by one.
//! Leaves out: what settings mean, which is for the table, and what commands do.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::config::settings::{Setting, Settings, Shape, table};

/// Answers Envoy and NGINX when they ask whether a request may pass.
#[derive(Parser)]
#[command(name = "sluicegate", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 yes, 1 no, 2 could not say.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Answer questions: gRPC for Envoy, HTTP for the rest.
    Serve(Serve),
    /// Answer as envoyproxy/ratelimit: its environment variables, ports, files, keys and metrics.
    #[command(name = "ratelimit")]
    Ratelimit(Serve),
    /// Say what is wrong with files of limits: 0 sound, 1 findings, 2 could not look.
    Check(Check),
    /// Ask a running service, as a proxy does: 0 may pass, 1 may not, 2 could not say.
    Ask(Ask),
    /// Say which limit a descriptor meets, and why.
    Explain(Explain),
    /// Say whether a Redis is fit to keep counters: 0 fit, 1 not, 2 could not look.
    Doctor(Doctor),
    /// Print the JSON Schema of a kind of file, for an editor to complete and check it.
    Schema(Schema),
}

/// `sluicegate serve`. Not `Debug`: a token may be among the flags.
#[derive(Args)]
#[command(
    after_help = "Each setting is also a variable, SLUICEGATE_A_B_C for --a-b-c, and a key of \
server.yaml, a_b_c. Flags win over variables, variables over server.yaml, that over the defaults."
)]
pub struct Serve {
    /// Read settings from this file; `config/server.yaml` names them all.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Print the settings in force and where each came from, then stop.
    #[arg(long)]
    pub print_config: bool,
    /// One flag for each setting.
    #[command(flatten)]
    pub flags: Flags,
}

/// The settings given as flags.
#[derive(Clone, Default)]
pub struct Flags {
    /// Names without dashes, and the texts given for each.
    pub given: Vec<(String, Vec<String>)>,
}

/// `sluicegate check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Files and directories of limits.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// How findings are printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Let warnings fail the check, too.
    #[arg(long)]
    pub warnings_as_errors: bool,
    /// Join files that name the same domain, as the setting of this name does.
    #[arg(long, visible_alias = "merge")]
    pub merge_domains: bool,
}

/// `sluicegate ask`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own, as it is typed")]
pub struct Ask {
    /// Where the service speaks gRPC.
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "HOST:PORT")]
    pub address: String,
    /// The question's domain.
    #[arg(long)]
    pub domain: String,
    /// One descriptor of the question: its entries in order, `key=value,key=value`, where
    /// a comma in one is `\,`, an `=` in a key `\=`, and a backslash `\\`.
    #[arg(long = "descriptor", value_name = "K=V,…", required = true)]
    pub descriptors: Vec<String>,
    /// What the question costs.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "peek")]
    pub hits: u64,
    /// Only look: the question costs nothing.
    #[arg(long)]
    pub peek: bool,
    /// Instead of asking, give back everything that the counters of these descriptors hold now; needs `--server`.
    #[arg(long, requires = "server", conflicts_with_all = ["peek", "hits"])]
    pub reset: bool,
    /// Instead of asking, give `--hits` back to the counter of the one descriptor; needs `--server`.
    #[arg(long, requires = "server", conflicts_with_all = ["peek", "reset"])]
    pub grant: bool,
    /// Instead of asking, hold the limit of the one descriptor at this answer, at all replicas; needs `--server`.
    #[arg(long, requires_all = ["server", "long"], conflicts_with_all = ["peek", "reset", "grant"], value_name = "deny|allow")]
    pub freeze: Option<String>,
    /// How long `--freeze` holds, 1s to 24h.
    #[arg(long = "for", id = "long", value_name = "DURATION", requires = "freeze")]
    pub long: Option<String>,
    /// Instead of asking, let a limit go that `--freeze` holds, at all replicas; needs `--server`.
    #[arg(long, requires = "server", conflicts_with_all = ["peek", "reset", "grant", "freeze"])]
    pub thaw: bool,
    /// The admin port of the replica that is told so, for example `http://127.0.0.1:6070`; questions go to `--address`.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Speak TLS.
    #[arg(long)]
    pub tls: bool,
    /// PEM file of who may sign the service's certificate; without it whom this system trusts.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca_file: Option<PathBuf>,
    /// PEM file with the certificate that is shown to the service.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key_file"])]
    pub tls_cert_file: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_cert_file"])]
    pub tls_key_file: Option<PathBuf>,
    /// Whom the service's certificate must be made out to, instead of to the host that is called.
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_server_name: Option<String>,
}

/// `sluicegate doctor`. Not `Debug`: a password may be among the flags.
#[derive(Args)]
#[command(
    after_help = "The store is what `serve` would count in by the same flags, variables and file."
)]
pub struct Doctor {
    /// Read settings from this file.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// How findings are printed.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    pub format: Form,
    /// Let warnings make it unfit, too.
    #[arg(long)]
    pub warnings_as_errors: bool,
    /// One flag for each setting.
    #[command(flatten)]
    pub flags: Flags,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
    /// SARIF 2.1.0, which code hosts show beside the lines.
    Sarif,
}

/// `sluicegate explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Files and directories of limits.
    #[arg(long, value_name = "DIR|FILE", required_unless_present = "server")]
    pub limits: Vec<PathBuf>,
    /// Ask a running replica's admin port instead, for example `http://127.0.0.1:6070`.
    #[arg(long, value_name = "URL", conflicts_with = "limits")]
    pub server: Option<String>,
    /// The question's domain.
    #[arg(long)]
    pub domain: String,
    /// One descriptor of the question: its entries in order, `key=value,key=value`, where
    /// a comma in one is `\,`, an `=` in a key `\=`, and a backslash `\\`.
    #[arg(long = "descriptor", value_name = "K=V,…", required = true)]
    pub descriptors: Vec<String>,
    /// What the question costs; 0 only looks.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub hits: u64,
    /// How the explanation is printed.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    pub format: Form,
    /// Join files that name the same domain, as the setting of this name does.
    #[arg(long)]
    pub merge_domains: bool,
}

/// How an explanation or a finding is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// `sluicegate schema`.
#[derive(Debug, Args)]
pub struct Schema {
    /// Which file.
    #[arg(value_enum)]
    pub of: SchemaOf,
}

/// A kind of file that has a JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// A file of limits.
    Limits,
    /// `server.yaml`.
    Server,
}

/// Reads the command line, program name first.
///
/// # Errors
///
/// What clap has to say: `--help`, `--version`, or what it cannot read. Flags that `serve` does not
/// know are no error here: they are in [`Flags::given`], so that all problems are told together.
pub fn parse(argv: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut argv = by_name(argv);
    let mut unknown = Vec::new();
    let mut first = None;
    loop {
        match Cli::try_parse_from(&argv) {
            Ok(cli) => return settle(cli, unknown, first),
            Err(error) => match misspelt(&error).and_then(|flag| without(&mut argv, &flag)) {
                Some(flag) => {
                    unknown.push((flag, Vec::new()));
                    first = first.or(Some(error));
                }
                None => return Err(first.unwrap_or(error)),
            },
        }
    }
}

/// Who starts the program under the name `ratelimit` means the command of that name.
fn by_name(mut argv: Vec<OsString>) -> Vec<OsString> {
    let name = argv.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == RATELIMIT) && argv.get(1).is_none_or(|arg| arg != RATELIMIT)
    {
        argv.insert(1, RATELIMIT.into());
    }
    argv
}

/// What envoyproxy/ratelimit's program is called.
const RATELIMIT: &str = "ratelimit";

/// Misspelt flags go to the settings; no other command takes settings.
fn settle(
    mut cli: Cli,
    unknown: Vec<(String, Vec<String>)>,
    first: Option<clap::Error>,
) -> Result<Cli, clap::Error> {
    match (&mut cli.command, first) {
        (Command::Serve(serve) | Command::Ratelimit(serve), _) => serve.flags.given.extend(unknown),
        (_, Some(error)) => return Err(error),
        (_, None) => {}
    }
    Ok(cli)
}

/// The flag that clap does not know.
fn misspelt(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => {
            flag.strip_prefix("--").map(str::to_owned)
        }
        _ => None,
    }
}

/// Takes `--flag` and what looks like its value out of `argv`.
fn without(argv: &mut Vec<OsString>, flag: &str) -> Option<String> {
    let name = flag.split('=').next()?.to_owned();
    let (bare, with_value) = (format!("--{name}"), format!("--{name}="));
    let at = argv.iter().position(|arg| {
        arg.to_str().is_some_and(|arg| arg == bare || arg.starts_with(&with_value))
    })?;
    let removed = argv.remove(at);
    let value = argv.get(at).is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    if removed == *bare && value {
        argv.remove(at);
    }
    Some(name)
}

impl Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Settings::default();
        let flags = table().iter().map(|row| flag(row, &defaults));
        command.next_help_heading("Settings").args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn flag(row: &'static Setting, defaults: &Settings) -> Arg {
    let help = format!("{} [default: {}]", row.doc, row.show(defaults));
    // A list of words is short; what else is accepted would push every line aside.
    let takes = if row.unit == "word" { row.accepts.as_str() } else { row.unit };
    let arg = Arg::new(row.name).long(row.flag.as_str()).help(help).value_name(takes);
    // Appended whatever the shape: a flag given twice is told together with the other problems.
    let arg = arg.action(ArgAction::Append).allow_negative_numbers(true);
    match row.shape {
        Shape::Switch => arg.num_args(0..=1).default_missing_value("true"),
        Shape::One | Shape::Many | Shape::Block => arg.num_args(1),
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(table().iter().filter_map(|row| {
            let texts = matches.get_many::<String>(row.name)?.cloned().collect();
            Some((row.flag.clone(), texts))
        }));
        Ok(())
    }
}
