//! An open connection with its statements.
//!
//! Guarantees:
//! - A server with another schema version is refused, with the command that mends it.

use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;

use super::connect::{ConnectError, ConnectionTask, connect, refused, within_timeout};
use super::options::PostgresOptions;
use super::schema;
use super::statement::Statements;

/// The settings of a session.
///
/// - A paused replica must not keep its locks, and a waiting one must not keep its server process.
///   `lock_timeout` exceeds the idle timeout, so a waiter outlasts a paused lock holder.
/// - Index scans are forced: a plan that was made for an empty table stays after it grows.
const SESSION_SETTINGS: &str = "SET lock_timeout = '3s'; \
    SET idle_in_transaction_session_timeout = '2s'; SET enable_seqscan = off";

/// An open connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) statements: Statements,
    pub(super) connection: ConnectionTask,
    /// True if a pooler may use another server connection for each transaction.
    pub(super) is_pooled: bool,
}

impl Session {
    /// Opens a connection, verifies the schema, and prepares the statements.
    pub(super) async fn open(options: &PostgresOptions) -> Result<Self, ConnectError> {
        let (client, connection) = connect(options, TargetSessionAttrs::ReadWrite).await?;
        let prepared = async {
            schema::verify(&client).await?;
            if options.prepare {
                let set = client.batch_execute(SESSION_SETTINGS).await;
                set.map_err(|error| refused(&error))?;
            }
            Statements::new(&client, options.prepare).await.map_err(|error| refused(&error))
        };
        let statements = within_timeout(prepared).await?;
        Ok(Self { client, statements, connection, is_pooled: !options.prepare })
    }
}
