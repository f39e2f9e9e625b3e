//! Plain commands to a Redis, for those who want to know what it is like.
//!
//! Guarantees: connects once, by the same rules as those who charge; every command has a deadline of
//! a second; nothing is retried.
//! Leaves out: charging, and what the answers mean.

use std::fmt;

use fred::clients::Client;
use fred::interfaces::ClientLike as _;
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, Value};
use tokio::time::timeout;

use super::connection::{self, PATIENCE};
use super::{Options, Place};

/// One process that is connected.
#[derive(Debug)]
pub struct Node {
    /// Its address, or its socket's path.
    pub at: String,
    client: Client,
    driver: ConnectHandle,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.driver.abort();
    }
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

/// Connects to every process that holds counters.
///
/// # Errors
/// Why one of them cannot be reached, within a few seconds.
pub async fn open(options: &Options) -> Result<Vec<Node>, Refused> {
    let at = options.place.to_string();
    match connection::dial(options).await {
        Ok((client, driver)) => Ok(vec![Node { at, client, driver }]),
        Err(error) => Err(Refused(format!("{at}: {error}"))),
    }
}

impl Node {
    /// Runs one command: `["INFO", "memory"]`.
    ///
    /// # Errors
    /// What Redis refused it with, or that it was silent for a second.
    pub async fn ask(&self, command: &[&str]) -> Result<Said, Refused> {
        let (name, args) = command.split_first().unwrap_or((&"PING", &[]));
        let command = CustomCommand::new(*name, ClusterHash::FirstKey, false);
        let args: Vec<Value> = args.iter().map(|&arg| Value::from(arg)).collect();
        match timeout(PATIENCE, self.client.custom::<Value, _>(command, args)).await {
            Ok(answer) => Ok(said(answer.map_err(|error| Refused(error.to_string()))?)),
            Err(_elapsed) => Err(Refused("no answer within a second".to_owned())),
        }
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
