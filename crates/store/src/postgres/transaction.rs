//! One transaction for a batch of calls.
//!
//! | step | round trip |
//! |---|---|
//! | `BEGIN`, lock all keys, read the clock and all rows | first |
//! | decide by the kernel | none |
//! | save the changed rows, `COMMIT` | second |
//!
//! Guarantees:
//! - Locks are taken in one order by all replicas, so no two transactions wait for each other.
//! - The clock is read after all locks, so instants of one counter never go back.
//! - Calls of one batch are applied in order, each to the state that the earlier ones left.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::{join, join3};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::super::StoreFailure;

use super::cached::{Proposal, Saved};
use super::queue::QueuedCall;
use super::rows::{RowKey, Rows, from_micros, lock_number, to_micros};
use super::session::Session;
use crate::kernel::units::Nanos;

/// Starts a transaction, with settings that end with it: a pooler gives the server connection to
/// other programs afterwards.
///
/// - A paused replica must not keep its locks, and a waiting one must not keep its server process.
///   `lock_timeout` exceeds the idle timeout, so a waiter outlasts a paused lock holder.
/// - Index scans are forced: a plan that was made for an empty table stays after it grows.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
     SET LOCAL lock_timeout = '3s'; SET LOCAL idle_in_transaction_session_timeout = '2s'; \
     SET LOCAL enable_seqscan = off";

impl Session {
    /// Applies `calls`: on known rows if possible ([`super::cached`]), else in one transaction. Leaves
    /// those in `calls` to which no reply was sent. On an error, none of these was applied, unless
    /// the error is [`StoreFailure::ConnectionLost`].
    ///
    /// The session must not be used after an error.
    pub(super) async fn run_calls(
        &mut self,
        calls: &mut Vec<Box<dyn QueuedCall>>,
    ) -> Result<(), Error> {
        let mut known = self.known.take_known(calls);
        let proposal = known.decide(&self.known);
        match self.propose(&proposal).await {
            Ok(saved) => {
                self.known.note_proposed(proposal, &saved);
                calls.append(&mut known.finish(&saved.keys));
                calls.retain(|call| !call.is_abandoned());
            }
            Err(error) => {
                calls.append(&mut known.calls);
                return Err(error);
            }
        }
        if calls.is_empty() { Ok(()) } else { self.run_transaction(calls).await }
    }

    async fn run_transaction(&mut self, calls: &mut [Box<dyn QueuedCall>]) -> Result<(), Error> {
        let wanted: Vec<_> = calls.iter().flat_map(|call| call.keys()).collect();
        let mut rows = self.lock_and_load(&wanted).await?;
        self.known.set_clock(rows.now());
        for call in calls.iter_mut() {
            call.apply(&mut rows);
        }
        let changed = rows.changed();
        self.save_and_commit(&changed).await?;
        let usable = calls.iter().filter(|call| call.has_independent_rows());
        let keys: HashSet<&[u8]> =
            usable.flat_map(|call| call.keys()).map(|(key, _)| key.as_slice()).collect();
        for (key, value, empty_at) in changed {
            if keys.contains(key) {
                self.known.note_saved(key, value, empty_at);
            }
        }
        Ok(())
    }

