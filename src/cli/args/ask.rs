//! The arguments of `sluicegate ask`.

use clap::{ArgGroup, Args};

use super::TlsArgs;

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
    /// Charge nothing: print whether the limits would allow one hit now, or when, and the amounts of
    /// the budgets.
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
    /// TLS of the connection to `--address`.
    #[command(flatten)]
    pub tls: TlsArgs,
}
