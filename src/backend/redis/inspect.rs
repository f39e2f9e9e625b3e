//! Plain commands to Redis, for diagnosis.
//!
//! Guarantees:
//! - Connects once, with the same rules as the store.
//! - Every command has a timeout of one second.
//! - Nothing is retried.
//!
//! Not covered:
//! - Charging, and the meaning of replies.

use std::sync::Arc;

use fred::error::Error;
use fred::types::Value;
use tokio::task::JoinSet;

use super::client::{At, Opened, in_words, run};
use super::options::{Options, Place};
use super::pauses::Pauses;
use super::sentinel::Watchers;
use super::slots;

/// A connected Redis process.
#[derive(Debug)]
pub struct Node {
    /// The address, or the path of the socket.
    pub at: String,
    opened: Opened,
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// A null reply.
    Nil,
    /// An integer.
    Int(i64),
    /// A string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An array.
    List(Vec<Said>),
}

/// The error of a connection or command, without passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(in_words(&error))
    }
}

/// Connects to all processes that store counters: one, or the primaries of a Cluster.
///
/// # Errors
/// The first process that cannot be reached, within a few seconds.
pub async fn open(options: &Options) -> Result<Vec<Node>, Refused> {
    let options = Arc::new(options.clone());
    let places = match &options.place {
        Place::Tcp(address) => vec![At::Tcp(address.clone())],
        Place::Unix(path) => vec![At::Unix(path.clone())],
        Place::Sentinel(sentinels) => {
            let watchers = Watchers::new(Arc::clone(&options), sentinels.clone());
            vec![At::Tcp(watchers.primary().await?)]
        }
        Place::Cluster(seeds) => {
            let mut pauses = Pauses::new(options.jitter);
            let slots = slots::look(Vec::new(), seeds, &options, &mut pauses).await?;
            let mut owners: Vec<_> = slots.owners().cloned().collect();
            owners.sort();
            owners.dedup();
            owners.into_iter().map(At::Tcp).collect()
        }
    };
    connect(places, options).await
}

/// Connects to all, and keeps their order.
async fn connect(places: Vec<At>, options: Arc<Options>) -> Result<Vec<Node>, Refused> {
    let mut opening = JoinSet::new();
    for (number, at) in places.into_iter().enumerate() {
        let options = Arc::clone(&options);
        opening.spawn(async move {
            let opened = Opened::new(&at, options.login()).await;
            let opened = opened.map_err(|error| Refused(format!("{at}: {}", in_words(&error))))?;
            Ok::<_, Refused>((number, Node { at: at.to_string(), opened }))
        });
    }
    let mut nodes = Vec::new();
    while let Some(node) = opening.join_next().await {
        nodes.push(node.map_err(|_| Refused("stopping".to_owned()))??);
    }
    nodes.sort_by_key(|(number, _)| *number);
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}

impl Node {
    /// Runs one command, such as `["INFO", "memory"]`.
    ///
    /// # Errors
    /// Redis refused the command, or did not reply within a second.
    pub async fn ask(&self, command: &[&str]) -> Result<Said, Refused> {
        Ok(said(run(self.opened.client(), command).await?))
    }
}

fn said(value: Value) -> Said {
    match value {
        Value::Null => Said::Nil,
        Value::Integer(number) => Said::Int(number),
        Value::Array(values) => Said::List(values.into_iter().map(said).collect()),
        Value::Bytes(bytes) => Said::Text(String::from_utf8_lossy(&bytes).into_owned()),
        other => Said::Text(other.as_string().unwrap_or_default()),
    }
}
