//! Decides on rows that this replica knows, and saves each in one statement if its value is unchanged.
//!
//! | step | round trip |
//! |---|---|
//! | decide by the kernel, on known rows and an estimate of the server's clock | none |
//! | save each row whose value is unchanged | the only one |
//! | repeat the calls whose rows changed, in a transaction | two more, seldom |
//!
//! Guarantees:
//! - A decision counts only if the row had the value on which it was made. So results are those of
//!   transactions.
//! - A missing row is a conflict, unless the known state was empty. So a counter that is deleted by hand
//!   starts anew.
//! - The statement tries the advisory locks of transactions. A locked row is a conflict.
//! - The estimate of the clock is late by at most a reply's delay. It is at most [`MAX_CLOCK_AGE`] old.
//! - At most [`MAX_ROWS`] rows of [`MAX_VALUE_BYTES`] each, and their keys, are known for one connection.
//!
//! Not covered, and taken by a transaction:
//! - Leases: they need an instant that is not before the message was sent.
//! - Calls that must change several rows or none, and denials of `all_or_nothing`, which save nothing.
//! - Rows that another replica changes often: after a conflict, [`SHUNNED_USES`] uses.
//!
//! Not covered:
//! - A wait for a row that a sweep deletes, or for a table that a migration rewrites. The caller has its
//!   fallback in time; the server process waits for the lock.
//! - A replica that is paused between a decision and its statement: the hits count at the older instant.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::queue::QueuedCall;
use super::rows::{RowKey, Rows, from_micros, lock_number, to_micros};
use crate::kernel::units::Nanos;

/// The most rows that are known for one connection. A further one makes all others unknown.
const MAX_ROWS: usize = 4_096;

/// The most bytes of a known value.
const MAX_VALUE_BYTES: usize = 256;

/// The age of the last reply from which the server's clock is unknown. Two clocks drift apart by less
/// than 1 ms in this time.
const MAX_CLOCK_AGE: Duration = Duration::from_secs(1);

/// The uses of a row in transactions after a conflict, with the one that repeats the call.
const SHUNNED_USES: u8 = 8;

/// The rows that one connection saved last, and the server's clock.
#[derive(Debug, Default)]
pub(super) struct KnownRows {
    by_key: HashMap<RowKey, KnownRow>,
    /// A reading of the server's clock, and the instant at which it arrived.
    clock: Option<(Nanos, Instant)>,
}

#[derive(Debug)]
struct KnownRow {
    value: Vec<u8>,
    /// The instant from which the row may be missing.
    empty_at: Nanos,
    /// The transactions to run before the value is used again.
    transactions_left: u8,
}

/// The parameters of the statement.
#[derive(Debug, Default)]
pub(super) struct Proposal {
    pub(super) keys: Vec<RowKey>,
    pub(super) locks: Vec<i64>,
    pub(super) known: Vec<Vec<u8>>,
    pub(super) values: Vec<Vec<u8>>,
    /// For each row, the instant from which it can be deleted; negative if it must not be missing.
    pub(super) empty_at: Vec<i64>,
}

/// The result of a proposal.
#[derive(Debug, Default)]
pub(super) struct Saved {
    pub(super) keys: HashSet<RowKey>,
    /// The rows that were missing, although their states were not empty.
    pub(super) missing: HashSet<RowKey>,
    /// The server's clock; `None` if no row was saved or missing.
    pub(super) now: Option<Nanos>,
}

impl KnownRows {
    /// Records a reading of the server's clock that just arrived.
    pub(super) fn set_clock(&mut self, read: Nanos) {
        self.clock = Some((read, Instant::now()));
    }

