//! Finds out whether a pooler such as `PgBouncer` gives each transaction another server connection.
//!
//! Guarantees:
//! - Changes nothing in the server, and waits for no lock.
//!
//! Not covered:
//! - A pool so large and busy that no server connection repeats: the first lost statement shows it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;

use super::connect::{ConnectError, connect, refused, within_timeout};
use super::options::PostgresOptions;

/// The clients of the probes, in an order that shows a pool with any order of its servers. Each
/// probe is one transaction.
const PROBES: [usize; 8] = [0, 1, 1, 0, 0, 1, 1, 0];

/// The time for which a probe uses a server connection.
const HELD_TIME: Duration = Duration::from_millis(500);

/// Returns `true` if two clients share a server process, or one client uses two.
///
/// # Errors
/// The server is unreachable or refuses the login.
pub(super) async fn is_pooled(options: &PostgresOptions) -> Result<bool, ConnectError> {
    let (one, _one_open) = connect(options, TargetSessionAttrs::Any).await?;
    let (other, _other_open) = connect(options, TargetSessionAttrs::Any).await?;
    within_timeout(async {
        let clients = [&one, &other];
        let mut processes = [None; 2];
        for index in PROBES {
            let process = server_process(clients[index]).await?;
            let is_other = processes[index].replace(process).is_some_and(|last| last != process);
            if is_other || processes[1 - index] == Some(process) {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await
}

/// Returns `true` if a prepared statement fails while another client uses its server connection.
///
/// # Errors
/// The server is unreachable or refuses the login.
pub(super) async fn loses_statements(options: &PostgresOptions) -> Result<bool, ConnectError> {
    let (one, _one_open) = connect(options, TargetSessionAttrs::Any).await?;
    let (other, _other_open) = connect(options, TargetSessionAttrs::Any).await?;
    within_timeout(async {
        let Ok(statement) = one.prepare("SELECT 1").await else { return Ok(true) };
        other.batch_execute("BEGIN").await.map_err(|error| refused(&error))?;
        // In a pool of one connection, the statement waits for the end of the transaction.
        let run = timeout(HELD_TIME, one.query(&statement, &[])).await;
        other.batch_execute("ROLLBACK").await.map_err(|error| refused(&error))?;
        Ok(matches!(run, Ok(Err(_))))
    })
    .await
}

async fn server_process(client: &Client) -> Result<i32, ConnectError> {
    let rows = client.query_typed("SELECT pg_backend_pid()", &[]).await;
    let rows = rows.map_err(|error| refused(&error))?;
    let row = rows.first().ok_or_else(|| ConnectError::Refused("no reply".to_owned()))?;
    row.try_get(0).map_err(|error| refused(&error))
}
