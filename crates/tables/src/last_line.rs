//! The last line of a copy, which is no row.

use serde::{Deserialize, Serialize};

/// The last line of a copy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LastLine {
    pub(crate) copy_of: Box<str>,
    pub(crate) rows: u64,
    pub(crate) checksum: u64,
}

impl LastLine {
    /// The first bytes of the line. No row begins like this, because its first field is `id`.
    pub(crate) const START: &'static [u8] = b"{\"copy_of\":";

    /// Returns `true` for the last line of a copy. So a copy is a file of rows, too.
    pub(crate) fn is_in(line: &str) -> bool {
        line.as_bytes().starts_with(Self::START) && serde_json::from_str::<Self>(line).is_ok()
    }
}
