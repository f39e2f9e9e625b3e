//! Plain commands to a Redis, for those who want to know what it is like.
//!
//! Guarantees: connects once, by the same rules as those who charge; every command has a deadline of
//! a second; nothing is retried.
//! Leaves out: charging, and what the answers mean.

use std::sync::Arc;

use fred::error::Error;
use fred::types::Value;
use tokio::task::JoinSet;

use super::client::{At, Opened, in_words, run};
use super::options::{Options, Place};
use super::pauses::Pauses;
use super::sentinel::Watchers;
use super::slots;

/// One process that is connected.
#[derive(Debug)]
pub struct Node {
    /// Its address, or its socket's path.
    pub at: String,
    opened: Opened,
}

/// What it says.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// Text; what is not UTF-8 is replaced.
    Text(String),
    /// Several.
    List(Vec<Said>),
}

/// Why it cannot be asked, or what it refused; without passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(in_words(&error))
    }
}

/// Connects to every process that holds counters: one, or the primaries of a Cluster.
///
/// # Errors
/// Why one of them cannot be reached, within a few seconds.
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

/// In the order of `places`.
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
    /// Runs one command: `["INFO", "memory"]`.
    ///
    /// # Errors
    /// What Redis refused it with, or that it was silent for a second.
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
