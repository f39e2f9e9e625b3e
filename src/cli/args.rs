//! Defines the command line.
//!
//! Guarantees:
//! - `serve` has a flag for every setting of [`crate::config::settings`].
//! - `--help` shows the default and the description of each setting.
//! - All unknown flags of `serve` are reported together.

mod top;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum,
};

use super::admin_client::LOCAL_ADMIN_PORT;
use super::recording_args::{RecordArgs, ReplayArgs, SuggestArgs};
use crate::config::settings::{Setting, Settings, Shape, table};
pub use top::{TopArgs, TopFormat, TopWindowArg};

/// A rate limiting and concurrency control service for Envoy and NGINX.
#[derive(Parser)]
#[command(name = "sluicegate", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 success, 1 errors or denied, 2 failure.")]
pub struct Cli {
    /// The command to run, with its arguments.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Serve rate limit checks: gRPC for Envoy, HTTP for other clients.
    Serve(ServeArgs),
    /// Replace envoyproxy/ratelimit: same environment variables, ports, files, keys and metrics.
    #[command(name = "ratelimit")]
    Ratelimit(ServeArgs),
    /// Validate files of limits: 0 no errors, 1 errors, 2 files unreadable.
    #[command(visible_alias = "check")]
    Validate(ValidateArgs),
    /// Send one check to a running service: 0 allowed, 1 denied, 2 failed.
    Ask(Box<AskArgs>),
    /// Explain the limit that a descriptor matches.
    Explain(ExplainArgs),
    /// Print a page of the admin port, such as `/config` or `/permits`.
    Show(ShowArgs),
    /// Show the descriptors with the most hits and denials of a running fleet.
    Top(TopArgs),
    /// Record the checks of a replica, or import Envoy's access log: 0 recorded, 2 failed.
    Record(RecordArgs),
    /// Decide recorded checks with other limits: 0 within the bound, 1 above it, 2 failed.
    Replay(ReplayArgs),
    /// Suggest limits from recorded checks, with the share of checks that each would deny.
    Suggest(SuggestArgs),
    /// Examine a Redis or PostgreSQL for use as the store, or an Envoy: 0 suitable, 1 errors, 2 unreachable.
    Doctor(DoctorArgs),
    /// Create or upgrade the tables in PostgreSQL: 0 done, 2 failed.
    Migrate(StoreArgs),
    /// Start the fleet of a new Redis or PostgreSQL: 0 done, 1 the store is not new, 2 could not say.
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Print the JSON Schema of a file format, for completion and validation in an editor.
    Schema(SchemaArgs),
}

/// Arguments of `sluicegate serve`. No `Debug`, because flags may contain a token.
#[derive(Args)]
#[command(
    after_help = "Each setting is also a variable, SLUICEGATE_STORE_URL for --store-url, and a key \
of server.yaml, `store: {url: …}`. Flags win over variables, variables over server.yaml."
)]
pub struct ServeArgs {
    /// Read settings from this file; `config/server.yaml` lists all of them.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Print the effective settings with their origins, then exit.
    #[arg(long)]
    pub print_config: bool,
    /// Create or upgrade the tables in PostgreSQL before serving.
    #[arg(long)]
    pub migrate: bool,
    /// One command-line flag for each setting.
    #[command(flatten)]
    pub flags: SettingFlags,
}

impl ServeArgs {
    /// Returns the arguments that read only the settings file.
    #[must_use]
    pub fn from_settings_file(file: PathBuf) -> Self {
        let flags = SettingFlags::default();
        Self { settings: Some(file), print_config: false, migrate: false, flags }
    }
}

/// The settings given as flags.
#[derive(Clone, Default)]
pub struct SettingFlags {
    /// Each flag on the command line, without leading dashes, and its values.
    pub given: Vec<(String, Vec<String>)>,
}

/// Arguments of `sluicegate validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Files and directories of limits, also in Kubernetes manifests; `-` is standard input.
    #[arg(required_unless_present = "envoy_filter", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Envoy configuration: validate Sluicegate's filter, and explain the failure mode of each filter.
    #[arg(long, value_name = "FILE")]
    pub envoy_filter: Vec<PathBuf>,
    /// Output format of the findings.
    #[arg(long, value_enum, default_value_t = FindingsFormat::Text)]
    pub format: FindingsFormat,
    /// Exit with 1 for warnings, too.
    #[arg(long)]
    pub warnings_as_errors: bool,
    /// Merge files with the same domain, like the setting `limits.merge_domains`.
    #[arg(long, visible_alias = "merge")]
    pub merge_domains: bool,
}

