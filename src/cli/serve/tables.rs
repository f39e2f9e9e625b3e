//! Starts the tables that limits read, and waits for their first versions.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::drain::ShutdownSignals;
use super::listeners::StartupListeners;
use super::startup_probes;
use super::store::redis_topology;
use super::tasks::{ServeError, ServiceTasks};
use crate::config::prices::REQUIRED_COLUMNS;
use crate::config::settings::{PostgresUrl, RedisUrl, Settings, TableSettings, TableSource};
use crate::config::tables::{Table, TableStates};
use crate::config::{Config, TableColumn};
use crate::engine::Engine;
use crate::source::tables::{
    self, HttpRows, RowRead, RowServer, RowSource, RowsEnd, TableContext, TableOptions,
};
use crate::store::postgres::{Listener, PostgresOptions, RowReader};
use crate::store::redis::{HashReader, Password, RedisOptions, RedisTls};

/// The pause between two looks whether all tables are loaded.
const LOADED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the states of the tables before their first load.
pub(super) fn states(settings: &Settings) -> Arc<TableStates> {
    let shown =
        |table: &TableSettings| table.source().map_or_else(|_| String::new(), |it| it.shown());
    let tables = settings.tables.0.iter();
    Arc::new(TableStates::new(tables.map(|table| (&*table.name, shown(table).into()))))
}

/// Starts to load the tables. `config` has the limits that check the numbers of the first load.
///
/// # Errors
/// A table's settings are invalid.
pub(super) fn start(
    settings: &Settings,
    engine: &Arc<Engine>,
    config: Option<Arc<Config>>,
    tasks: &mut ServiceTasks,
) -> Result<(), ServeError> {
    let (publishing, checking, timing) =
        (Arc::clone(engine), Arc::clone(engine), Arc::clone(engine));
    let (first, warned) = (config.clone(), Mutex::default());
    let context = TableContext {
        states: Arc::clone(engine.table_states()),
        publish: Arc::new(move |tables: Arc<[Arc<Table>]>| {
            if let Some(config) = publishing.config().or_else(|| first.clone()) {
                warn_unknown_columns(&config, &tables, &warned);
            }
            publishing.publish_tables(tables);
        }),
        check: Arc::new(move |table: &str, column: &str, number: NonZeroU32| {
            let current = checking.config().or_else(|| config.clone());
            current.map_or(Ok(()), |current| current.check_table_number(table, column, number))
        }),
        now: Arc::new(move || timing.clock().now()),
    };
    for table in &settings.tables.0 {
        let options = options(table).map_err(ServeError::InvalidSettings)?;
        tasks.spawn_background(tables::follow(options, context.clone()));
    }
    Ok(())
}

/// Warns once about each column that a limit or a price reads, and that neither a plan nor a row has.
fn warn_unknown_columns(config: &Config, tables: &[Arc<Table>], warned: &Mutex<HashSet<Box<str>>>) {
    let is_new = |table: &str, column: &str, limit: &str| {
        let read = tables.iter().find(|read| *read.name() == *table);
        let is_missing = read.is_some_and(|read| read.column(column).is_none());
        is_missing && warned.lock().insert(format!("{table}.{column} {limit}").into())
    };
    for (read, limit) in config.table_columns() {
        let TableColumn { table, column, .. } = read;
        if is_new(table, column, limit) {
            let effect = if config.is_weight(read) {
                "all customers are one"
            } else {
                "the rule's own number applies to all ids"
            };
            tracing::warn!(
                table = &**table,
                column = &**column,
                limit,
                "no plan and no row has this column, so {effect}"
            );
        }
    }
    for (table, limit) in config.price_tables() {
        for column in REQUIRED_COLUMNS.into_iter().filter(|column| is_new(table, column, limit)) {
            tracing::warn!(
                table,
                column,
                limit,
                "no plan and no row has this column, so no model has a price and requests are denied"
            );
        }
    }
}

