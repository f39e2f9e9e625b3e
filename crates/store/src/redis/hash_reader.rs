//! Reads a hash as rows in JSON, for tables that limits read.
//!
//! The name of a field is the id of a row. Its value is a JSON object with the other columns, or else
//! the name of a plan.
//!
//! Guarantees:
//! - A read blocks Redis for about [`BATCH`] fields at a time, and ends within [`READ_TIMEOUT`].
//! - A hash that does not exist is an error, so a Redis that lost its data removes no row.
//! - A hash that loses fields during the read is an error: a writer may build it anew.
//! - A field that is too long for a row is a bad row, which blocks no other.
//! - A failed read drops its connections; the next one connects again.
//!
//! Not covered:
//! - One instant for all rows: a row that changes during the read may have its old or new value.
//! - The meaning of a row (see `tables`).

use std::time::Duration;

use fred::bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::inspect::{InspectError, InspectedNode, RedisValue, connect_all};
use super::options::RedisOptions;

/// The longest duration of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The number of fields that Redis visits for one command.
const BATCH: &str = "1000";

/// The longest value of a row in bytes, and the longest id in characters, which is too long for a row.
const MAX_VALUE: usize = 16 * 1024;
const MAX_ID: usize = 257;

/// The start of the error of a Cluster node that does not own the key.
const MOVED: &str = "MOVED";

/// Reads rows over one connection, or over one to each node of a Cluster.
#[derive(Debug)]
pub struct HashReader {
    options: RedisOptions,
    hash: String,
    version_key: Option<String>,
    nodes: Vec<InspectedNode>,
    /// The version at the start of the last good read.
    version: Option<String>,
}

impl HashReader {
    /// Creates a reader that connects at the first read. `version_key` is the key of a text that
    /// changes with the rows. While it is missing, every read sends all rows.
    #[must_use]
    pub const fn new(options: RedisOptions, hash: String, version_key: Option<String>) -> Self {
        Self { options, hash, version_key, nodes: Vec::new(), version: None }
    }

    /// Returns `true` if the last read had a version.
    #[must_use]
    pub const fn has_version(&self) -> bool {
        self.version.is_some()
    }

    /// Sends the rows to `rows`, as JSON lines in chunks. Returns `false` if the version is the same
    /// as in the last read, so no row was sent.
    ///
    /// # Errors
    /// Redis is unreachable, refuses a command, does not reply in time, or has no such hash.
    pub async fn read(&mut self, rows: mpsc::Sender<Bytes>) -> Result<bool, InspectError> {
        let read = timeout(READ_TIMEOUT, self.read_connected(rows)).await;
        let late = || InspectError(format!("the read took longer than {READ_TIMEOUT:?}"));
        let read = read.unwrap_or_else(|_| Err(late()));
        if read.is_err() {
            (self.nodes, self.version) = (Vec::new(), None);
        }
        read
    }