/// Arguments of `sluicegate ask`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own, as it is typed")]
#[command(group(ArgGroup::new("limited_change").args(["force", "boost"])))]
#[command(group(ArgGroup::new("forced_change").args(["force", "unforce"])))]
#[command(group(ArgGroup::new("change").multiple(true)
    .args(["reset", "refund", "force", "unforce", "boost", "unboost"])))]
#[command(after_help = "A change needs a token of the admin port with the role operate: in the \
variable SLUICEGATE_ADMIN_TOKEN, or in the file that SLUICEGATE_ADMIN_TOKEN_FILE names.")]
pub struct AskArgs {
    /// Address of the service's gRPC port.
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "HOST:PORT")]
    pub address: String,
    /// Domain of the check.
    #[arg(long, required_unless_present = "scope", default_value = "", hide_default_value = true)]
    pub domain: String,
    /// One descriptor of the check: its entries in order, as `key=value,key=value`.
    /// Write a comma as `\,`, an `=` in a key as `\=`, and a backslash as `\\`.
    #[arg(long = "descriptor", value_name = "K=V,…", required_unless_present = "scope")]
    pub descriptors: Vec<String>,
    /// Hits to charge.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "peek")]
    pub hits: u64,
    /// Charge nothing: print whether one hit would be allowed now, or when.
    #[arg(long)]
    pub peek: bool,
    /// Instead of a check, reset the counters of these descriptors.
    #[arg(long, requires = "reason", conflicts_with_all = ["peek", "hits"])]
    pub reset: bool,
    /// Instead of a check, return `--hits` to the counter of the one descriptor.
    #[arg(long, requires = "reason", conflicts_with_all = ["peek", "reset"])]
    pub refund: bool,
    /// Instead of a check, force this decision for `--scope` at all replicas.
    #[arg(long, requires_all = ["long", "reason"], conflicts_with_all = ["peek", "reset", "refund"], value_name = "deny|allow")]
    pub force: Option<String>,
    /// Instead of a check, raise the limit of the one descriptor at all replicas: `x2` doubles it,
    /// `600` sets it to 600 requests in its period.
    #[arg(long, requires_all = ["long", "reason"], conflicts_with_all = ["peek", "reset", "refund", "force"], value_name = "xN|N")]
    pub boost: Option<String>,
    /// Duration of the forced decision or boost, 1s to 24h.
    #[arg(long = "for", id = "long", value_name = "DURATION", requires = "limited_change")]
    pub long: Option<String>,
    /// Instead of a check, end a forced decision at all replicas.
    #[arg(long, requires = "reason", conflicts_with_all = ["peek", "reset", "refund", "force", "boost"])]
    pub unforce: bool,
    /// Instead of a check, end a boost at all replicas.
    #[arg(long, requires = "reason", conflicts_with_all = ["peek", "reset", "refund", "force", "boost", "unforce"])]
    pub unboost: bool,
    /// Target of `--force` and `--unforce`: `rule`, the default, for the rule that matches the
    /// descriptor; `key` for this one descriptor; `everything` for all limits, which are then
    /// counted and deny nothing, without `--domain` and `--descriptor`.
    #[arg(long, value_name = "rule|key|everything", requires = "forced_change")]
    pub scope: Option<String>,
    /// Reason of the change, for the audit log.
    #[arg(long, value_name = "TEXT", requires = "change")]
    pub reason: Option<String>,
    /// Admin port of the replica that makes the change. Default: `http://127.0.0.1:6070`. Checks go
    /// to `--address`.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Connect with TLS.
    #[arg(long)]
    pub tls: bool,
    /// CA bundle (PEM) that verifies the service's certificate; the default is the system's CAs.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca_file: Option<PathBuf>,
    /// PEM file of the client certificate.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key_file"])]
    pub tls_cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_cert_file"])]
    pub tls_key_file: Option<PathBuf>,
    /// Expected name in the service's certificate, if it differs from the host in the address.
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_server_name: Option<String>,
}

/// Arguments of `sluicegate show`.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port, or \
SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one."
)]
pub struct ShowArgs {
    /// Path of the page, with its query: `/counter?domain=shop&descriptor=api_key=me`. `/` lists all.
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Admin port of the replica.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
}

