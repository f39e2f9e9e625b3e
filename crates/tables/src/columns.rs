//! The columns of a table, and the numbers that occur in each.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::cells::{Amounts, ColumnNumber, OwnAmounts, Row};
use crate::row::RawRow;
use crate::spec::check_column;
use crate::{Amount, MAX_COLUMNS, TableSpec};

/// The columns of a table. The columns of its plans come first, so that their numbers stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns(Vec<Column>);

#[derive(Clone, Debug)]
struct Column {
    name: Box<str>,
    /// All numbers that plans and rows had since the last full load.
    numbers: Arc<HashSet<NonZeroU32>>,
}

impl Columns {
    pub(crate) fn of_plans(spec: &TableSpec) -> Self {
        let column = |name| Column { name, numbers: Arc::default() };
        let mut columns = Self(spec.columns().into_iter().map(column).collect());
        for (column, amount) in spec.plans.iter().flat_map(|(_, amounts)| amounts) {
            if let Some(column) = columns.find(column) {
                columns.add_number(column, *amount);
            }
        }
        columns
    }

    pub(crate) fn find(&self, name: &str) -> Option<ColumnNumber> {
        let found = self.0.iter().position(|column| *column.name == *name)?;
        u8::try_from(found).ok().map(ColumnNumber)
    }

    pub(crate) fn name(&self, column: ColumnNumber) -> &str {
        self.0.get(usize::from(column.0)).map_or("", |column| &column.name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|column| &*column.name)
    }

    /// Returns the numbers of a column, and perhaps numbers that it no longer has.
    pub(crate) fn numbers(&self, column: ColumnNumber) -> Option<&Arc<HashSet<NonZeroU32>>> {
        self.0.get(usize::from(column.0)).map(|column| &column.numbers)
    }

    /// Returns `true` if a good row or a plan has this number in the column.
    pub(crate) fn has_number(&self, column: &str, number: NonZeroU32) -> bool {
        let numbers = self.find(column).and_then(|column| self.numbers(column));
        numbers.is_some_and(|numbers| numbers.contains(&number))
    }

    /// Adds the columns of a row from an earlier load of the same table.
    pub(crate) fn keep(&mut self, earlier: &Self, row: &Row) -> Result<Row, String> {
        let Some(own) = row.own.as_deref() else { return Ok(row.clone()) };
        let amounts = own.amounts.iter().map(|(column, amount)| (earlier.name(*column), *amount));
        let own =
            self.own_amounts(amounts)?.map(|amounts| OwnAmounts { amounts, until: own.until });
        Ok(Row { plan: row.plan, own: own.map(Arc::new) })
    }

    /// Returns the row of the table for a row of the source.
    ///
    /// # Errors
    /// An invalid id, an unknown plan, a column twice, or too many columns.
    pub(crate) fn row(&mut self, spec: &TableSpec, raw: &RawRow<'_>) -> Result<Row, String> {
        raw.check_id()?;
        let plan = raw.plan.as_deref().map(|name| {
            spec.plan_number(name).ok_or_else(|| format!("`plan`: the table has no plan `{name}`"))
        });
        let plan = plan.transpose()?;
        let own = self.own_amounts(raw.amounts.iter().map(|(name, amount)| (&**name, *amount)))?;
        let own = own.map(|amounts| Arc::new(OwnAmounts { amounts, until: raw.until }));
        Ok(Row { plan, own })
    }

    fn own_amounts<'a>(
        &mut self,
        amounts: impl Iterator<Item = (&'a str, Amount)>,
    ) -> Result<Option<Amounts>, String> {
        let mut own: Vec<(ColumnNumber, Amount)> = Vec::new();
        for (name, amount) in amounts {
            let column = self.find_or_add(name)?;
            if own.iter().any(|(other, _)| *other == column) {
                return Err(format!("has the column `{name}` twice"));
            }
            own.push((column, amount));
        }
        for (column, amount) in &own {
            self.add_number(*column, *amount);
        }
        Ok((!own.is_empty()).then(|| own.into()))
    }

    fn find_or_add(&mut self, name: &str) -> Result<ColumnNumber, String> {
        if let Some(column) = self.find(name) {
            return Ok(column);
        }
        check_column(name).map_err(|error| error.to_string())?;
        if MAX_COLUMNS <= self.0.len() {
            return Err(format!("`{name}`: the table has {MAX_COLUMNS} columns already"));
        }
        self.0.push(Column { name: name.into(), numbers: Arc::default() });
        Ok(ColumnNumber(u8::try_from(self.0.len() - 1).unwrap_or(u8::MAX)))
    }

    fn add_number(&mut self, column: ColumnNumber, amount: Amount) {
        let Some(column) = self.0.get_mut(usize::from(column.0)) else { return };
        if let Amount::Number(number) = amount
            && !column.numbers.contains(&number)
        {
            Arc::make_mut(&mut column.numbers).insert(number);
        }
    }
}
