//! The tables of the top keys of one rule.

use parking_lot::Mutex;

use super::list::{TopKeyCollector, TopKeysQuery};
use crate::kernel::top_keys::KeySet;
use crate::kernel::units::{Hits, Nanos};

/// The sets of a table, by the first bits of a key's hash.
pub(super) const SETS: usize = 1 << SET_BITS;
const SET_BITS: u32 = 5;

/// The top keys of one rule.
#[derive(Debug)]
pub(crate) struct RuleTopKeys {
    pub(super) all: KeyTable,
    pub(super) denied: KeyTable,
}

#[derive(Debug)]
pub(super) struct KeyTable {
    pub(super) sets: Box<[Mutex<KeySet>]>,
}

impl RuleTopKeys {
    pub(super) fn new() -> Self {
        Self { all: KeyTable::new(), denied: KeyTable::new() }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        // Every denied hit is also in the list of all hits, except those of concurrency limits.
        [&self.all, &self.denied].iter().all(|table| table.is_idle(now))
    }
}

impl KeyTable {
    pub(super) fn new() -> Self {
        Self { sets: (0..SETS).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn count(&self, hash: u64, hits: Hits, now: Nanos, text: impl FnOnce() -> Box<str>) {
        let index = usize::try_from(hash >> (u64::BITS - SET_BITS)).unwrap_or(0);
        if let Some(set) = self.sets.get(index) {
            set.lock().count(hash, hits, now, text);
        }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.sets.iter().all(|set| set.lock().is_idle(now))
    }

    pub(super) fn add_to(
        &self,
        list: &mut TopKeyCollector,
        rule: (&str, &str),
        query: &TopKeysQuery<'_>,
        now: Nanos,
    ) {
        for set in &self.sets {
            for row in set.lock().rows(query.window, now) {
                list.add(rule, row);
            }
        }
    }
}
