//! Arguments of `sluicegate ban`.

use clap::{Args, Subcommand};

use crate::cli::admin_client::LOCAL_ADMIN_PORT;

/// The commands for the keys that a `penalty` bans.
#[derive(Debug, Subcommand)]
pub enum BanCommand {
    /// List the banned keys, those that are banned longest first.
    List(BanListArgs),
    /// Lift the ban of a key, at all replicas.
    Lift(BanLiftArgs),
}

/// Arguments of `sluicegate ban list`.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port, or \
SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one."
)]
pub struct BanListArgs {
    /// Only the bans of this domain.
    #[arg(long)]
    pub domain: Option<String>,
    /// Largest number of bans, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rows: u16,
    /// Admin port of a replica.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
}

/// Arguments of `sluicegate ban lift`.
#[derive(Debug, Args)]
#[command(
    after_help = "The variable SLUICEGATE_ADMIN_TOKEN contains a token of the admin port with the \
role operate, or SLUICEGATE_ADMIN_TOKEN_FILE the path of a file with one."
)]
pub struct BanLiftArgs {
    /// Descriptor of the key, as `key=value,key=value`.
    #[arg(value_name = "K=V,…")]
    pub descriptor: String,
    /// Domain of the key.
    #[arg(long)]
    pub domain: String,
    /// Reason of the change, for the audit log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Admin port of a replica.
    #[arg(long, default_value = LOCAL_ADMIN_PORT, value_name = "URL")]
    pub server: String,
}
