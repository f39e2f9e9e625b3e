//! One version of a table.
//!
//! The rows are in shards of about 800 rows, each behind a pointer. A change copies only the shards
//! that it changes. One hash of the id selects the shard and the entry.
//!
//! Memory: about 55 bytes for a row with a plan and an id of up to 24 bytes.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use compact_str::CompactString;
use hashbrown::{DefaultHashBuilder, HashTable};
use siphasher::sip::SipHasher13;

use crate::cells::{ColumnNumber, Row};
use crate::columns::Columns;
use crate::kernel::units::Nanos;
use crate::{Amount, TableSpec};

/// The mean number of rows in a shard. A table of 1,024 slots has at most 896 entries.
const SHARD_ROWS: usize = 800;

/// One version of a table.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) spec: Arc<TableSpec>,
    /// The amounts of each plan, by the number of the column.
    plans: Arc<[Box<[Option<Amount>]>]>,
    pub(crate) columns: Columns,
    shards: Box<[Arc<Shard>]>,
    hasher: DefaultHashBuilder,
    rows: usize,
    digest: u64,
    /// The changes since the version before; `None` if there is none, or too much changed.
    pub(crate) changes: Option<RowChanges>,
}

/// The ids whose rows differ from an earlier version.
#[derive(Clone, Debug)]
pub(crate) struct RowChanges {
    /// The digest of the earlier version.
    pub(crate) since: u64,
    pub(crate) ids: Vec<CompactString>,
}

impl RowChanges {
    /// The largest number of ids.
    const MAX_IDS: usize = 1_000;

    pub(crate) const fn since(before: &Table) -> Self {
        Self { since: before.digest, ids: Vec::new() }
    }

    pub(crate) fn add(&mut self, id: &CompactString) {
        if self.ids.len() <= Self::MAX_IDS {
            self.ids.push(id.clone());
        }
    }

    /// Returns the changes if all are known.
    pub(crate) fn whole(self) -> Option<Self> {
        (self.ids.len() <= Self::MAX_IDS).then_some(self)
    }
}

type Shard = HashTable<Entry>;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: CompactString,
    pub(crate) row: Row,
}

/// The amount of an id in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The table has no row with this id.
    UnknownId,
    /// Neither the row nor its plan has an amount in this column.
    NoAmount,
    /// The row's own amount, or else its plan's.
    Found(Amount),
}

impl Table {
    /// Creates a table without rows.
    #[must_use]
    pub fn empty(spec: Arc<TableSpec>) -> Self {
        let columns = Columns::of_plans(&spec);
        Self::with_entries(spec, columns, DefaultHashBuilder::default())
    }

    fn with_entries(spec: Arc<TableSpec>, columns: Columns, hasher: DefaultHashBuilder) -> Self {
        let plan = |(_, amounts): &(Box<str>, crate::PlanAmounts)| {
            columns.names().map(|column| amounts.get(column).copied()).collect()
        };
        let plans = spec.plans.iter().map(plan).collect();
        let (shards, rows, digest) = (Box::from([Arc::default()]), 0, 0);
        Self { spec, plans, columns, shards, hasher, rows, digest, changes: None }
    }

    /// Creates an empty table with room for `rows`, and the hash function of `before`.
    pub(crate) fn with_room(
        spec: Arc<TableSpec>,
        columns: Columns,
        (rows, before): (usize, Option<&Self>),
    ) -> Self {
        let hasher =
            before.map_or_else(DefaultHashBuilder::default, |before| before.hasher.clone());
        let mut table = Self::with_entries(spec, columns, hasher);
        let capacity = if rows < SHARD_ROWS { rows } else { SHARD_ROWS };
        let shard = || Arc::new(Shard::with_capacity(capacity));
        table.shards = (0..rows.div_ceil(SHARD_ROWS).max(1)).map(|_| shard()).collect();
        table
    }

    /// The name of the table.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The definition of the table.
    #[must_use]
    pub const fn spec(&self) -> &Arc<TableSpec> {
        &self.spec
    }

