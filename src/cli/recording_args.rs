//! The arguments of the commands `record`, `replay` and `suggest`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use crate::config::resolve::duration;
use crate::kernel::units::{Nanos, Unit};
use crate::recording::percent::Percent;

/// Arguments of `sluicegate record`.
#[derive(Debug, Args)]
#[command(after_help = "With --server, the variable SLUICEGATE_ADMIN_TOKEN must contain a \
token of the admin port with the role operate.")]
pub struct RecordArgs {
    /// Admin port of the replica to record, for example `http://127.0.0.1:6070`.
    #[arg(long, value_name = "URL", required_unless_present = "access_log")]
    pub server: Option<String>,
    /// Reason of the recording, for the audit log.
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "access_log",
        conflicts_with = "access_log"
    )]
    pub reason: Option<String>,
    /// Read Envoy's access log instead of a replica: JSON lines; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "server", requires = "settings")]
    pub access_log: Option<PathBuf>,
    /// File of settings. Its `hooks` build the descriptors from the access log.
    #[arg(long, value_name = "FILE", requires = "access_log")]
    pub settings: Option<PathBuf>,
    /// Name of the hook. Default: the first hook in the file.
    #[arg(long, value_name = "NAME", requires = "access_log")]
    pub hook: Option<String>,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Duration of the recording, 1s to 1h.
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = parse_duration, conflicts_with = "access_log")]
    pub duration: Nanos,
    /// Share of descriptors to record. All hits of a selected descriptor are recorded.
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = parse_percent, conflicts_with = "access_log")]
    pub sample: Percent,
    /// Form of descriptor values. `hashed` keeps only the values that the limits name.
    #[arg(long, value_enum, default_value_t = KeyForm::Hashed)]
    pub keys: KeyForm,
}

/// The form of descriptor values in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyForm {
    /// Hashes, with a salt that is in the file.
    Hashed,
    /// The values themselves.
    Clear,
}

/// Arguments of `sluicegate replay`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("changed").args(["new", "new_tables"]).multiple(true))]
pub struct ReplayArgs {
    /// Recording of `sluicegate record`.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Files and directories of the present limits.
    #[arg(long, value_name = "DIR|FILE", required = true)]
    pub old: Vec<PathBuf>,
    /// Files and directories of the changed limits. Without them and without `--new-tables`, only
    /// compare the present limits with the recorded decisions.
    #[arg(long, value_name = "DIR|FILE")]
    pub new: Vec<PathBuf>,
    /// Settings file with the `tables` that the limits read. `TABLE=FILE` reads the rows of one table
    /// from another file: CSV, JSON lines, or a copy of the table.
    #[arg(long, value_name = "FILE|TABLE=FILE")]
    pub old_tables: Vec<String>,
    /// Changed tables. The others are those of `--old-tables`. Without `--new`, only the tables
    /// differ.
    #[arg(long, value_name = "FILE|TABLE=FILE")]
    pub new_tables: Vec<String>,
    /// Exit with 1 if a larger share of checks is newly denied: allowed by the old limits, denied
    /// by the new limits. Checks of 0 hits and refunds do not count.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, requires = "changed")]
    pub fail_over: Option<Percent>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ReplayFormat::Text)]
    pub format: ReplayFormat,
    /// Merge files with the same domain, like the setting `limits.merge_domains`.
    #[arg(long)]
    pub merge_domains: bool,
}

/// The values of the flag `--format` of `sluicegate replay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplayFormat {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
    /// Tables for a comment on a pull request.
    Markdown,
}

/// Arguments of `sluicegate suggest`.
#[derive(Debug, Args)]
pub struct SuggestArgs {
    /// Recording of `sluicegate record`.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Domain to suggest limits for, if the recording has several.
    #[arg(long)]
    pub domain: Option<String>,
    /// Percentage of descriptor values for which the limit allows their largest use in one unit.
    #[arg(long, value_name = "1-100", default_value = "99", value_parser = parse_percentile)]
    pub percentile: Percent,
    /// Factor by which this use is multiplied to get the limit, 0.001 to 1000.
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = parse_thousandths)]
    pub headroom: u64,
    /// Unit of the limits.
    #[arg(long, value_enum, default_value_t = SuggestedUnit::Minute)]
    pub unit: SuggestedUnit,
    /// Output format.
    #[arg(long, value_enum, default_value_t = SuggestionFormat::Text)]
    pub format: SuggestionFormat,
}

/// The output format of a suggestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SuggestionFormat {
    /// A limits file.
    Text,
    /// One JSON document.
    Json,
}

/// The units of suggested limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SuggestedUnit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

impl From<SuggestedUnit> for Unit {
    fn from(unit: SuggestedUnit) -> Self {
        match unit {
            SuggestedUnit::Second => Self::Second,
            SuggestedUnit::Minute => Self::Minute,
            SuggestedUnit::Hour => Self::Hour,
            SuggestedUnit::Day => Self::Day,
        }
    }
}

fn parse_duration(text: &str) -> Result<Nanos, &'static str> {
    duration::parse(text).map_err(|_| "use a duration such as 10m")
}

fn parse_percent(text: &str) -> Result<Percent, &'static str> {
    Percent::parse(text).ok_or("use a percentage such as 0.3%, at most 100%")
}

fn parse_percentile(text: &str) -> Result<Percent, &'static str> {
    let percentile = Percent::parse(&format!("{}%", text.trim_end_matches('%')));
    percentile.ok_or("use a number such as 99 or 99.9, at most 100")
}

/// Parses a positive decimal number, in thousandths.
fn parse_thousandths(text: &str) -> Result<u64, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_valid = !whole.is_empty() && is_number(whole) && is_number(decimals);
    let number = format!("{whole}{decimals:0<3}").parse().ok();
    let number = number.filter(|n| is_valid && decimals.len() <= 3 && (1..=1_000_000).contains(n));
    number.ok_or("use a factor such as 1.5, from 0.001 to 1000")
}
