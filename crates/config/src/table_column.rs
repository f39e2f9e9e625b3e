//! The column of a table that a limit reads.

use std::fmt;

use crate::kernel::proxy_rule::TableRow;

/// The column that a limit reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// The name of the table.
    pub table: Box<str>,
    /// The name of the column.
    pub column: Box<str>,
    /// The position of the entry whose value is the id, from 0.
    pub entry: usize,
    /// The largest overshoot as a part of the limit, in hundredths of a percent; `None` if it is a
    /// number of hits.
    pub(crate) overshoot_part: Option<u64>,
    /// The number of the limit among the limits that read tables, from 0.
    pub(crate) slot: u32,
}

/// Formats the column as in a limits file: `customers.api`.
impl fmt::Display for TableColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.table, self.column)
    }
}

impl TableColumn {
    /// The regular expression of `from`, for the JSON Schema.
    pub(crate) const PATTERN: &str = "^[0-9A-Za-z_-]{1,64}[.][0-9A-Za-z_-]{1,64}$";

    /// The regular expression of the name of a table, for the JSON Schema.
    pub(crate) const TABLE_PATTERN: &str = "^[0-9A-Za-z_-]{1,64}$";

    /// Returns the row of the id among the entries of a descriptor.
    #[must_use]
    pub fn row_of(&self, entries: &[(&str, &str)]) -> TableRow {
        TableRow::new(&self.table, entries.get(self.entry).map_or("", |(_, id)| *id))
    }

    /// Parses the field `from`: the names of a table and of a column, with a dot in between.
    pub(crate) fn parse_names(text: &str) -> Option<(&str, &str)> {
        let (table, column) = text.split_once('.')?;
        (Self::is_name(table) && Self::is_name(column)).then_some((table, column))
    }

    /// Returns `true` for the name of a table or a column.
    pub(crate) fn is_name(name: &str) -> bool {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        (1..=64).contains(&name.len()) && name.bytes().all(is_word)
    }
}
