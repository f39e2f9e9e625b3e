//! Reads the rows of a query as JSON, for tables that limits read.
//!
//! Guarantees:
//! - A read ends within [`READ_TIMEOUT`], and holds at most one chunk of rows in memory.
//! - Prepares no statement, so it works behind a connection pooler.
//! - A failed read drops its connection; the next one connects again.
//!
//! Not covered:
//! - The meaning of a row (see `tables`).

use std::time::{Duration, SystemTime};

use fred::bytes::Bytes;
use futures_util::TryStreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{ConnectError, ConnectionTask, connect, connect_with, refused};
use super::options::PostgresOptions;

/// The longest duration of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest wait for a reply, such as the first row or the next one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The size at which rows are passed on, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// The pause before a lost connection for notifications is opened again.
const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// Reads rows over one connection.
#[derive(Debug)]
pub struct RowReader {
    options: PostgresOptions,
    connection: Option<(Client, ConnectionTask)>,
}

impl RowReader {
    /// Creates a reader that connects at the first read.
    #[must_use]
    pub const fn new(options: PostgresOptions) -> Self {
        Self { options, connection: None }
    }

    /// Sends the rows of `query` to `rows`, as JSON lines in chunks. `since` is its parameter `$1`.
    /// Returns the server's time at the start of the read.
    ///
    /// # Errors
    /// The server is unreachable, refuses the query, or does not reply in time.
    pub async fn read(
        &mut self,
        query: &str,
        since: Option<SystemTime>,
        rows: mpsc::Sender<Bytes>,
    ) -> Result<SystemTime, ConnectError> {
        let read = timeout(READ_TIMEOUT, self.read_connected(query, since, rows)).await;
        let late = || ConnectError::Refused(format!("no reply within {READ_TIMEOUT:?}"));
        let read = read.unwrap_or_else(|_| Err(late()));
        if read.is_err() {
            self.connection = None;
        }
        read
    }

    async fn read_connected(
        &mut self,
        query: &str,
        since: Option<SystemTime>,
        rows: mpsc::Sender<Bytes>,
    ) -> Result<SystemTime, ConnectError> {
        if self.connection.is_none() {
            self.connection = Some(connect(&self.options, TargetSessionAttrs::Any).await?);
        }
        let closed = || ConnectError::Refused("no connection".to_owned());
        let (client, _) = self.connection.as_ref().ok_or_else(closed)?;
        let query = format!("SELECT to_jsonb(t)::text FROM (\n{query}\n) t");
        // A function in the query must not change anything.
        in_time(client.batch_execute("BEGIN READ ONLY")).await?;
        let started = in_time(client.query_typed("SELECT now()", &[])).await;
        let started = started?;
        let started = started.first().map(|row| row.try_get(0));
        let started = started.transpose().map_err(|error| refused(&error))?;
        let parameters =
            since.iter().map(|since| (since as &(dyn ToSql + Sync), Type::TIMESTAMPTZ));
        let found = in_time(client.query_typed_raw(&query, parameters)).await;
        let mut found = std::pin::pin!(found?);
        let mut chunk = String::new();
        while let Some(row) = in_time(found.try_next()).await? {
            chunk.push_str(row.try_get(0).map_err(|error| refused(&error))?);
            chunk.push('\n');
            if CHUNK_BYTES <= chunk.len()
                && rows.send(std::mem::take(&mut chunk).into()).await.is_err()
            {
                return Err(ConnectError::Refused("the rows were refused".to_owned()));
            }
        }
        in_time(client.batch_execute("COMMIT")).await?;
        if !chunk.is_empty() {
            // The receiver reports why it does not want the rows.
            rows.send(chunk.into()).await.ok();
        }
        started.ok_or_else(|| ConnectError::Refused("no reply".to_owned()))
    }
}

/// Waits for a reply for at most [`REPLY_TIMEOUT`].
async fn in_time<T>(
    reply: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, ConnectError> {
    let late = |_| ConnectError::Refused(format!("no reply within {REPLY_TIMEOUT:?}"));
    timeout(REPLY_TIMEOUT, reply).await.map_err(late)?.map_err(|error| refused(&error))
}

/// Listens for notifications, over a connection of its own, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    notified: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Starts to listen on `channel`. A pooler may lose notifications, so the caller also polls.
    #[must_use]
    pub fn start(options: PostgresOptions, channel: &str) -> Self {
        let listen = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
        let (sender, notified) = watch::channel(0);
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = listen_once(&options, &listen, &sender).await {
                    tracing::debug!(%error, "the connection for notifications ended");
                }
                tokio::time::sleep(LISTEN_RETRY).await;
            }
        });
        Self { notified, task }
    }

    /// Waits for a notification since the last call.
    pub async fn notified(&mut self) {
        if self.notified.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn listen_once(
    options: &PostgresOptions,
    listen: &str,
    notified: &watch::Sender<u64>,
) -> Result<(), ConnectError> {
    let (sender, mut messages) = mpsc::channel(16);
    let connection = connect_with(options, TargetSessionAttrs::Any, Some(sender)).await?;
    let listening = connection.0.batch_execute(listen).await;
    listening.map_err(|error| refused(&error))?;
    // A change before the `LISTEN` caused no notification.
    notified.send_modify(|number| *number = number.wrapping_add(1));
    while messages.recv().await.is_some() {
        notified.send_modify(|number| *number = number.wrapping_add(1));
    }
    Ok(())
}