    async fn read_connected(&mut self, rows: mpsc::Sender<Bytes>) -> Result<bool, InspectError> {
        if self.nodes.is_empty() {
            self.nodes = connect_all(&self.options).await.map_err(without_help)?;
        }
        let version = match &self.version_key {
            Some(key) => self.version_at(key).await?,
            None => None,
        };
        if version.is_some() && version == self.version {
            return Ok(false);
        }
        let fields_before = self.count_fields().await?;
        if fields_before == 0 {
            let problem = "does not exist; check `rows`, and the database in `source`";
            return Err(InspectError(format!("the hash `{}` {problem}", self.hash)));
        }
        let (mut cursor, mut fields_read) = ("0".to_owned(), 0);
        loop {
            let (next, fields) = self.fields_from(&cursor).await?;
            fields_read += fields.len() / 2;
            if !fields.is_empty() && rows.send(lines(&fields).into()).await.is_err() {
                return Err(InspectError("the rows were refused".to_owned()));
            }
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        // Redis returns each field that was there all the time.
        if fields_read < fields_before || self.count_fields().await? < fields_before {
            let problem =
                "lost fields while it was read; build it under another key, and RENAME it";
            return Err(InspectError(format!("the hash `{}` {problem}", self.hash)));
        }
        self.version = version;
        Ok(true)
    }

    async fn version_at(&self, key: &str) -> Result<Option<String>, InspectError> {
        match self.run(&["GET", key]).await? {
            RedisValue::Text(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    async fn count_fields(&self) -> Result<usize, InspectError> {
        let count = match self.run(&["HLEN", &self.hash]).await? {
            RedisValue::Int(count) => usize::try_from(count).ok(),
            _ => None,
        };
        count.ok_or_else(|| InspectError("the reply to HLEN is not a number".to_owned()))
    }

    /// Returns the next cursor, and fields, each followed by its value.
    async fn fields_from(&self, cursor: &str) -> Result<(String, Vec<RedisValue>), InspectError> {
        let reply = self.run(&["HSCAN", &self.hash, cursor, "COUNT", BATCH]).await?;
        let RedisValue::List(parts) = reply else { return Err(invalid_reply()) };
        match <[RedisValue; 2]>::try_from(parts) {
            Ok([RedisValue::Text(next), RedisValue::List(fields)]) => Ok((next, fields)),
            _ => Err(invalid_reply()),
        }
    }

    /// Runs a command at the node that owns its key.
    async fn run(&self, command: &[&str]) -> Result<RedisValue, InspectError> {
        let mut last = Err(InspectError("no node of Redis is known".to_owned()));
        for node in &self.nodes {
            last = node.run_command(command).await;
            match &last {
                Err(error) if error.0.starts_with(MOVED) => {}
                _ => break,
            }
        }
        last
    }
}

fn invalid_reply() -> InspectError {
    InspectError("the reply to HSCAN is not a cursor and a list".to_owned())
}

/// Returns the error without its fix, which names settings of the store.
fn without_help(InspectError(text): InspectError) -> InspectError {
    InspectError(text.split("; ").next().unwrap_or_default().to_owned())
}

/// Returns fields as JSON lines. The list has each field's name, then its value.
fn lines(fields: &[RedisValue]) -> String {
    let mut lines = String::new();
    for pair in fields.chunks_exact(2) {
        if let [RedisValue::Text(id), RedisValue::Text(value)] = pair {
            lines.push_str(&line(id, value));
            lines.push('\n');
        }
    }
    lines
}

/// Returns a row as JSON. A value that is no object is the name of a plan. So a damaged, empty or too
/// long value shows up as an unknown plan.
fn line(id: &str, value: &str) -> String {
    let id: String = id.chars().take(MAX_ID).collect();
    let value = match value.len() {
        0 => "(empty)",
        1..=MAX_VALUE => value,
        _ => "(too long)",
    };
    let object = serde_json::from_str::<Map<String, Value>>(value);
    let mut row = object.unwrap_or_else(|_| Map::from_iter([("plan".to_owned(), value.into())]));
    row.insert("id".to_owned(), id.into());
    Value::Object(row).to_string()
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_value_is_an_object_or_the_name_of_a_plan() {
        assert_eq!(line("acme", "gold"), r#"{"id":"acme","plan":"gold"}"#);
        assert_eq!(line("acme", "{\"api\":\n9}"), r#"{"api":9,"id":"acme"}"#);
        assert_eq!(line("acme", r#"{"id":"other"}"#), r#"{"id":"acme"}"#, "the field is the id");
        assert_eq!(line("a\"b", "{\"api\":"), r#"{"id":"a\"b","plan":"{\"api\":"}"#);
        assert_eq!(line("acme", ""), r#"{"id":"acme","plan":"(empty)"}"#);
        assert_eq!(line("acme", &"x".repeat(20_000)), r#"{"id":"acme","plan":"(too long)"}"#);
        assert!(line(&"\u{1}".repeat(100_000), "gold").len() < 2_000);
    }
}
