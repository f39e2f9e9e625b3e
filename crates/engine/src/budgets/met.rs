//! The budgets that requests of this replica met.
//!
//! Guarantees:
//! - At most 1,000 budgets are kept. The last [`GENERATION`] are always among them.
//!
//! Not covered:
//! - Other replicas, and requests before the start of the process.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::kernel::key::CounterKey;

/// The budgets after which a new generation starts. Two generations are kept.
const GENERATION: usize = 500;

/// The keys of the budgets that requests met.
#[derive(Debug, Default)]
pub(crate) struct MetBudgets(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    recent: HashSet<CounterKey, RandomState>,
    earlier: HashSet<CounterKey, RandomState>,
}

impl MetBudgets {
    pub(super) fn add<'k>(&self, keys: impl Iterator<Item = &'k CounterKey>) {
        let mut met = self.0.lock();
        for key in keys {
            if met.recent.contains(key) {
                continue;
            }
            if GENERATION <= met.recent.len() {
                met.earlier = std::mem::take(&mut met.recent);
            }
            met.recent.insert(key.clone());
        }
    }

    pub(super) fn all(&self) -> Vec<CounterKey> {
        let met = self.0.lock();
        met.recent.union(&met.earlier).cloned().collect()
    }
}
