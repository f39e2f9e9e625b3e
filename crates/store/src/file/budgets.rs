//! The budgets of the file store: a table with one record for each budget.
//!
//! A record is the budget and the instant from which it need not be kept, in the format of
//! `postcard`. The key is the name of the budget.
//!
//! Guarantees:
//! - A restored budget equals the saved one, with its holds and the ids that it knows.
//! - The record of a removed budget is removed with the next batch.
//! - Invalid bytes are an error.
//!
//! Not covered:
//! - Parts of a budget: each change writes all of its holds and known ids.

use redb::{ReadTransaction, ReadableTable as _, TableDefinition, WriteTransaction};

use super::codec::InvalidRecord;
use super::error::FileFault;
use crate::kernel::units::Nanos;
use crate::memory::MemoryStore;
use crate::memory::budgets::{ChangedBudget, SavedBudget};

const BUDGETS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("budgets");

/// The budgets of one batch.
#[derive(Debug)]
pub(super) enum BudgetBatch {
    /// The budgets that changed since the last batch.
    Changed(Vec<BudgetRecord>),
    /// All budgets: no other record stays in the file.
    All(Vec<BudgetRecord>),
}

/// The name of a budget, and its encoded state; `None` if it was removed.
type BudgetRecord = (Box<[u8]>, Option<Vec<u8>>);

impl BudgetBatch {
    /// Encodes the budgets that changed since the last batch.
    pub(super) fn changed(memory: &MemoryStore) -> Result<Self, InvalidRecord> {
        encode(memory.take_changed_budgets()).map(Self::Changed)
    }

    /// Encodes all budgets, for the next batch after a failed one.
    pub(super) fn all(memory: &MemoryStore) -> Result<Self, InvalidRecord> {
        encode(memory.take_all_budgets()).map(Self::All)
    }

    /// Returns `true` if the batch changes no record.
    pub(super) const fn is_unchanged(&self) -> bool {
        matches!(self, Self::Changed(records) if records.is_empty())
    }

    /// Writes the records into a transaction.
    pub(super) fn write(&self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let records = match self {
            Self::Changed(records) => records,
            Self::All(records) => {
                transaction.delete_table(BUDGETS)?;
                records
            }
        };
        let mut table = transaction.open_table(BUDGETS)?;
        for (name, state) in records {
            match state {
                Some(state) => table.insert(&**name, &**state)?,
                None => table.remove(&**name)?,
            };
        }
        Ok(())
    }
}

/// Inserts all budgets into `memory`, except those that need not be kept at `now`. A file of an
/// older version has no table of budgets.
pub(super) fn restore(
    read: &ReadTransaction,
    memory: &MemoryStore,
    now: Nanos,
) -> Result<(), FileFault> {
    let table = match read.open_table(BUDGETS) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
        table => table.map_err(redb::Error::from)?,
    };
    for entry in table.iter().map_err(redb::Error::from)? {
        let (name, state) = entry.map_err(redb::Error::from)?;
        if !memory.restore_budget(name.value(), decode(state.value())?, now) {
            return Err(FileFault::TooManyCounters { max_keys: memory.max_keys() });
        }
    }
    Ok(())
}

fn encode(budgets: Vec<ChangedBudget>) -> Result<Vec<BudgetRecord>, InvalidRecord> {
    let encode = |saved| postcard::to_extend(&saved, Vec::new()).map_err(|_| InvalidRecord);
    budgets.into_iter().map(|(name, saved)| Ok((name, saved.map(encode).transpose()?))).collect()
}

fn decode(bytes: &[u8]) -> Result<SavedBudget, InvalidRecord> {
    match postcard::take_from_bytes(bytes) {
        Ok((saved, [])) => Ok(saved),
        _ => Err(InvalidRecord),
    }
}

#[cfg(test)]
mod tests;