fn options(table: &TableSettings) -> Result<TableOptions, String> {
    let source = match table.source()? {
        TableSource::File(path) => RowSource::File(path),
        TableSource::Http(url) => {
            let (token_file, ca_file) = (table.token_file.clone(), table.ca_file.clone());
            let rows = HttpRows::new(url.as_str().to_owned(), token_file, ca_file);
            RowSource::Server(Box::new(rows))
        }
        TableSource::Postgres { url, rows, changes, notify } => {
            let options = postgres_options(table, &url);
            let listener = notify.map(|channel| Listener::start(options.clone(), &channel));
            let reader = RowReader::new(options);
            RowSource::Server(Box::new(PostgresRows { reader, rows, changes, listener }))
        }
        TableSource::Redis { url, hash, version } => {
            let reader = HashReader::new(redis_options(table, &url), hash, version);
            RowSource::Server(Box::new(RedisRows(reader)))
        }
    };
    Ok(TableOptions {
        spec: Arc::new(table.spec()?),
        source,
        refresh: table.refresh()?,
        copy: table.copy.clone(),
    })
}

fn postgres_options(table: &TableSettings, url: &PostgresUrl) -> PostgresOptions {
    PostgresOptions {
        password: table.password_file.clone().map(Password::File),
        tls: url.tls.then(|| tls(table)),
        ..PostgresOptions::new(url.server.clone())
    }
}

fn redis_options(table: &TableSettings, url: &RedisUrl) -> RedisOptions {
    let in_url = url.password.clone().map(Password::Plain);
    RedisOptions {
        user: url.user.clone(),
        password: in_url.or_else(|| table.password_file.clone().map(Password::File)),
        database: url.database,
        tls: url.tls.then(|| tls(table)),
        ..RedisOptions::new(redis_topology(&url.endpoint, None))
    }
}

fn tls(table: &TableSettings) -> RedisTls {
    RedisTls { ca_file: table.ca_file.clone(), ..RedisTls::default() }
}

/// A table's rows in PostgreSQL.
struct PostgresRows {
    reader: RowReader,
    rows: String,
    changes: Option<String>,
    listener: Option<Listener>,
}

impl RowServer for PostgresRows {
    fn knows_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn read(
        &mut self,
        read: RowRead,
        rows: mpsc::Sender<Bytes>,
    ) -> BoxFuture<'_, Result<RowsEnd, String>> {
        Box::pin(async move {
            let (query, since) = match (read, &self.changes) {
                (RowRead::Since(since), Some(changes)) => (changes, Some(since)),
                _ => (&self.rows, None),
            };
            let read = self.reader.read(query, since, rows).await;
            read.map(|at| RowsEnd::Sent(Some(at))).map_err(|error| error.problem().to_owned())
        })
    }

    fn notified(&mut self) -> BoxFuture<'_, ()> {
        match &mut self.listener {
            Some(listener) => Box::pin(listener.notified()),
            None => Box::pin(std::future::pending()),
        }
    }
}

/// A table's rows in a hash of Redis.
struct RedisRows(HashReader);

impl RowServer for RedisRows {
    fn tells_sameness(&self) -> bool {
        self.0.has_version()
    }

    fn read(
        &mut self,
        _: RowRead,
        rows: mpsc::Sender<Bytes>,
    ) -> BoxFuture<'_, Result<RowsEnd, String>> {
        Box::pin(async move {
            let is_sent = self.0.read(rows).await.map_err(|error| error.to_string())?;
            Ok(if is_sent { RowsEnd::Sent(None) } else { RowsEnd::Same })
        })
    }
}

/// The readiness of a process that waits for tables: their names, each with the error of its last read.
struct MissingTables<'s>(&'s TableStates);

impl fmt::Display for MissingTables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not ready")?;
        for (number, state) in self.0.all().iter().filter(|it| it.table.is_none()).enumerate() {
            let sign = if number == 0 { ':' } else { ';' };
            write!(f, "{sign} the table `{}` is not loaded", state.name)?;
            state.error.iter().try_for_each(|error| write!(f, ": {error}"))?;
        }
        Ok(())
    }
}

/// Waits until all tables have a version, and meanwhile answers health probes on the HTTP port. Returns
/// `false` if a shutdown signal arrives first.
pub(super) async fn wait_for_first_tables(
    engine: &Engine,
    bound: &StartupListeners,
    signals: &mut ShutdownSignals,
) -> bool {
    let StartupListeners::HttpOnly(http) = bound else { return true };
    let states = engine.table_states();
    if !states.are_loaded() {
        tracing::info!("waiting for the first rows of the tables; {}", MissingTables(states));
    }
    let loaded = async {
        while !states.are_loaded() {
            tokio::time::sleep(LOADED_POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        never = startup_probes::answer_probes(http.as_ref(), MissingTables(states)) => match never {},
        _ = signals.next() => false,
        () = loaded => true,
    }
}
