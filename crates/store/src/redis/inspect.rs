//! Runs single Redis commands for diagnosis, over connections of their own.
//!
//! Guarantees:
//! - Connects once, with the same address, TLS and authentication options as the store.
//! - Every command has a timeout of one second.
//! - No connection and no command is retried.
//!
//! Not covered: the meaning of the replies.

use std::sync::Arc;

use fred::error::Error;
use fred::types::Value;
use tokio::task::JoinSet;

use super::client::{OpenedClient, ServerAddress, describe_error, run_command};
use super::connect_help::connect_help;
use super::open::{KEY_PROXY, SCRIPT_PROXY, is_proxy_error, is_unknown_command, proxy_kind};
use super::options::{ProxyMode, RedisOptions, RedisTopology};
use super::sentinel::SentinelGroup;
use super::slot_map;
use crate::backoff::Backoff;

/// A connected Redis process.
#[derive(Debug)]
pub struct InspectedNode {
    /// The address, or the path of the socket.
    pub address: String,
    server: ServerAddress,
    opened: OpenedClient,
}

impl InspectedNode {
    /// Opens another connection to this server, which is a proxy.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn behind_proxy(&self, options: &RedisOptions) -> Result<Self, InspectError> {
        let opened = OpenedClient::behind_proxy(&self.server, options.login()).await?;
        Ok(Self { address: self.address.clone(), server: self.server.clone(), opened })
    }

    /// Returns the kind of proxy, or `None` for a Redis.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn proxy(
        &self,
        options: &RedisOptions,
    ) -> Result<Option<&'static str>, InspectError> {
        let is_fixed = matches!(options.topology, RedisTopology::Tcp(_) | RedisTopology::Unix(_));
        match options.proxy {
            ProxyMode::Auto | ProxyMode::On if is_fixed => {}
            _ => return Ok(None),
        }
        if options.proxy == ProxyMode::On {
            return Ok(Some(KEY_PROXY));
        }
        // A proxy closes the connection after an unknown command, so the probes have their own.
        let mut probe = match OpenedClient::new(&self.server, options.login()).await {
            Err(error) if is_proxy_error(&error) => return Ok(Some(proxy_kind(&error))),
            probe => probe?,
        };
        let client = probe.client().clone();
        let commands = async {
            for command in PROBES {
                match run_command(&client, command).await {
                    Err(error) if is_sign_of_proxy(&error) => return Some(proxy_kind(&error)),
                    _ => {}
                }
            }
            None
        };
        Ok(tokio::select! {
            biased;
            kind = commands => kind,
            () = probe.wait_closed() => Some(SCRIPT_PROXY),
        })
    }
}

/// Commands that a proxy refuses, and a Redis executes without an effect.
const PROBES: [&[&str]; 3] =
    [&["INFO", "server"], &["SCRIPT", "EXISTS", NO_DIGEST], &["EVAL", "return 1", "0"]];

/// A Redis without `EVAL` is no proxy.
fn is_sign_of_proxy(error: &Error) -> bool {
    let is_eval_missing =
        is_unknown_command(error) && describe_error(error).to_ascii_lowercase().contains("eval");
    is_proxy_error(error) && !is_eval_missing
}

/// A digest that no script has.
pub const NO_DIGEST: &str = "0000000000000000000000000000000000000000";

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum RedisValue {
    /// A null reply.
    Nil,
    /// An integer.
    Int(i64),
    /// A string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An array.
    List(Vec<RedisValue>),
}

/// The error text of a connection or a command. It contains no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InspectError(pub String);

impl From<Error> for InspectError {
    fn from(error: Error) -> Self {
        Self(describe_error(&error))
    }
}

/// Connects to all processes that store counters: one, or the primaries of a Cluster.
///
/// # Errors
/// Fails with the error of the first process that cannot be reached.
pub async fn connect_all(options: &RedisOptions) -> Result<Vec<InspectedNode>, InspectError> {
    let options = Arc::new(options.clone());
    let addresses = match &options.topology {
        RedisTopology::Tcp(address) => vec![ServerAddress::Tcp(address.clone())],
        RedisTopology::Unix(path) => vec![ServerAddress::Unix(path.clone())],
        RedisTopology::Sentinel(sentinels) => {
            let sentinels = SentinelGroup::new(Arc::clone(&options), sentinels.clone());
            vec![ServerAddress::Tcp(sentinels.primary().await?)]
        }
        RedisTopology::Cluster(seeds) => {
            let mut pauses = Backoff::new(options.jitter_seed);
            let slots = slot_map::query_slot_map(Vec::new(), seeds, &options, &mut pauses).await?;
            let mut owners: Vec<_> = slots.owners().cloned().collect();
            owners.sort();
            owners.dedup();
            owners.into_iter().map(ServerAddress::Tcp).collect()
        }
    };
    connect(addresses, options).await
}

async fn connect(
    addresses: Vec<ServerAddress>,
    options: Arc<RedisOptions>,
) -> Result<Vec<InspectedNode>, InspectError> {
    let mut opening = JoinSet::new();
    for (number, address) in addresses.into_iter().enumerate() {
        let options = Arc::clone(&options);
        opening.spawn(async move {
            let opened = match OpenedClient::new(&address, options.login()).await {
                // A proxy may close the connection before the client library is ready.
                Err(error) if options.proxy != ProxyMode::Off && is_proxy_error(&error) => {
                    let relayed = OpenedClient::behind_proxy(&address, options.login()).await;
                    relayed.map_err(|_| error)
                }
                opened => opened,
            };
            let opened = opened.map_err(|error| connect_error(&address, &error, &options))?;
            let (text, server) = (address.to_string(), address);
            Ok::<_, InspectError>((number, InspectedNode { address: text, server, opened }))
        });
    }
    let mut nodes = Vec::new();
    while let Some(node) = opening.join_next().await {
        nodes.push(node.map_err(|_| InspectError("stopping".to_owned()))??);
    }
    nodes.sort_by_key(|(number, _)| *number);
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}

fn connect_error(address: &ServerAddress, error: &Error, options: &RedisOptions) -> InspectError {
    let help = connect_help(error, options).map(|help| format!("; {help}"));
    let text = describe_error(error);
    InspectError(format!("{address}: {text}{}", help.unwrap_or_default()))
}

impl InspectedNode {
    /// Runs one command, such as `["INFO", "memory"]`.
    ///
    /// # Errors
    /// Fails if Redis refuses the command or does not reply within a second.
    pub async fn run_command(&self, command: &[&str]) -> Result<RedisValue, InspectError> {
        Ok(to_redis_value(run_command(self.opened.client(), command).await?))
    }
}

fn to_redis_value(value: Value) -> RedisValue {
    match value {
        Value::Null => RedisValue::Nil,
        Value::Integer(number) => RedisValue::Int(number),
        Value::Array(values) => RedisValue::List(values.into_iter().map(to_redis_value).collect()),
        Value::Bytes(bytes) => RedisValue::Text(String::from_utf8_lossy(&bytes).into_owned()),
        other => RedisValue::Text(other.as_string().unwrap_or_default()),
    }
}
