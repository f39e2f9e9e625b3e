//! Tables: data that limits read, such as the plan and the own limits of each customer.
//!
//! A table has rows. A row has an id, the name of a plan, and own amounts. An amount is a number,
//! `unlimited` or `blocked`. A rule says which column it reads (`from: customers.api`).
//!
//! Guarantees:
//! - A [`Table`] is immutable. A change makes another one, which shares all shards without a change.
//! - A bad row rejects only itself: the last good row of its id stays.
//! - A load that would remove more ids than [`TableSpec::max_shrink`] changes nothing.
//! - Rows, columns and bytes are bounded.
//!
//! Not covered:
//! - Reading files, databases and other sources (see `source` in the binary).
//! - What a limit does with an amount (see `config`).

mod amount;
mod cells;
mod columns;
mod copy;
mod last_line;
mod load;
mod row;
mod rows;
mod spec;
mod state;
mod table;

use sluicegate_kernel as kernel;

pub use amount::Amount;
pub use cells::{ColumnNumber, Row};
pub use copy::{CopyError, read_copy, row_json, write_copy};
pub use load::{LoadError, LoadReport, Loading, MAX_ROWS, NumberCheck};
pub use row::{BadRow, MAX_ID_BYTES, RawRow};
pub use rows::{MAX_LINE_BYTES, read_rows};
pub use spec::{MAX_COLUMNS, PlanAmounts, SpecError, TableSpec};
pub use state::{TableState, TableStates};
pub use table::{Lookup, Table};
