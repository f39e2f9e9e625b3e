//! Loads a table: all rows, or the rows that changed.
//!
//! Guarantees:
//! - A bad row changes nothing: the row of the earlier version stays, if there is one.
//! - If a bad row of a full load has no readable id, no id is removed.
//! - A load that removes more than `max_shrink` of the ids, and more than one, is refused as a whole.
//! - More than ten deleted rows in one read, if above `max_shrink`, are bad. The other changes apply.
//! - Of two different rows with one id, a full load takes the first; the second is bad.

use std::borrow::Cow;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use compact_str::CompactString;

use crate::cells::Row;
use crate::columns::Columns;
use crate::row::{BadRow, RawRow};
use crate::rows::json_bad_row;
use crate::table::{Entry, RowChanges, Table};
use crate::{Amount, TableSpec};

/// The largest number of rows of a table.
pub const MAX_ROWS: usize = 10_000_000;

/// The largest number of bad rows that a report names.
const MAX_NAMED: usize = 100;

/// The deleted rows of one read that `max_shrink` never refuses.
const MAX_DELETED: usize = 10;

/// The result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The rows that were read, including the bad ones.
    pub read: usize,
    /// The number of bad rows.
    pub bad: usize,
    /// The first bad rows.
    pub bad_rows: Vec<BadRow>,
}

/// A load that changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// More rows than [`MAX_ROWS`].
    #[error("more than {MAX_ROWS} rows, the most of a table")]
    TooManyRows,
    /// The first load has only bad rows. Contains the first one.
    #[error("all rows are bad{}", .0.as_ref().map(|first| format!(": {first}")).unwrap_or_default())]
    NoGoodRow(Option<BadRow>),
    /// More ids would be removed than the table permits.
    #[error(
        "{removed} of {rows} ids would be removed, more than `max_shrink` ({max_shrink}%); \
         restore them, or raise `max_shrink`"
    )]
    Shrinks {
        /// The ids that would be removed.
        removed: usize,
        /// The ids of the earlier version.
        rows: usize,
        /// The largest part that may be removed, in percent.
        max_shrink: u8,
    },
}

/// Returns an error if a limit that reads this column cannot count this number.
pub type NumberCheck<'c> = &'c dyn Fn(&str, NonZeroU32) -> Result<(), String>;

/// A full load of a table.
#[derive(Debug)]
pub struct Loading<'t> {
    spec: Arc<TableSpec>,
    before: Option<&'t Table>,
    columns: Columns,
    entries: Vec<Entry>,
    rejected: Rejected,
}

/// The bad rows of a load, and their report.
#[derive(Debug, Default)]
struct Rejected {
    report: LoadReport,
    ids: Vec<CompactString>,
    /// `true` if a bad row has no readable id.
    has_unnamed: bool,
}

impl Rejected {
    fn add(&mut self, bad: BadRow) {
        self.report.bad += 1;
        match &bad.id {
            Some(id) => self.ids.push(CompactString::from(&**id)),
            None => self.has_unnamed = true,
        }
        if self.report.bad_rows.len() < MAX_NAMED {
            self.report.bad_rows.push(bad);
        }
    }
}

impl<'t> Loading<'t> {
    /// Begins a load. Bad rows keep their row of `before`.
    #[must_use]
    pub fn new(spec: Arc<TableSpec>, before: Option<&'t Table>) -> Self {
        let columns = Columns::of_plans(&spec);
        let entries = Vec::with_capacity(before.map_or(0, Table::rows));
        Self { spec, before, columns, entries, rejected: Rejected::default() }
    }

    /// Adds a row. Numbers that `check` refuses make the row bad.
    ///
    /// # Errors
    /// There are more rows than [`MAX_ROWS`].
    pub fn add(
        &mut self,
        row: Result<RawRow<'_>, BadRow>,
        check: NumberCheck<'_>,
    ) -> Result<(), LoadError> {
        self.rejected.report.read += 1;
        if MAX_ROWS < self.rejected.report.read {
            return Err(LoadError::TooManyRows);
        }
        match row.and_then(|raw| good_row(&mut self.columns, &self.spec, &raw, check)) {
            Ok(Some(entry)) => self.entries.push(entry),
            Ok(None) => {}
            Err(bad) => self.rejected.add(bad),
        }
        Ok(())
    }

    /// Ends the load. Returns the new version of the table.
    ///
    /// # Errors
    /// Too many ids would be removed.
    pub fn finish(mut self) -> Result<(Table, LoadReport), LoadError> {
        self.keep_rejected();
        let room = (self.entries.len(), self.before);
        let mut table = Table::with_room(self.spec, self.columns, room);
        let mut rejected = self.rejected;
        let mut kept = 0;
        let same_columns = self.before.filter(|before| before.columns().eq(table.columns.names()));
        let mut changes = same_columns.map(RowChanges::since);
        for entry in self.entries {
            if let Some(first) = table.row(&entry.id) {
                // A source may send a row twice if the table grows during the read.
                if *first != entry.row {
                    rejected.add(BadRow::of_id(
                        &entry.id,
                        "the id occurs twice with different values; the first ones apply",
                    ));
                }
                continue;
            }
            let earlier = self.before.and_then(|before| before.row(&entry.id));
            kept += usize::from(earlier.is_some());
            if let Some(changes) = changes.as_mut().filter(|_| earlier != Some(&entry.row)) {
                changes.add(&entry.id);
            }
            table.insert(entry);
        }
        if let Some(before) = self.before {
            if rejected.has_unnamed {
                table.keep_missing(before);
            } else {
                check_shrink(before, before.rows().saturating_sub(kept), 1)?;
            }
            if let Some(changes) = changes.as_mut().filter(|_| kept < before.rows()) {
                let removed = before.iter().filter(|(id, _)| table.row(id).is_none());
                removed.for_each(|(id, _)| changes.add(&CompactString::from(id)));
            }
            table.changes = changes.and_then(RowChanges::whole);
        } else if table.rows() == 0 && 0 < rejected.report.bad {
            return Err(LoadError::NoGoodRow(rejected.report.bad_rows.into_iter().next()));
        }
        Ok((table, rejected.report))
    }

