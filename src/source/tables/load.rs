//! The result of a read of a table's source.

use std::io;
use std::num::NonZeroU32;

use crate::config::tables::{LoadError, LoadReport, Table};

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
    #[error("the file changed while it was read")]
    Unstable,
}

/// A load of a table. `None` if the source has not changed.
pub(super) type Loaded = Result<Option<(Table, LoadReport)>, ReadError>;
