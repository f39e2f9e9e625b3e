//! An open connection with its statements.
//!
//! Guarantees:
//! - A server with another schema version is refused, with the command that mends it.

use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;

use super::cached::KnownRows;
use super::connect::{ConnectError, ConnectionTask, connect, refused, within_timeout};
use super::options::PostgresOptions;
use super::schema;
use super::statement::Statements;

/// An open connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) statements: Statements,
    pub(super) known: KnownRows,
    pub(super) connection: ConnectionTask,
}

impl Session {
    /// Opens a connection, verifies the schema, and prepares the statements if `prepare` is true.
    pub(super) async fn open(
        options: &PostgresOptions,
        prepare: bool,
    ) -> Result<Self, ConnectError> {
        let (client, connection) = connect(options, TargetSessionAttrs::ReadWrite).await?;
        let prepared = async {
            schema::verify(&client).await?;
            Statements::new(&client, prepare).await.map_err(|error| refused(&error))
        };
        let statements = within_timeout(prepared).await?;
        Ok(Self { client, statements, known: KnownRows::default(), connection })
    }
}