    /// Adds the earlier rows of ids whose rows are bad.
    fn keep_rejected(&mut self) {
        let Some(before) = self.before else { return };
        let mut ids = std::mem::take(&mut self.rejected.ids);
        ids.sort();
        ids.dedup();
        let has_good_row: HashSet<_> = self
            .entries
            .iter()
            .map(|entry| &entry.id)
            .filter(|id| ids.binary_search(id).is_ok())
            .cloned()
            .collect();
        for id in ids.into_iter().filter(|id| !has_good_row.contains(id)) {
            let row = before.row(&id).map(|row| self.columns.keep(&before.columns, row));
            if let Some(Ok(row)) = row {
                self.entries.push(Entry { id, row });
            }
        }
    }
}

impl Table {
    /// Returns this table with the changes in JSON lines. The last row of an id applies. The report also
    /// has the `earlier` bad rows whose ids have no row here.
    ///
    /// # Errors
    /// As [`Table::with_changes`].
    pub fn with_json_changes(
        &self,
        lines: &str,
        earlier: &[BadRow],
        check: NumberCheck<'_>,
    ) -> Result<(Self, LoadReport), LoadError> {
        let lines = lines.lines().filter(|line| !line.is_empty()).enumerate();
        let row = |(at, line)| {
            let name = || format!("changed row {}", at + 1);
            RawRow::from_json(line).map_err(|problem| json_bad_row(line, name, &problem))
        };
        self.with_changes(lines.map(row), earlier, check)
    }

    /// Returns this table with changed, new and removed rows. The last row of an id applies. The report
    /// also has the `earlier` bad rows whose ids have no row here.
    ///
    /// # Errors
    /// Too many ids would be removed, or there would be too many rows.
    pub fn with_changes<'r>(
        &self,
        rows: impl IntoIterator<Item = Result<RawRow<'r>, BadRow>>,
        earlier: &[BadRow],
        check: NumberCheck<'_>,
    ) -> Result<(Self, LoadReport), LoadError> {
        let mut still_bad: Vec<&BadRow> = earlier.iter().filter(|bad| bad.id.is_some()).collect();
        let (mut table, mut rejected, spec) =
            (self.clone(), Rejected::default(), Arc::clone(&self.spec));
        let (mut deleted_ids, mut changes) = (HashSet::new(), RowChanges::since(self));
        for row in rows {
            rejected.report.read += 1;
            let id = row.as_ref().map_or_else(|bad| bad.id.as_deref(), |raw| Some(&*raw.id));
            still_bad.retain(|bad| bad.id.as_deref() != id);
            let deleted = row.as_ref().ok().filter(|raw| raw.deleted).map(|raw| raw.id.clone());
            match row.and_then(|raw| good_row(&mut table.columns, &spec, &raw, check)) {
                Err(bad) => rejected.add(bad),
                Ok(Some(entry)) => {
                    let (id, row) = (entry.id.clone(), entry.row.clone());
                    if table.insert(entry).as_ref() != Some(&row) {
                        changes.add(&id);
                    }
                }
                Ok(None) => deleted_ids.extend(deleted.filter(|id| table.remove(id))),
            }
            if MAX_ROWS < table.rows() {
                return Err(LoadError::TooManyRows);
            }
        }
        deleted_ids.retain(|id: &Cow<'_, str>| self.row(id).is_some() && table.row(id).is_none());
        for id in &deleted_ids {
            changes.add(&CompactString::from(&**id));
        }
        if let Err(error) = check_shrink(self, deleted_ids.len(), MAX_DELETED) {
            for id in deleted_ids {
                if let Some(row) = self.row(&id) {
                    table.insert(Entry { id: CompactString::from(&*id), row: row.clone() });
                }
                rejected.add(BadRow::of_id(&id, &error.to_string()));
            }
        }
        table.changes = changes.whole();
        for bad in still_bad {
            rejected.add(bad.clone());
        }
        Ok((table, rejected.report))
    }
}

/// Returns an error if a load removes more than `max_shrink` of the ids, and more than `always`.
fn check_shrink(before: &Table, removed: usize, always: usize) -> Result<(), LoadError> {
    let (rows, max_shrink) = (before.rows(), before.spec.max_shrink);
    if removed <= always.min(rows.saturating_sub(1))
        || removed * 100 <= rows * usize::from(max_shrink)
    {
        return Ok(());
    }
    Err(LoadError::Shrinks { removed, rows, max_shrink })
}

/// Returns the entry of a row; `None` if the row says that its id is deleted.
fn good_row(
    columns: &mut Columns,
    spec: &TableSpec,
    raw: &RawRow<'_>,
    check: NumberCheck<'_>,
) -> Result<Option<Entry>, BadRow> {
    let bad = |problem: String| match &*raw.id {
        "" => BadRow::at("a row", &problem),
        id => BadRow::of_id(id, &problem),
    };
    if raw.deleted {
        return raw.check_id().map(|()| None).map_err(bad);
    }
    for (column, amount) in &raw.amounts {
        if let Amount::Number(number) = amount
            && !columns.has_number(column, *number)
        {
            check(column, *number).map_err(|problem| bad(format!("`{column}`: {problem}")))?;
        }
    }
    let row: Row = columns.row(spec, raw).map_err(bad)?;
    Ok(Some(Entry { id: CompactString::from(&*raw.id), row }))
}
