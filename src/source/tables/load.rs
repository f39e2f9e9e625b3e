//! The result of a read of a table's source.

use std::io::{self, Read};
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::config::tables::{LoadError, LoadReport, Loading, Table, TableSpec, read_rows};

/// Returns an error if a limit that reads this column of a table cannot count this number. The
/// arguments are the table, the column and the number.
pub type CheckNumber = dyn Fn(&str, &str, NonZeroU32) -> Result<(), String> + Send + Sync;

/// The reason why a read of a source changed nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Source(String),
    #[error("the file changed while it was read; replace it by renaming another one")]
    Unstable,
}

/// A load of a table. `None` if the source has not changed.
pub(super) type Loaded = Result<Option<(Table, LoadReport)>, ReadError>;

/// Begins a load with all rows of `input`.
///
/// # Errors
/// The input cannot be read, or has too many rows.
pub(super) fn load_rows<'t>(
    spec: &Arc<TableSpec>,
    before: Option<&'t Table>,
    check: &CheckNumber,
    input: impl Read,
) -> Result<Loading<'t>, ReadError> {
    let mut loading = Loading::new(Arc::clone(spec), before);
    let check = |column: &str, number| check(spec.name(), column, number);
    let mut refused = None;
    let rows = read_rows(input, &mut |row| {
        loading.add(row, &check).map_err(|error| {
            refused = Some(error.clone());
            io::Error::other(error)
        })
    });
    refused.map_or(Ok(()), Err)?;
    rows?;
    Ok(loading)
}