    /// The number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// A hash of all rows. Replicas with the same rows have the same digest.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the ids whose rows may differ from those of `before`, at most 1,000; `None` if the ids
    /// are unknown, or more.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> Option<&[CompactString]> {
        if self.digest == before.digest {
            return Some(&[]);
        }
        let changes = self.changes.as_ref().filter(|changes| changes.since == before.digest);
        changes.map(|changes| &*changes.ids)
    }

    /// Returns the number of a column; `None` if no plan and no row has it.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<ColumnNumber> {
        self.columns.find(name)
    }

    /// Returns all numbers that a column has, and perhaps numbers that it had before. The pointer
    /// stays the same until a number is new.
    #[must_use]
    pub fn numbers(&self, column: ColumnNumber) -> Option<&Arc<HashSet<NonZeroU32>>> {
        self.columns.numbers(column)
    }

    /// Returns the row of `id`.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&Row> {
        let hash = self.hasher.hash_one(id);
        let entry = self.shards.get(self.shard_of(hash))?.find(hash, |entry| entry.id == *id)?;
        Some(&entry.row)
    }

    /// Returns the amount of `id` in a column at the instant `now`. Cost: one hash of the id.
    #[inline]
    #[must_use]
    pub fn lookup(&self, id: &str, column: ColumnNumber, now: Nanos) -> Lookup {
        let Some(row) = self.row(id) else { return Lookup::UnknownId };
        self.amount(row, column, now).map_or(Lookup::NoAmount, Lookup::Found)
    }

    /// Returns the amount of a row in a column at the instant `now`.
    #[must_use]
    pub fn amount(&self, row: &Row, column: ColumnNumber, now: Nanos) -> Option<Amount> {
        let own = row.own.as_deref().filter(|own| own.until.is_none_or(|until| now < until));
        let own = own.and_then(|own| own.amounts.iter().find(|(other, _)| *other == column));
        own.map(|(_, amount)| *amount).or_else(|| self.plan_amount(row, column))
    }

    /// Returns the amount of a row's plan in a column.
    #[must_use]
    pub fn plan_amount(&self, row: &Row, column: ColumnNumber) -> Option<Amount> {
        let plan = self.plans.get(row.plan? as usize)?;
        *plan.get(usize::from(column.0))?
    }

    /// Returns the name of a row's plan.
    #[must_use]
    pub fn plan_name(&self, row: &Row) -> Option<&str> {
        self.spec.plans.get(row.plan? as usize).map(|(name, _)| &**name)
    }

    /// Returns the own amounts of a row by column, and their end.
    pub fn own_amounts<'t>(
        &'t self,
        row: &'t Row,
    ) -> (impl Iterator<Item = (&'t str, Amount)>, Option<Nanos>) {
        let own = row.own.as_deref();
        let amounts = own.into_iter().flat_map(|own| own.amounts.iter());
        let named = amounts.map(|(column, amount)| (self.columns.name(*column), *amount));
        (named, own.and_then(|own| own.until))
    }

    /// Returns all rows with their ids, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Row)> {
        let entries = self.shards.iter().flat_map(|shard| shard.iter());
        entries.map(|entry| (&*entry.id, &entry.row))
    }

    /// Returns the columns, those of plans first.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.names()
    }

    /// Sets the row of an id. Returns the one that it replaces.
    pub(crate) fn insert(&mut self, entry: Entry) -> Option<Row> {
        let added = self.entry_digest(&entry);
        let (hash, hasher) = (self.hasher.hash_one(&*entry.id), self.hasher.clone());
        let number = self.shard_of(hash);
        let shard = Arc::make_mut(self.shards.get_mut(number)?);
        let before = if let Some(other) = shard.find_mut(hash, |other| other.id == entry.id) {
            Some(std::mem::replace(other, entry))
        } else {
            shard.insert_unique(hash, entry, |entry| hasher.hash_one(&*entry.id));
            self.rows += 1;
            None
        };
        let removed = before.as_ref().map_or(0, |before| self.entry_digest(before));
        self.digest = self.digest.wrapping_add(added).wrapping_sub(removed);
        before.map(|before| before.row)
    }

    /// Adds the rows of `before` whose ids this table lacks.
    pub(crate) fn keep_missing(&mut self, before: &Self) {
        for (id, row) in before.iter() {
            if self.row(id).is_none()
                && let Ok(row) = self.columns.keep(&before.columns, row)
            {
                self.insert(Entry { id: CompactString::from(id), row });
            }
        }
    }

    /// Removes the row of an id. Returns `true` if there was one.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        let hash = self.hasher.hash_one(id);
        let number = self.shard_of(hash);
        let shard = self.shards.get_mut(number).map(Arc::make_mut);
        let found = shard.and_then(|shard| shard.find_entry(hash, |entry| entry.id == *id).ok());
        let Some(found) = found else { return false };
        let (entry, _) = found.remove();
        self.rows -= 1;
        self.digest = self.digest.wrapping_sub(self.entry_digest(&entry));
        true
    }

    /// The bits that select the shard. `HashTable` uses the lowest and the highest ones.
    fn shard_of(&self, hash: u64) -> usize {
        let bits = (hash >> 20) & 0xffff_ffff;
        usize::try_from((bits * self.shards.len() as u64) >> 32).unwrap_or(0)
    }

    /// Depends on names, not on the numbers of plans and columns, which differ between replicas.
    fn entry_digest(&self, entry: &Entry) -> u64 {
        let mut hasher = SipHasher13::new();
        hasher.write(entry.id.as_bytes());
        hasher.write(&[0xff]);
        hasher.write(self.plan_name(&entry.row).unwrap_or_default().as_bytes());
        let (amounts, until) = self.own_amounts(&entry.row);
        let amounts: u64 = amounts.map(amount_digest).fold(0, u64::wrapping_add);
        hasher.write_u64(amounts);
        hasher.write_u64(until.map_or(0, |until| until.0));
        hasher.finish()
    }
}

fn amount_digest((column, amount): (&str, Amount)) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(column.as_bytes());
    hasher.write_u64(match amount {
        Amount::Number(number) => number.get().into(),
        Amount::Blocked => 0,
        Amount::Unlimited => u64::MAX,
    });
    hasher.finish()
}
