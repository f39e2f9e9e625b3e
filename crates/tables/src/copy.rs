//! The last good copy of a table, as bytes.
//!
//! JSON lines: the rows, then a last line with the table's name, the number of rows and a checksum of
//! them. A copy that was cut off or changed is refused.

use std::hash::Hasher;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use serde_json::{Map, Value};
use siphasher::sip::SipHasher13;

use crate::cells::Row;
use crate::last_line::LastLine;
use crate::load::{LoadError, LoadReport, Loading, NumberCheck};
use crate::row::{RawRow, until_text};
use crate::rows::{MAX_LINE_BYTES, json_bad_row};
use crate::table::Table;
use crate::{Amount, TableSpec};

/// The copy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The copy cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The copy is incomplete, changed, or of another table.
    #[error("the copy is damaged: {0}")]
    Damaged(&'static str),
    /// The copy has too many rows.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Writes a copy of `table`.
///
/// # Errors
/// The output fails.
pub fn write_copy(table: &Table, output: &mut impl Write) -> io::Result<()> {
    let (mut rows, mut hasher) = (0, SipHasher13::new());
    for (id, row) in table.iter() {
        let line = serde_json::to_vec(&row_json(table, id, row))?;
        hasher.write(&line);
        rows += 1;
        output.write_all(&line)?;
        output.write_all(b"\n")?;
    }
    let last = LastLine { copy_of: table.name().into(), rows, checksum: hasher.finish() };
    output.write_all(&serde_json::to_vec(&last)?)?;
    output.write_all(b"\n")
}

/// Returns a row as the JSON object that [`RawRow::from_json`] reads.
#[must_use]
pub fn row_json(table: &Table, id: &str, row: &Row) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("id".to_owned(), id.into());
    if let Some(plan) = table.plan_name(row) {
        fields.insert("plan".to_owned(), plan.into());
    }
    let (amounts, until) = table.own_amounts(row);
    fields.extend(amounts.map(|(column, amount)| (column.to_owned(), amount_json(amount))));
    fields.extend(until.map(|until| ("until".to_owned(), until_text(until).into())));
    fields
}

fn amount_json(amount: Amount) -> Value {
    match amount {
        Amount::Number(number) => number.get().into(),
        Amount::Unlimited | Amount::Blocked => amount.to_string().into(),
    }
}

/// Reads a copy.
///
/// # Errors
/// The copy cannot be read, is damaged, or has too many rows.
pub fn read_copy(
    spec: &Arc<TableSpec>,
    mut input: impl BufRead,
    check: NumberCheck<'_>,
) -> Result<(Table, LoadReport), CopyError> {
    let (mut loading, name) = (Loading::new(Arc::clone(spec), None), spec.name());
    let (mut line, mut rows, mut hasher) = (Vec::new(), 0, SipHasher13::new());
    loop {
        line.clear();
        let bound = MAX_LINE_BYTES as u64;
        io::Read::take(&mut input, bound).read_until(b'\n', &mut line)?;
        let Some((b'\n', text)) = line.split_last() else {
            return Err(CopyError::Damaged("it was cut off"));
        };
        if text.starts_with(LastLine::START) {
            let last = serde_json::from_slice::<LastLine>(text).ok();
            let is_whole = last
                .as_ref()
                .is_some_and(|last| last.rows == rows && last.checksum == hasher.finish());
            return match last.filter(|_| is_whole) {
                Some(last) if *last.copy_of == *name => Ok(loading.finish()?),
                Some(_) => Err(CopyError::Damaged("it is of another table")),
                None => Err(CopyError::Damaged("its checksum differs")),
            };
        }
        hasher.write(text);
        rows += 1;
        let text = str::from_utf8(text).map_err(|_| CopyError::Damaged("it is not text"))?;
        let at = || format!("line {rows}");
        loading.add(
            RawRow::from_json(text).map_err(|problem| json_bad_row(text, at, &problem)),
            check,
        )?;
    }
}
