//! Starts the tables that limits read, and waits for their first versions.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::drain::ShutdownSignals;
use super::startup_probes;
use super::tasks::ServiceTasks;
use crate::config::Config;
use crate::config::settings::{Settings, TableSettings};
use crate::config::tables::{Table, TableStates};
use crate::edge::health::Readiness;
use crate::engine::Engine;
use crate::source::tables::{self, TableContext, TableOptions};

/// The pause between two looks whether all tables are loaded.
const LOADED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the states of the tables before their first load.
pub(super) fn states(settings: &Settings) -> Arc<TableStates> {
    let tables = settings.tables.0.iter();
    Arc::new(TableStates::new(tables.map(|table| (&*table.name, table.source.as_str().into()))))
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
) -> Result<(), String> {
    let (publishing, checking, timing) =
        (Arc::clone(engine), Arc::clone(engine), Arc::clone(engine));
    let context = TableContext {
        states: Arc::clone(engine.table_states()),
        publish: Arc::new(move |tables: Arc<[Arc<Table>]>| publishing.publish_tables(tables)),
        check: Arc::new(move |table: &str, column: &str, number: NonZeroU32| {
            let current = checking.config().or_else(|| config.clone());
            current.map_or(Ok(()), |current| current.check_table_number(table, column, number))
        }),
        now: Arc::new(move || timing.clock().now()),
    };
    for table in &settings.tables.0 {
        tasks.spawn_background(tables::follow(options(table)?, context.clone()));
    }
    Ok(())
}

fn options(table: &TableSettings) -> Result<TableOptions, String> {
    Ok(TableOptions {
        spec: Arc::new(table.spec()?),
        source: table.source()?,
        refresh: table.refresh()?,
        copy: table.copy.clone(),
    })
}

/// Waits until all tables have a version, and meanwhile answers health probes on `http`. Returns
/// `false` if a shutdown signal arrives first.
pub(super) async fn wait_for_first_tables(
    engine: &Engine,
    http: Option<&TcpListener>,
    signals: &mut ShutdownSignals,
) -> bool {
    let loaded = async {
        while !engine.table_states().are_loaded() {
            tokio::time::sleep(LOADED_POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        never = startup_probes::answer_probes(http, Readiness::NoTables) => match never {},
        _ = signals.next() => false,
        () = loaded => true,
    }
}
