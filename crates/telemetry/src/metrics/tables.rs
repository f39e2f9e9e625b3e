//! The series of the tables that limits read.

use std::fmt;

use super::text_format::{DecimalSeconds, EscapedLabel, MetricHead};
use crate::kernel::units::Nanos;

/// The state of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableGauges {
    /// The name of the table.
    pub name: Box<str>,
    /// The number of rows.
    pub rows: u64,
    /// The number of bad rows of the last load.
    pub bad_rows: u64,
    /// The instant at which the source last confirmed the rows, since the Unix epoch.
    pub confirmed_at: Nanos,
    /// `true` if the last read of the source failed.
    pub is_stale: bool,
}

/// The name, the help and the value of a metric.
type Series = (&'static str, &'static str, fn(&TableGauges) -> String);

pub(super) fn write_tables(page: &mut fmt::Formatter<'_>, tables: &[TableGauges]) -> fmt::Result {
    let series: [Series; 4] = [
        ("sluicegate_table_rows", "Rows of a table that limits read", |table| {
            table.rows.to_string()
        }),
        ("sluicegate_table_bad_rows", "Rows that the last load of a table rejected", |table| {
            table.bad_rows.to_string()
        }),
        (
            "sluicegate_table_confirmed_timestamp_seconds",
            "Unix time at which the source of a table last confirmed its rows; 0 if never",
            |table| DecimalSeconds(table.confirmed_at).to_string(),
        ),
        (
            "sluicegate_table_stale",
            "1 if the last read of a table's source failed, so that its rows may be old",
            |table| u8::from(table.is_stale).to_string(),
        ),
    ];
    for (name, help, value) in series {
        MetricHead(name, help).write(page, "gauge")?;
        for table in tables {
            let label = EscapedLabel(&table.name);
            writeln!(page, "{name}{{table=\"{label}\"}} {}", value(table))?;
        }
    }
    Ok(())
}
