//! Arguments of `sluicegate table`.

use clap::{Args, Subcommand};

use crate::cli::admin_client::LOCAL_ADMIN_PORT;

/// The commands for the tables that limits read.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// List the tables, or the rows of one table.
    List(TableListArgs),
    /// Print the row of one id, and the amounts that operators set for it.
    Get(TableGetArgs),
    /// Set the amount of one id for a while, at all replicas.
    Set(TableSetArgs),
    /// End an amount that was set, at all replicas.
    Unset(TableUnsetArgs),
}

/// The replica that a command of `sluicegate table` calls.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port, or \
SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one. `set` and `unset` need the role operate."
)]
pub struct TableServer {
    /// Admin port of a replica.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
}

/// Arguments of `sluicegate table list`.
#[derive(Debug, Args)]
pub struct TableListArgs {
    /// Table whose rows are listed. Without it, all tables.
    #[arg(value_name = "TABLE")]
    pub table: Option<String>,
    /// Only the rows with this plan.
    #[arg(long, value_name = "NAME", requires = "table")]
    pub plan: Option<String>,
    /// Largest number of rows, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rows: u16,
    /// The replica.
    #[command(flatten)]
    pub server: TableServer,
}

/// Arguments of `sluicegate table get`.
#[derive(Debug, Args)]
pub struct TableGetArgs {
    /// Table.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// Id of the row.
    #[arg(value_name = "ID")]
    pub id: String,
    /// The replica.
    #[command(flatten)]
    pub server: TableServer,
}

/// Arguments of `sluicegate table set`.
#[derive(Debug, Args)]
pub struct TableSetArgs {
    /// Column and its new amount: a number, `unlimited` or `blocked`.
    #[arg(value_name = "COLUMN=AMOUNT", index = 3)]
    pub amount: String,
    /// Duration, 1s to 24h. Change the source for longer.
    #[arg(long = "for", value_name = "DURATION")]
    pub duration: String,
    /// The row and the reason.
    #[command(flatten)]
    pub change: TableRowArgs,
}

/// Arguments of `sluicegate table unset`.
#[derive(Debug, Args)]
pub struct TableUnsetArgs {
    /// Column.
    #[arg(value_name = "COLUMN", index = 3)]
    pub column: String,
    /// The row and the reason.
    #[command(flatten)]
    pub change: TableRowArgs,
}

/// The row of a change, and its reason.
#[derive(Debug, Args)]
pub struct TableRowArgs {
    /// Table.
    #[arg(value_name = "TABLE", index = 1)]
    pub table: String,
    /// Id of the row.
    #[arg(value_name = "ID", index = 2)]
    pub id: String,
    /// Reason of the change, for the audit log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The replica.
    #[command(flatten)]
    pub server: TableServer,
}
