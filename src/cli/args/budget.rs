//! Arguments of `sluicegate budget`.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::admin_client::LOCAL_ADMIN_PORT;

/// The commands for budgets.
#[derive(Debug, Subcommand)]
pub enum BudgetCommand {
    /// List the budgets that requests of a replica met since its start, at most 1,000.
    List(BudgetListArgs),
    /// Show the budgets of a descriptor: amount, settled, held, and when they are spent.
    Show(BudgetShowArgs),
    /// Print what the requests of the last periods cost.
    Export(BudgetExportArgs),
    /// Add to a prepaid budget.
    TopUp(BudgetTopUpArgs),
}

/// The domain of the budgets, and the replica that a command calls.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port, or \
SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one. `top-up` needs the role operate."
)]
pub struct BudgetPlace {
    /// Domain. Default: the only one with budgets; a list has those of all domains.
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Admin port of a replica.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
}

/// The budgets of a command, and their place.
#[derive(Debug, Args)]
pub struct BudgetTarget {
    /// Entries of a descriptor: `org=acme` or `org=acme,model=large`. Repeatable.
    #[arg(value_name = "ENTRIES", required = true)]
    pub descriptors: Vec<String>,
    /// The place of the budgets.
    #[command(flatten)]
    pub place: BudgetPlace,
}

/// Arguments of `sluicegate budget list`.
#[derive(Debug, Args)]
pub struct BudgetListArgs {
    /// The place of the budgets.
    #[command(flatten)]
    pub place: BudgetPlace,
}

/// Arguments of `sluicegate budget show`.
#[derive(Debug, Args)]
pub struct BudgetShowArgs {
    /// The budgets.
    #[command(flatten)]
    pub target: BudgetTarget,
}

/// Arguments of `sluicegate budget export`.
#[derive(Debug, Args)]
pub struct BudgetExportArgs {
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = ExportFormat::Csv)]
    pub format: ExportFormat,
    /// Entries of a descriptor: `org=acme` or `org=acme,model=large`. Repeatable. Default: the
    /// budgets of `list`.
    #[arg(value_name = "ENTRIES")]
    pub descriptors: Vec<String>,
    /// The place of the budgets.
    #[command(flatten)]
    pub place: BudgetPlace,
}

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One line for each budget and period.
    Csv,
    /// The reply of the admin port.
    Json,
}

/// Arguments of `sluicegate budget top-up`.
#[derive(Debug, Args)]
pub struct BudgetTopUpArgs {
    /// Amount, such as `20 usd` or `1M tokens`.
    #[arg(long, value_name = "AMOUNT")]
    pub amount: String,
    /// Id of the top-up, 16 to 128 of 0-9A-Za-z._-. A repeated id adds nothing.
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// Reason of the change, for the audit log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// The budget.
    #[command(flatten)]
    pub target: BudgetTarget,
}
