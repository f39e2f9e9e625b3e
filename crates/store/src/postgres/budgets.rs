//! Calls to budgets, applied to their rows.
//!
//! | row | name | state |
//! |---|---|---|
//! | budget | that of the budget | the budget, with ids that expired |
//! | ended ids | that of the budget, and the number of a bucket | the ids that ended, by their hash |
//!
//! Guarantees:
//! - The kernel decides, so the results equal those of the memory store.
//! - A call changes all of its budgets or none.
//! - A call loads one of [`BUCKETS`] buckets, so ids that ended cost little.
//! - A bucket has at most [`MAX_BUCKET_IDS`] ids; further ones replace those that end first.
//! - A read writes no row, and a denied reserve creates none.
//! - A row stays while its budget must be kept.
//!
//! Not covered:
//! - The exact order in which a full budget forgets: each bucket forgets its own oldest ids.
//! - Ids that ended under a clock that was ahead: they stay known until that instant.

use std::cmp::Reverse;
use std::hash::Hasher as _;

use smallvec::SmallVec;

use super::super::StoreFailure;
use super::super::budgets::{BudgetAction, BudgetCall, BudgetPart, BudgetReply};
use super::queue::StoreOperation;
use super::rows::{RowKey, RowKind, Rows, row_key};
use crate::kernel::budget::{Budget, Entry, HoldId, MAX_ENTRIES};
use crate::kernel::units::Nanos;

/// The number of rows for the ended ids of one budget.
const BUCKETS: u8 = 64;

/// The most ended ids in one row.
const MAX_BUCKET_IDS: usize = MAX_ENTRIES / BUCKETS as usize;

/// The ids that ended, in one row.
type EndedIds = Vec<(HoldId, Entry)>;

/// One call to the budgets of a check.
pub(super) struct BudgetOperation {
    call: BudgetCall,
    /// The rows of the budgets, and then their buckets. A call without an id needs no buckets.
    keys: Vec<RowKey>,
}

impl BudgetOperation {
    pub(super) fn new(call: &BudgetCall, prefix: &str) -> Self {
        let names = || call.budgets.iter().map(|part| part.key.as_bytes());
        let mut keys: Vec<_> = names().map(|name| row_key(prefix, RowKind::Budget, name)).collect();
        if !matches!(call.action, BudgetAction::Charge | BudgetAction::Read) {
            let bucket = [bucket_number(call.id)];
            keys.extend(
                names().map(|name| row_key(prefix, RowKind::EndedIds, &[name, &bucket].concat())),
            );
        }
        Self { call: call.clone(), keys }
    }

    fn bucket_key(&self, index: usize) -> Option<&RowKey> {
        self.keys.get(self.call.budgets.len() + index)
    }

    /// Reads the row of each budget, and its bucket in the order of ids.
    fn load(&self, rows: &Rows) -> Result<SmallVec<[(Budget, EndedIds); 2]>, StoreFailure> {
        let load = |index: usize| {
            let budget: Budget = rows.read(&self.keys[index])?.unwrap_or_default();
            let bucket = self.bucket_key(index).map(|key| rows.read::<EndedIds>(key));
            let mut ended = bucket.transpose()?.flatten().unwrap_or_default();
            ended.sort_unstable_by_key(|(id, _)| *id);
            Ok((budget, ended))
        };
        (0..self.call.budgets.len()).map(load).collect()
    }

    /// Writes the rows of the budget `index` that a call changed.
    fn save(
        &self,
        rows: &mut Rows,
        index: usize,
        (before, ended_before): (Budget, EndedIds),
        after: Budget,
    ) -> Result<(), StoreFailure> {
        let is_in_bucket = |id: HoldId| {
            let was_in_bucket = ended_before.binary_search_by_key(&id, |(id, _)| *id).is_ok();
            self.bucket_key(index).is_some() && (id == self.call.id || was_in_bucket)
        };
        let (after, ended) = after.split_ended(is_in_bucket);
        if after != before {
            self.write_budget(rows, index, &after)?;
        }
        match self.bucket_key(index) {
            Some(bucket) if ended != ended_before => write_ended(rows, bucket, ended),
            _ => Ok(()),
        }
    }

    /// Writes the row of a budget. A budget that need not be kept gets no new row.
    fn write_budget(
        &self,
        rows: &mut Rows,
        index: usize,
        budget: &Budget,
    ) -> Result<(), StoreFailure> {
        let (now, key, BudgetPart { terms, .. }) =
            (rows.now(), &self.keys[index], &self.call.budgets[index]);
        let keep_until = budget.keep_until(terms, now).unwrap_or(Nanos(u64::MAX));
        if keep_until <= now && !rows.contains(key) {
            return Ok(());
        }
        rows.write(key, budget, keep_until)
    }
}

impl StoreOperation for BudgetOperation {
    type Reply = BudgetReply;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn read_only_keys(&self) -> usize {
        if self.call.action == BudgetAction::Read { self.keys.len() } else { 0 }
    }

    fn apply(&self, rows: &mut Rows) -> Result<BudgetReply, StoreFailure> {
        // An unreadable row fails here, before another row changes.
        let stored = self.load(rows)?;
        let with_ended = |(budget, ended): &(Budget, EndedIds)| {
            let mut budget = budget.clone();
            budget.add_ended(ended.iter().copied());
            budget
        };
        let mut budgets: SmallVec<[Budget; 2]> = stored.iter().map(with_ended).collect();
        if self.call.action == BudgetAction::Read {
            return Ok(self.call.apply(&mut budgets, rows.now()));
        }
        let reply = self.call.apply(&mut budgets, rows.now());
        for (index, (before, after)) in stored.into_iter().zip(budgets).enumerate() {
            self.save(rows, index, before, after)?;
        }
        Ok(reply)
    }
}

/// Writes a bucket. Above the bound, the ids that end first are forgotten.
fn write_ended(rows: &mut Rows, key: &RowKey, mut ended: EndedIds) -> Result<(), StoreFailure> {
    if MAX_BUCKET_IDS < ended.len() {
        ended.sort_unstable_by_key(|(_, entry)| Reverse(entry.until()));
        ended.truncate(MAX_BUCKET_IDS);
    }
    let last = ended.iter().map(|(_, entry)| entry.until()).max();
    rows.write(key, &ended, last.unwrap_or(rows.now()))
}

fn bucket_number(id: HoldId) -> u8 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(&id.0.to_le_bytes());
    hasher.write(&id.1.to_le_bytes());
    u8::try_from(hasher.finish() % u64::from(BUCKETS)).unwrap_or(0)
}