    /// Saves the unchanged rows. Returns their keys, and the server's clock.
    pub(super) async fn propose(&self, proposal: &Proposal) -> Result<Saved, Error> {
        let Proposal { keys, locks, known, values, empty_at } = proposal;
        if keys.is_empty() {
            return Ok(Saved::default());
        }
        let params: [&(dyn ToSql + Sync); 5] = [keys, locks, known, values, empty_at];
        match self.statements.propose.run(&self.client, &params).await {
            Ok(rows) => read_saved(&rows),
            // The database's default isolation is stricter, and another replica saved a row.
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                Ok(Saved::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Prepares no statements any more, and ends a failed transaction.
    pub(super) async fn stop_preparing(&mut self) -> Result<(), Error> {
        self.statements.forget_handles();
        self.client.batch_execute("ROLLBACK").await
    }

    /// Starts a transaction, and locks and loads rows; `true` marks a row that is only read.
    async fn lock_and_load(&self, wanted: &[(&RowKey, bool)]) -> Result<Rows, Error> {
        let mut keys: Vec<&RowKey> = wanted.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        let (locks, are_shared) = lock_order(wanted);
        let (opened, locked, loaded) = join3(
            self.client.batch_execute(BEGIN),
            self.statements.lock.run(&self.client, &[&locks, &are_shared]),
            self.statements.load.run(&self.client, &[&keys]),
        )
        .await;
        opened?;
        locked?;
        loaded?.first().map_or_else(|| Ok(Rows::default()), read_rows)
    }

    async fn save_and_commit(&self, changed: &[(&[u8], &[u8], Nanos)]) -> Result<(), Error> {
        if changed.is_empty() {
            return self.client.batch_execute("COMMIT").await;
        }
        let keys: Vec<_> = changed.iter().map(|(key, ..)| *key).collect();
        let values: Vec<_> = changed.iter().map(|(_, value, _)| *value).collect();
        let empty_at: Vec<_> = changed.iter().map(|(.., empty_at)| to_micros(*empty_at)).collect();
        let params: [&(dyn ToSql + Sync); 3] = [&keys, &values, &empty_at];
        let (saved, committed) = join(
            self.statements.save.run(&self.client, &params),
            self.client.batch_execute("COMMIT"),
        )
        .await;
        saved?;
        committed
    }
}

fn read_saved(rows: &[Row]) -> Result<Saved, Error> {
    let mut saved = Saved::default();
    for row in rows {
        let now: SystemTime = row.try_get(2)?;
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        saved.now = Some(Nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)));
        let is_saved: bool = row.try_get(1)?;
        let keys = if is_saved { &mut saved.keys } else { &mut saved.missing };
        keys.insert(row.try_get(0)?);
    }
    Ok(saved)
}

fn read_rows(row: &Row) -> Result<Rows, Error> {
    let (now, server_start): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    // The arrays are null without rows.
    let (keys, values): (Option<Vec<RowKey>>, Option<Vec<Vec<u8>>>) =
        (row.try_get(2)?, row.try_get(3)?);
    let loaded = keys.into_iter().flatten().zip(values.into_iter().flatten());
    Ok(Rows::new(from_micros(now), server_start.to_string(), loaded))
}

/// Returns the numbers of the locks in the order of all replicas, each with true if it is shared.
/// A lock that is wanted in both modes is exclusive.
fn lock_order(wanted: &[(&RowKey, bool)]) -> (Vec<i64>, Vec<bool>) {
    let mut locks: Vec<(i64, bool)> =
        wanted.iter().map(|(key, is_shared)| (lock_number(key), *is_shared)).collect();
    // An exclusive lock sorts before a shared one of the same number.
    locks.sort_unstable();
    locks.dedup_by_key(|(number, _)| *number);
    locks.into_iter().unzip()
}

/// Returns `true` if the server connection does not know a prepared statement, or another one of
/// this name. The transaction was not committed.
pub(super) fn is_lost_statement(error: &Error) -> bool {
    let lost = [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
        SqlState::PROTOCOL_VIOLATION,
    ];
    error.code().is_some_and(|code| lost.contains(code))
}

/// Returns the failure for an error of a transaction.
pub(super) fn failure_of(error: &Error) -> StoreFailure {
    let Some(code) = error.code() else {
        return StoreFailure::ConnectionLost;
    };
    match code {
        &SqlState::READ_ONLY_SQL_TRANSACTION => StoreFailure::ReadOnly,
        &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN => StoreFailure::ConnectionLost,
        &SqlState::CANNOT_CONNECT_NOW => StoreFailure::Loading,
        &SqlState::INSUFFICIENT_PRIVILEGE => StoreFailure::NotPermitted,
        &SqlState::OUT_OF_MEMORY | &SqlState::DISK_FULL => StoreFailure::OutOfMemory,
        &SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED => StoreFailure::Unsent,
        _ => StoreFailure::Other,
    }
}
