//! The parts of a table that the settings define: its name, its plans and its bounds.

use std::collections::BTreeMap;

use crate::Amount;

/// The largest number of columns with amounts.
pub const MAX_COLUMNS: usize = 32;

/// The largest number of plans.
const MAX_PLANS: usize = 10_000;

/// The amounts of a plan, by column.
pub type PlanAmounts = BTreeMap<Box<str>, Amount>;

/// The parts of a table that the settings define.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    pub(crate) name: Box<str>,
    pub(crate) plans: Vec<(Box<str>, PlanAmounts)>,
    pub(crate) max_shrink: u8,
}

/// The settings do not define a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A name has other characters than letters, digits, `-` and `_`, or it is too long or empty.
    #[error("`{0}` is not a name: use 1 to 64 of `0-9A-Za-z_-`")]
    InvalidName(Box<str>),
    /// A column has the name of a field of every row.
    #[error("`{0}` is a field of every row, not a column")]
    ReservedColumn(Box<str>),
    /// More columns than [`MAX_COLUMNS`].
    #[error("the plans have more than {MAX_COLUMNS} columns")]
    TooManyColumns,
    /// Too many plans.
    #[error("more than {MAX_PLANS} plans")]
    TooManyPlans,
}

/// The fields of a row that are not amounts.
pub(crate) const FIELDS: [&str; 4] = ["id", "plan", "until", "deleted"];

/// The field of a shown row with the amounts that operators set.
const SET: &str = "set";

impl TableSpec {
    /// Creates the definition of a table. A load that would remove more than `max_shrink` percent of
    /// the ids is refused.
    ///
    /// # Errors
    /// An invalid name, a reserved column, or too many plans or columns.
    pub fn new(
        name: &str,
        plans: BTreeMap<Box<str>, PlanAmounts>,
        max_shrink: u8,
    ) -> Result<Self, SpecError> {
        check_name(name)?;
        if MAX_PLANS < plans.len() {
            return Err(SpecError::TooManyPlans);
        }
        let plans: Vec<_> = plans.into_iter().collect();
        let spec = Self { name: name.into(), plans, max_shrink: max_shrink.min(100) };
        let columns = spec.columns();
        columns.iter().try_for_each(|column| check_column(column))?;
        if MAX_COLUMNS < columns.len() { Err(SpecError::TooManyColumns) } else { Ok(spec) }
    }

    /// The name of the table.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest part of the ids that a load may remove, in percent.
    #[must_use]
    pub const fn max_shrink(&self) -> u8 {
        self.max_shrink
    }

    /// The names of the plans, sorted.
    pub fn plan_names(&self) -> impl Iterator<Item = &str> {
        self.plans.iter().map(|(name, _)| &**name)
    }

    /// Returns the columns of all plans, sorted.
    #[must_use]
    pub fn columns(&self) -> Vec<Box<str>> {
        let columns = self.plans.iter().flat_map(|(_, amounts)| amounts.keys().cloned());
        let mut columns: Vec<_> = columns.collect();
        columns.sort();
        columns.dedup();
        columns
    }

    pub(crate) fn plan_number(&self, name: &str) -> Option<u32> {
        let found = self.plans.binary_search_by(|(plan, _)| (**plan).cmp(name)).ok()?;
        u32::try_from(found).ok()
    }
}

/// Returns an error unless `name` can be the name of a table.
///
/// # Errors
/// [`SpecError::InvalidName`].
fn check_name(name: &str) -> Result<(), SpecError> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_valid = (1..=64).contains(&name.len()) && name.bytes().all(is_word);
    if is_valid { Ok(()) } else { Err(SpecError::InvalidName(name.into())) }
}

pub(crate) fn check_column(name: &str) -> Result<(), SpecError> {
    if FIELDS.contains(&name) || name == SET {
        return Err(SpecError::ReservedColumn(name.into()));
    }
    check_name(name)
}
