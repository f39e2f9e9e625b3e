//! Defines the command line.
//!
//! Guarantees:
//! - `serve` has a flag for every setting of [`crate::config::settings`].

mod ask;
mod ban;
mod bench;
mod budget;
mod parse;
mod setting_flags;
mod table;
mod tls;
mod top;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::admin_client::LOCAL_ADMIN_PORT;
use super::recording_args::{RecordArgs, ReplayArgs, SuggestArgs};
pub use ask::AskArgs;
pub use ban::{BanCommand, BanLiftArgs, BanListArgs};
pub use bench::{BenchArgs, BenchFormat, BenchStrategy, RequestsPerUnit};
pub use budget::{
    BudgetCommand, BudgetExportArgs, BudgetListArgs, BudgetPlace, BudgetShowArgs, BudgetTarget,
    BudgetTopUpArgs, ExportFormat,
};
pub use parse::parse;
pub use setting_flags::SettingFlags;
pub use table::{
    TableCommand, TableGetArgs, TableListArgs, TableRowArgs, TableSetArgs, TableUnsetArgs,
};
pub use tls::TlsArgs;
pub use top::{TopArgs, TopFormat, TopRows, TopWindowArg};

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
    /// Measure a rate limit service under load: 0 measured, 1 no decision or above the limit, 2 failed.
    Bench(Box<BenchArgs>),
    /// Explain the limit that a descriptor matches.
    Explain(ExplainArgs),
    /// Print a page of the admin port, such as `/config` or `/permits`.
    Show(ShowArgs),
    /// Show the descriptors with the most hits and denials of a running fleet.
    Top(TopArgs),
    /// Show or change the rows of a table that limits read: 0 done, 1 no such row, 2 failed.
    #[command(subcommand)]
    Table(TableCommand),
    /// List the banned keys, or lift a ban: 0 done, 1 not banned, 2 failed.
    #[command(subcommand)]
    Ban(BanCommand),
    /// List, show or export budgets, or add to a prepaid one.
    #[command(subcommand)]
    Budget(BudgetCommand),
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
    /// Settings file with the `tables` that the limits read. `TABLE=FILE` reads the rows of one table
    /// from another file.
    #[arg(long, value_name = "FILE|TABLE=FILE", requires = "limits")]
    pub tables: Vec<String>,
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
