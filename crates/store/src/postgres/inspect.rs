//! Collects facts about a PostgreSQL for diagnosis, over a connection of its own.
//!
//! Guarantees:
//! - Writes one row, and deletes it.
//! - A fact that the server refuses to tell is unknown.

use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::{FromSql, Type};

use super::connect::{ConnectError, connect, describe_error};
use super::options::{PostgresOptions, Preparation};
use super::pooler;
use super::rows::from_micros;
use super::schema;
use crate::kernel::units::Nanos;

/// The number of transactions of which the median duration is reported.
const TIMED_TRANSACTIONS: usize = 11;

/// The facts about a PostgreSQL; `None` if a fact is unknown.
#[derive(Clone, Debug, Default)]
pub struct PostgresFacts {
    /// `server_version_num`, for example 150004.
    pub version: Option<i32>,
    /// True if a pooler may use another server connection for each transaction.
    pub is_pooled: Option<bool>,
    /// True if the setting prepares statements, and a pooler loses them.
    pub loses_statements: Option<bool>,
    /// The error of a write to the tables; `None` if it succeeded.
    pub write_failure: Option<String>,
    /// The median duration of a transaction with one write.
    pub transaction_time: Option<Nanos>,
    /// True if the tables are unlogged.
    pub is_unlogged: Option<bool>,
    /// The server's `synchronous_commit` for this user.
    pub synchronous_commit: Option<String>,
    /// The number of connected standbys.
    pub standbys: Option<i64>,
    /// The server's `synchronous_standby_names`.
    pub synchronous_standbys: Option<String>,
    /// The smallest possible difference between the clocks of the server and this machine.
    pub clock_skew: Option<Nanos>,
}

/// Connects once, and returns the facts. `clock` reads this machine's clock.
///
/// # Errors
/// The server is unreachable or refuses the login.
pub async fn collect_facts(
    options: &PostgresOptions,
    clock: &(dyn Fn() -> Nanos + Sync),
) -> Result<PostgresFacts, ConnectError> {
    // The primary, as `serve` uses it; a read-only server only if there is none.
    let (client, _connection) = match connect(options, TargetSessionAttrs::ReadWrite).await {
        Ok(connected) => connected,
        Err(_no_primary) => connect(options, TargetSessionAttrs::Any).await?,
    };
    let unlogged =
        "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass('sluicegate_state')";
    let write = match schema::verify(&client).await {
        Ok(()) => time_writes(&client, &options.key_prefix, clock).await,
        Err(error) => Err(error.to_string()),
    };
    Ok(PostgresFacts {
        version: fact(&client, "SELECT current_setting('server_version_num')::int").await,
        is_pooled: pooler::is_pooled(options).await.ok(),
        loses_statements: match options.prepare {
            Preparation::Always => pooler::loses_statements(options).await.ok(),
            Preparation::Auto | Preparation::Never => None,
        },
        transaction_time: write.as_ref().ok().copied(),
        write_failure: write.err(),
        is_unlogged: fact(&client, unlogged).await,
        synchronous_commit: fact(&client, "SELECT current_setting('synchronous_commit')").await,
        standbys: fact(&client, "SELECT count(*) FROM pg_stat_replication").await,
        synchronous_standbys: fact(&client, "SELECT current_setting('synchronous_standby_names')")
            .await,
        clock_skew: measure_skew(&client, clock).await,
    })
}

async fn fact<T: for<'r> FromSql<'r>>(client: &Client, sql: &str) -> Option<T> {
    let rows = client.query_typed(sql, &[]).await.ok()?;
    rows.first()?.try_get(0).ok()
}

async fn time_writes(
    client: &Client,
    prefix: &str,
    clock: &(dyn Fn() -> Nanos + Sync),
) -> Result<Nanos, String> {
    let key = format!("{prefix}doctor").into_bytes();
    let write = "INSERT INTO sluicegate_state (key, value, empty_at) VALUES ($1, '', 0) \
                 ON CONFLICT (key) DO UPDATE SET empty_at = 0";
    let mut times = Vec::new();
    for _ in 0..TIMED_TRANSACTIONS {
        let started = clock();
        let written = client.execute_typed(write, &[(&key, Type::BYTEA)]).await;
        written.map_err(|error| describe_error(&error))?;
        times.push(clock().since(started));
    }
    let delete = "DELETE FROM sluicegate_state WHERE key = $1";
    let deleted = client.execute_typed(delete, &[(&key, Type::BYTEA)]).await;
    deleted.map_err(|error| describe_error(&error))?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The server reads its clock between two readings here, so only a time outside of them proves a
/// difference.
async fn measure_skew(client: &Client, clock: &(dyn Fn() -> Nanos + Sync)) -> Option<Nanos> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let sent_at = clock();
    let server_time = from_micros(fact(client, sql).await?);
    Some(server_time.since(clock()).max(sent_at.since(server_time.plus(Nanos::MICRO))))
}
