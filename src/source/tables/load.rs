//! The result of a read of a table's source.

use std::io::{self, Read};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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

/// The rows after which a load rests, if the table is in use. Otherwise a load of seconds would keep a
/// core from the checks for as long as the system lets it, which is milliseconds.
const ROWS_UNTIL_REST: usize = 200;
const REST: Duration = Duration::from_micros(50);

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
    let (mut refused, mut rows_since_rest) = (None, 0);
    let rows = read_rows(input, &mut |row| {
        rows_since_rest += 1;
        if before.is_some() && rows_since_rest == ROWS_UNTIL_REST {
            rows_since_rest = 0;
            thread::sleep(REST);
        }
        loading.add(row, &check).map_err(|error| {
            refused = Some(error.clone());
            io::Error::other(error)
        })
    });
    refused.map_or(Ok(()), Err)?;
    rows?;
    Ok(loading)
}