/// Arguments of `sluicegate doctor`. No `Debug`, because flags may contain a password.
#[derive(Args)]
#[command(
    after_help = "Examines the store that `serve` uses with the same flags, variables and file. \
With --envoy, examines an Envoy instead: its version, the module, its config and its failures."
)]
pub struct DoctorArgs {
    /// Examine the module in the Envoy with this admin port, for example `http://127.0.0.1:9901`.
    #[arg(long, value_name = "ADMIN_URL")]
    pub envoy: Option<String>,
    /// Also examine whether this Envoy is connected to the replica with this admin port, for example
    /// `http://127.0.0.1:6070`.
    #[arg(long, value_name = "URL", requires = "envoy")]
    pub server: Option<String>,
    /// Output format of the findings.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub format: OutputFormat,
    /// Exit with 1 for warnings, too.
    #[arg(long)]
    pub warnings_as_errors: bool,
    /// The store.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Arguments of a command that uses the store of `serve`. No `Debug`, because flags may contain a
/// password.
#[derive(Args)]
#[command(after_help = "Uses the store of `serve` with the same flags, variables and file.")]
pub struct StoreArgs {
    /// Read settings from this file.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// One command-line flag for each setting.
    #[command(flatten)]
    pub flags: SettingFlags,
}

impl StoreArgs {
    /// Returns the arguments of `serve` with the same settings.
    #[must_use]
    pub fn as_serve_args(&self) -> ServeArgs {
        let (settings, flags) = (self.settings.clone(), self.flags.clone());
        ServeArgs { settings, print_config: false, migrate: false, flags }
    }
}

/// The commands for a fleet, in its store.
#[derive(Subcommand)]
pub enum FleetCommand {
    /// State that no request is in flight under an earlier state of the store, so that concurrency
    /// limits need not wait: 0 done, 1 the store is not new, 2 could not say.
    Start(FleetStartArgs),
}

/// Arguments of `sluicegate fleet start`. No `Debug`, because flags may contain a password.
#[derive(Args)]
pub struct FleetStartArgs {
    /// Start although the store is not new. Do so only if no request is in flight anywhere:
    /// otherwise the fleet exceeds its limits.
    #[arg(long)]
    pub yes: bool,
    /// Exit with 0 also if the store is not new. Then nothing changes.
    #[arg(long, conflicts_with = "yes")]
    pub if_new: bool,
    /// Reason, for the audit log.
    #[arg(long, value_name = "TEXT", default_value = "no request is in flight")]
    pub reason: String,
    /// The store.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The output format of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FindingsFormat {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
    /// SARIF 2.1.0, for annotations on code hosts.
    Sarif,
}

/// Arguments of `sluicegate explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Files and directories of limits, also in Kubernetes manifests; `-` is standard input.
    #[arg(long, value_name = "DIR|FILE", required_unless_present = "server")]
    pub limits: Vec<PathBuf>,
    /// Use the limits of a running replica with this
    /// admin port, for example `http://127.0.0.1:6070`.
    #[arg(long, value_name = "URL", conflicts_with = "limits")]
    pub server: Option<String>,
    /// Domain of the check.
    #[arg(long)]
    pub domain: String,
    /// One descriptor of the check: its entries in order, as `key=value,key=value`.
    /// Write a comma as `\,`, an `=` in a key as `\=`, and a backslash as `\\`.
    #[arg(long = "descriptor", value_name = "K=V,…", required = true)]
    pub descriptors: Vec<String>,
    /// Hits of the check; 0 only reads the counter.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub hits: u64,
    /// Output format of the explanation.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub format: OutputFormat,
    /// Merge files with the same domain, like the setting `limits.merge_domains`.
    #[arg(long)]
    pub merge_domains: bool,
}

/// The output format of explanations, and of the findings of `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
}

/// Arguments of `sluicegate schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// File format to print the schema of.
    #[arg(value_enum)]
    pub of: SchemaKind,
}

/// A file format with a JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaKind {
    /// A file of limits.
    Limits,
    /// `server.yaml`.
    Server,
}

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

const RATELIMIT_PROGRAM: &str = "ratelimit";

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

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Settings::default();
        let flags = table().iter().map(|row| flag_arg(row, &defaults));
        command.args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn flag_arg(row: &'static Setting, defaults: &Settings) -> Arg {
    let help = format!("{} [default: {}]", row.doc, row.show(defaults));
    // The placeholder is a short list of the allowed words, or else the unit. A longer one would
    // indent the whole help text.
    let value_name = if row.unit == "word" { row.accepts.as_str() } else { row.unit };
    let heading = if row.block().is_empty() { "Settings" } else { row.block() };
    let arg = Arg::new(row.name).long(row.flag.as_str()).help(help).value_name(value_name);
    let arg = arg.help_heading(heading);
    // Collects every value of a repeated flag, so that it is reported with the other problems.
    let arg = arg.action(ArgAction::Append).allow_negative_numbers(true);
    match row.shape {
        Shape::Switch => arg.num_args(0..=1).default_missing_value("true"),
        Shape::One | Shape::Many | Shape::Block => arg.num_args(1),
    }
}

impl FromArgMatches for SettingFlags {
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
