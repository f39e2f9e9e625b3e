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
use super::options::{RedisOptions, RedisTopology};
use super::sentinel::SentinelGroup;
use super::slot_map;
use crate::store::backoff::Backoff;

/// A connected Redis process.
#[derive(Debug)]
pub struct InspectedNode {
    /// The address, or the path of the socket.
    pub address: String,
    opened: OpenedClient,
}

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
            let opened = OpenedClient::new(&address, options.login()).await;
            let opened = opened.map_err(|error| connect_error(&address, &error, &options))?;
            Ok::<_, InspectError>((number, InspectedNode { address: address.to_string(), opened }))
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
