//! The rows of tables that one proxy asked for, and those of them that changed.
//!
//! Guarantees:
//! - A proxy hears once of a change of a row that it asked for, until it asks for the row again.
//! - At most [`MAX_ASKED`] rows are remembered. Above it, the proxy hears of all changed rows, for good.
//! - At most [`MAX_CHANGED`] changed rows wait for a proxy that does not read. Above it, it hears that
//!   all limits changed.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kernel::proxy_rule::TableRow;

/// The most rows that are remembered, as hashes of 8 bytes.
const MAX_ASKED: usize = 65_536;

/// The most changed rows that wait.
const MAX_CHANGED: usize = 2_000;

/// A change of rows, for one proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowsChange {
    /// These rows changed.
    Rows(Vec<TableRow>),
    /// Any row may have changed.
    All,
}

/// The rows of one proxy.
#[derive(Debug, Default)]
pub(super) struct AskedRows {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    asked: HashSet<u64>,
    is_full: bool,
    waiting: Vec<TableRow>,
}

impl AskedRows {
    pub(super) fn add(&self, rows: &[TableRow]) {
        if rows.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.asked.extend(rows.iter().map(TableRow::hash_value));
        if MAX_ASKED < state.asked.len() {
            (state.asked, state.is_full) = (HashSet::new(), true);
        }
    }

    /// Tells the proxy of rows that changed.
    pub(super) fn announce(&self, rows: &[TableRow]) {
        let mut state = self.state.lock();
        let State { asked, is_full, waiting } = &mut *state;
        // The row is forgotten: a proxy that still uses it asks again.
        let wanted = rows.iter().filter(|row| *is_full || asked.remove(&row.hash_value()));
        let room = (MAX_CHANGED + 1).saturating_sub(waiting.len());
        waiting.extend(wanted.take(room).cloned());
        if !waiting.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Waits for changed rows.
    pub(super) async fn next_change(&self) -> RowsChange {
        loop {
            let waiting = std::mem::take(&mut self.state.lock().waiting);
            match waiting.len() {
                0 => self.changed.notified().await,
                1..=MAX_CHANGED => return RowsChange::Rows(waiting),
                _ => return RowsChange::All,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::{AskedRows, MAX_ASKED, MAX_CHANGED, RowsChange, TableRow};

    fn rows(ids: std::ops::Range<usize>) -> Vec<TableRow> {
        ids.map(|id| TableRow::new("customers", &id.to_string())).collect()
    }

    fn next(asked: &AskedRows) -> Option<RowsChange> {
        asked.next_change().now_or_never()
    }

    #[test]
    fn a_proxy_hears_only_of_rows_that_it_asked_for() {
        let asked = AskedRows::default();
        asked.add(&rows(3..6));
        asked.announce(&rows(0..4));
        assert_eq!(next(&asked), Some(RowsChange::Rows(rows(3..4))));
        assert_eq!(next(&asked), None);
        asked.announce(&rows(3..4));
        assert_eq!(next(&asked), None, "it has not asked again");
        asked.announce(&rows(5..6));
        assert_eq!(next(&asked), Some(RowsChange::Rows(rows(5..6))));
    }

    #[test]
    fn a_proxy_with_too_many_rows_hears_of_all_changes() {
        let asked = AskedRows::default();
        asked.add(&rows(0..MAX_ASKED + 1));
        let other = [TableRow::new("partners", "x")];
        asked.announce(&other);
        assert_eq!(next(&asked), Some(RowsChange::Rows(other.to_vec())));
        assert!(asked.state.lock().asked.capacity() <= 2 * MAX_ASKED);
    }

    #[test]
    fn a_proxy_that_does_not_read_hears_that_all_limits_changed() {
        let asked = AskedRows::default();
        asked.add(&rows(0..2 * MAX_CHANGED));
        for id in 0..2 * MAX_CHANGED {
            asked.announce(&rows(id..id + 1));
        }
        assert_eq!(asked.state.lock().waiting.len(), MAX_CHANGED + 1);
        assert_eq!(next(&asked), Some(RowsChange::All));
        assert_eq!(next(&asked), None);
    }
}
