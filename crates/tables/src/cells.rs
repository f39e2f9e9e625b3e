//! The values of a row, by the numbers of its plan and columns.

use std::sync::Arc;

use crate::Amount;
use crate::kernel::units::Nanos;

/// The number of a column in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnNumber(pub(crate) u8);

/// The plan and the own amounts of one id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub(crate) plan: Option<u32>,
    pub(crate) own: Option<Arc<OwnAmounts>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAmounts {
    pub(crate) amounts: Amounts,
    /// The end of the amounts, since the Unix epoch.
    pub(crate) until: Option<Nanos>,
}

/// Amounts by column. No column occurs twice.
pub(crate) type Amounts = Box<[(ColumnNumber, Amount)]>;
