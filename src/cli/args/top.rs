//! Arguments of `sluicegate top`.

use clap::{Args, ValueEnum};

use crate::cli::admin_client::LOCAL_ADMIN_PORT;

/// Arguments of `sluicegate top`.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port, or \
SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one. \
End with Ctrl-C."
)]
pub struct TopArgs {
    /// Admin port of a replica, which shows the hits of its fleet.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
    /// Rows of the table.
    #[arg(long, value_enum, default_value_t = TopRows::Key)]
    pub by: TopRows,
    /// Window in which hits are counted: minute by default. Only with `--by key`.
    #[arg(long, value_enum)]
    pub window: Option<TopWindowArg>,
    /// Show only this domain.
    #[arg(long)]
    pub domain: Option<String>,
    /// Show only the rule with this path, such as `shop.api_key`.
    #[arg(long, value_name = "PATH")]
    pub rule: Option<String>,
    /// Largest number of rows.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub rows: usize,
    /// Print the table once and exit, as if the output were no terminal.
    #[arg(long)]
    pub once: bool,
    /// Output format. JSON is the reply of the admin page `/top`, or `/concurrency`, printed once.
    #[arg(long, value_enum, default_value_t = TopFormat::Text)]
    pub format: TopFormat,
}

/// The rows of `sluicegate top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopRows {
    /// The keys with the most hits in the fleet.
    Key,
    /// The classes of the concurrency limits in use at this replica.
    Class,
}

/// The windows of `sluicegate top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopWindowArg {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl TopWindowArg {
    /// Returns the name of the window in the query of `/top`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }
}

/// The output formats of `sluicegate top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopFormat {
    /// A table for people.
    Text,
    /// One JSON object.
    Json,
}
