//! Implements `sluicegate migrate`, which creates or upgrades the tables in PostgreSQL.
//!
//! Guarantees:
//! - Concurrent migrations run one after the other.
//! - A failed migration changes nothing.

use std::io;

use super::serve::store;
use super::{CommandOutcome, Terminal};
use crate::config::settings::Settings;
use crate::store::postgres;

pub(super) fn migrate(
    settings: &Settings,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let Some(options) = store::all_postgres_options(settings) else {
        writeln!(terminal.err, "error: {}", store::migrate_needs_postgres())?;
        return Ok(CommandOutcome::Failed);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let durability = store::postgres_durability(settings);
    match runtime.block_on(postgres::migrate(&options, Some(durability))) {
        Ok(postgres::Migrated { has_new_durability: true, to, .. }) => {
            let durability = settings.store.postgres.durability.word();
            writeln!(terminal.out, "the schema has version {to}; the tables are {durability} now")?;
            Ok(CommandOutcome::Success)
        }
        Ok(postgres::Migrated { from, to, .. }) if from == to => {
            writeln!(terminal.out, "the schema has version {to}; nothing to migrate")?;
            Ok(CommandOutcome::Success)
        }
        Ok(postgres::Migrated { from: 0, to, .. }) => {
            writeln!(terminal.out, "created the tables, version {to}")?;
            Ok(CommandOutcome::Success)
        }
        Ok(postgres::Migrated { from, to, .. }) => {
            writeln!(terminal.out, "migrated the schema from version {from} to {to}")?;
            Ok(CommandOutcome::Success)
        }
        Err(error) => {
            writeln!(terminal.err, "error: the migration failed: {error}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}