    /// Estimates the server's clock. `None` if the last reading is too old.
    fn now(&self) -> Option<Nanos> {
        let (read, arrived_at) = self.clock?;
        let age = Some(arrived_at.elapsed()).filter(|age| *age <= MAX_CLOCK_AGE)?;
        Some(read.plus(Nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))))
    }

    /// Returns the rows with these keys, or `None` if one of them is unknown.
    fn rows_of(&self, keys: &[(&RowKey, bool)]) -> Option<Vec<(RowKey, Vec<u8>)>> {
        let known = |(key, _): &(&RowKey, bool)| {
            let row = self.by_key.get(*key).filter(|row| row.transactions_left == 0)?;
            Some(((*key).clone(), row.value.clone()))
        };
        keys.iter().map(known).collect()
    }

    /// Takes the calls that can be decided on known rows from `calls`, and returns them with the rows.
    pub(super) fn take_known(&self, calls: &mut Vec<Box<dyn QueuedCall>>) -> KnownCalls {
        let Some(now) = self.now() else { return KnownCalls::default() };
        let (mut taken, mut loaded) = (Vec::new(), Vec::new());
        for call in std::mem::take(calls) {
            match self.rows_of(&call.keys()).filter(|_| call.has_independent_rows()) {
                Some(rows) => {
                    loaded.extend(rows);
                    taken.push(call);
                }
                None => calls.push(call),
            }
        }
        KnownCalls { calls: taken, rows: Rows::new(now, String::new(), loaded) }
    }

    /// Records a row that this connection saved in a transaction.
    pub(super) fn note_saved(&mut self, key: &[u8], value: &[u8], empty_at: Nanos) {
        if MAX_VALUE_BYTES < value.len() {
            self.by_key.remove(key);
        } else if let Some(row) = self.by_key.get_mut(key) {
            (row.value, row.empty_at) = (value.to_vec(), empty_at);
            row.transactions_left = row.transactions_left.saturating_sub(1);
        } else {
            if MAX_ROWS <= self.by_key.len() {
                self.by_key.clear();
            }
            let row = KnownRow { value: value.to_vec(), empty_at, transactions_left: 0 };
            self.by_key.insert(key.to_vec(), row);
        }
    }

    /// Records which rows of a proposal were saved.
    pub(super) fn note_proposed(&mut self, proposal: Proposal, saved: &Saved) {
        if let Some(now) = saved.now {
            self.set_clock(now);
        }
        let values = proposal.values.iter().zip(proposal.empty_at);
        for (key, (value, empty_at)) in proposal.keys.into_iter().zip(values) {
            if saved.keys.contains(&key) {
                self.note_saved(&key, value, from_micros(empty_at.saturating_abs()));
            } else if saved.missing.contains(&key) {
                self.by_key.remove(&key);
            } else if let Some(row) = self.by_key.get_mut(&key) {
                row.transactions_left = SHUNNED_USES;
            }
        }
    }
}

/// Calls that are decided on known rows.
#[derive(Default)]
pub(super) struct KnownCalls {
    pub(super) calls: Vec<Box<dyn QueuedCall>>,
    rows: Rows,
}

impl KnownCalls {
    /// The estimate of the server's clock, at which the calls are decided.
    #[cfg(test)]
    pub(super) fn now(&self) -> Nanos {
        self.rows.now()
    }

    /// Decides all calls. Returns the rows that they changed.
    pub(super) fn decide(&mut self, known: &KnownRows) -> Proposal {
        for call in &mut self.calls {
            call.apply(&mut self.rows);
        }
        let mut proposal = Proposal::default();
        for (key, value, empty_at) in self.rows.changed() {
            let Some(row) = known.by_key.get(key) else { continue };
            proposal.keys.push(key.to_vec());
            proposal.locks.push(lock_number(key));
            proposal.known.push(row.value.clone());
            proposal.values.push(value.to_vec());
            let may_be_missing = row.empty_at <= self.rows.now();
            let empty_at = to_micros(empty_at);
            proposal.empty_at.push(if may_be_missing { empty_at } else { -empty_at });
        }
        proposal
    }

    /// Finishes the calls whose rows were all saved, and returns the others.
    pub(super) fn finish(self, saved: &HashSet<RowKey>) -> Vec<Box<dyn QueuedCall>> {
        let mut others = Vec::new();
        for mut call in self.calls {
            if call.keep_saved(saved) {
                call.finish(Ok(()));
            } else {
                others.push(call);
            }
        }
        others
    }
}
