//! The tables in PostgreSQL, and their versions.
//!
//! Guarantees:
//! - Migrations run in one transaction, one process at a time, and only forward.
//! - A replica refuses a schema that is older or newer than its program.

use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;

use super::connect::{ConnectError, connect, refused, within_timeout};
use super::options::PostgresOptions;

/// The migrations, in order. The version of a schema is the number of applied migrations.
const MIGRATIONS: [&str; 1] = [include_str!("sql/1.sql")];

/// The version of the schema that this program needs.
pub const SCHEMA_VERSION: i32 = 1;
const _: () = assert!(MIGRATIONS.len() == 1);

/// The number of the advisory lock that a migration takes.
const MIGRATION_LOCK: i64 = 0x736c_7569_6365;

/// Whether the tables survive a crash of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Tables in the write-ahead log.
    Full,
    /// Unlogged tables: faster, and empty after a crash or a failover.
    Unlogged,
}

/// The result of [`migrate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before; 0 without a schema.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// True if the durability of the tables was changed.
    pub has_new_durability: bool,
}

/// Connects once, and returns an error unless the schema has [`SCHEMA_VERSION`].
///
/// # Errors
/// [`ConnectError::WrongSchema`], or [`ConnectError::Refused`] if the server is unreachable.
pub async fn verify_schema(options: &PostgresOptions) -> Result<(), ConnectError> {
    let (client, _connection) = connect(options, TargetSessionAttrs::ReadWrite).await?;
    within_timeout(verify(&client)).await
}

/// Returns an error unless the schema has [`SCHEMA_VERSION`].
pub(super) async fn verify(client: &Client) -> Result<(), ConnectError> {
    let version = read_version(client).await?;
    match version.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less if version == 0 => Err(ConnectError::WrongSchema(
            "the database has no tables of sluicegate; run `sluicegate migrate --store-url …`, or \
             serve with --migrate"
                .to_owned(),
        )),
        std::cmp::Ordering::Less => Err(ConnectError::WrongSchema(format!(
            "the schema has version {version}, and this program needs {SCHEMA_VERSION}; run \
             `sluicegate migrate --store-url …`"
        ))),
        std::cmp::Ordering::Greater => Err(newer_schema(version)),
    }
}

fn newer_schema(version: i32) -> ConnectError {
    ConnectError::WrongSchema(format!(
        "the schema has version {version}, and this program knows only {SCHEMA_VERSION}; install a \
         newer sluicegate"
    ))
}

/// Returns the version of the schema; 0 without a schema.
async fn read_version(client: &Client) -> Result<i32, ConnectError> {
    match client.query_typed("SELECT max(version) FROM sluicegate_schema", &[]).await {
        Ok(rows) => {
            let version = rows.first().and_then(|row| row.try_get::<_, Option<i32>>(0).ok());
            Ok(version.flatten().unwrap_or(0))
        }
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(refused(&error)),
    }
}

/// Creates the tables, or upgrades them to [`SCHEMA_VERSION`], and sets their durability. `None`
/// keeps the durability, and creates logged tables.
///
/// # Errors
/// Fails if the server is unreachable, a right is missing, or the schema is newer.
pub async fn migrate(
    options: &PostgresOptions,
    durability: Option<Durability>,
) -> Result<Migrated, ConnectError> {
    let (client, _connection) = connect(options, TargetSessionAttrs::ReadWrite).await?;
    let run = async |sql: &str| client.batch_execute(sql).await.map_err(|error| refused(&error));
    run(&format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")).await?;
    // While a change of the tables waits for a lock, all checks would wait behind it.
    run("SET LOCAL lock_timeout = '3s'").await?;
    run("CREATE TABLE IF NOT EXISTS sluicegate_schema (version integer PRIMARY KEY, \
         applied_at timestamptz NOT NULL DEFAULT now())")
    .await?;
    let from = read_version(&client).await?;
    if SCHEMA_VERSION < from {
        return Err(newer_schema(from));
    }
    for (version, migration) in (1..).zip(MIGRATIONS).filter(|(version, _)| from < *version) {
        run(migration).await?;
        run(&format!("INSERT INTO sluicegate_schema (version) VALUES ({version})")).await?;
    }
    let has_new_durability =
        from != 0 && durability.is_some() && durability != read_durability(&client).await;
    match durability.filter(|_| from == 0 || has_new_durability) {
        Some(Durability::Full) => run("ALTER TABLE sluicegate_state SET LOGGED").await?,
        Some(Durability::Unlogged) => run("ALTER TABLE sluicegate_state SET UNLOGGED").await?,
        None => {}
    }
    run("COMMIT").await?;
    Ok(Migrated { from, to: SCHEMA_VERSION, has_new_durability })
}

/// Returns the durability of the tables; `None` without tables.
async fn read_durability(client: &Client) -> Option<Durability> {
    let sql =
        "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass('sluicegate_state')";
    let rows = client.query_typed(sql, &[]).await.ok()?;
    let is_unlogged: bool = rows.first()?.try_get(0).ok()?;
    Some(if is_unlogged { Durability::Unlogged } else { Durability::Full })
}
