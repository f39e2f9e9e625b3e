//! The SQL statements of the store.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// The text of a statement and the types of its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatementText {
    pub(super) sql: &'static str,
    pub(super) types: &'static [Type],
}

/// Locks keys until the end of the transaction, in the order of the parameters: each exclusively, or
/// shared with other readers.
///
/// Locks of rows would not do: two transactions may create the same row.
pub(super) const LOCK: StatementText = StatementText {
    sql: "SELECT CASE WHEN is_shared THEN pg_advisory_xact_lock_shared(number) \
          ELSE pg_advisory_xact_lock(number) END \
          FROM unnest($1::bigint[], $2::boolean[]) AS lock (number, is_shared)",
    types: &[Type::INT8_ARRAY, Type::BOOL_ARRAY],
};

/// Reads the server's clock, the start of the server process, and rows.
///
/// The clock is read after `LOCK` has all locks, since statements run one after the other. A row with
/// a negative `empty_at` counts as no row ([`PROPOSE`]).
pub(super) const LOAD: StatementText = StatementText {
    sql: "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
          (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
          array_agg(key), array_agg(value) FROM sluicegate_state WHERE key = ANY ($1) \
          AND 0 <= empty_at",
    types: &[Type::BYTEA_ARRAY],
};

/// Creates or replaces rows.
pub(super) const SAVE: StatementText = StatementText {
    sql: "INSERT INTO sluicegate_state (key, value, empty_at) \
          SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) \
          ON CONFLICT (key) DO UPDATE SET value = excluded.value, empty_at = excluded.empty_at",
    types: &[Type::BYTEA_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY],
};

/// Saves values `$4` of rows that still have the values `$3`, and are not locked. Returns the keys of
/// the saved and of the missing rows, whether each was saved, and the clock.
///
/// If the known state was not empty, a missing row is inserted with a negative `empty_at`. Readers
/// ignore this row, and the caller repeats the check. A join would need a plan that depends on the size
/// of the table.
pub(super) const PROPOSE: StatementText = StatementText {
    sql: "INSERT INTO sluicegate_state AS row (key, value, empty_at) \
          SELECT key, value, empty_at FROM (SELECT unnest($1::bytea[]) AS key, \
          unnest($2::bigint[]) AS number, unnest($4::bytea[]) AS value, \
          unnest($5::bigint[]) AS empty_at) AS wanted WHERE pg_try_advisory_xact_lock(number) \
          ON CONFLICT (key) DO UPDATE SET value = excluded.value, empty_at = abs(excluded.empty_at) \
          WHERE row.value = ($3::bytea[])[array_position($1::bytea[], row.key)] \
          AND 0 <= row.empty_at \
          RETURNING key, 0 <= empty_at, clock_timestamp()",
    types: &[
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
    ],
};

/// Deletes the rows after a key that were empty ten seconds ago, among the next 1,000. Returns the
/// last key and the number of deleted rows.
///
/// Skips rows that a check changes at this moment, so that neither waits for the other.
pub(super) const SWEEP: StatementText = StatementText {
    sql: "WITH page AS (SELECT key FROM sluicegate_state WHERE key > $1 ORDER BY key LIMIT 1000), \
          empty AS (SELECT key FROM sluicegate_state WHERE key IN (SELECT key FROM page) \
          AND empty_at < (extract(epoch FROM now()) * 1000000)::bigint - 10000000 \
          FOR UPDATE SKIP LOCKED), \
          gone AS (DELETE FROM sluicegate_state USING empty \
          WHERE sluicegate_state.key = empty.key RETURNING 1) \
          SELECT (SELECT key FROM page ORDER BY key DESC LIMIT 1), (SELECT count(*) FROM gone)",
    types: &[Type::BYTEA],
};

/// All statements of a connection: prepared, or sent as text with each call.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) lock: PreparedStatement,
    pub(super) load: PreparedStatement,
    pub(super) save: PreparedStatement,
    pub(super) propose: PreparedStatement,
    pub(super) sweep: PreparedStatement,
}

/// A statement, with the server's handle if it is prepared.
#[derive(Debug)]
pub(super) struct PreparedStatement {
    text: StatementText,
    handle: Option<Statement>,
}

impl Statements {
    /// Prepares all statements, or none without `prepare`.
    pub(super) async fn new(client: &Client, prepare: bool) -> Result<Self, Error> {
        let statement = |text| PreparedStatement::new(client, text, prepare);
        Ok(Self {
            lock: statement(LOCK).await?,
            load: statement(LOAD).await?,
            save: statement(SAVE).await?,
            propose: statement(PROPOSE).await?,
            sweep: statement(SWEEP).await?,
        })
    }
}

impl Statements {
    /// Sends all statements as text from now on.
    pub(super) fn forget_handles(&mut self) {
        let Self { lock, load, save, propose, sweep } = self;
        for statement in [lock, load, save, propose, sweep] {
            statement.handle = None;
        }
    }
}

impl PreparedStatement {
    async fn new(client: &Client, text: StatementText, prepare: bool) -> Result<Self, Error> {
        if !prepare {
            return Ok(Self { text, handle: None });
        }
        let handle = client.prepare_typed(text.sql, text.types).await?;
        Ok(Self { text, handle: Some(handle) })
    }

    /// Runs the statement. Calls that are polled together share a round trip.
    pub(super) async fn run(
        &self,
        client: &Client,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        if let Some(handle) = &self.handle {
            return client.query(handle, params).await;
        }
        let typed: Vec<_> = params.iter().copied().zip(self.text.types.iter().cloned()).collect();
        client.query_typed(self.text.sql, &typed).await
    }
}
