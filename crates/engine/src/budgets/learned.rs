//! The learned costs of requests, for `estimate: learn`.
//!
//! Guarantees:
//! - A budget and a model have costs of their own.
//! - At most [`MAX_LEARNERS`] are kept; a new one replaces any other.
//!
//! Not covered:
//! - Other replicas, and a restart: each process learns from the requests that it settles.

use std::collections::HashMap;

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use crate::kernel::budget::{Amount, CostLearner};
use crate::kernel::key::CounterKey;

/// The most budgets and models whose costs are kept: 7 MB.
const MAX_LEARNERS: usize = 16_384;

/// The learned costs, by a hash of budget and model.
#[derive(Debug, Default)]
pub(crate) struct LearnedCosts(Mutex<HashMap<u64, CostLearner>>);

impl LearnedCosts {
    pub(super) fn observe(&self, budget: &CounterKey, model: &str, cost: Amount) {
        let (mut learners, key) = (self.0.lock(), key_of(budget, model));
        if MAX_LEARNERS <= learners.len()
            && !learners.contains_key(&key)
            && let Some(any) = learners.keys().next().copied()
        {
            learners.remove(&any);
        }
        learners.entry(key).or_default().observe(cost);
    }

    pub(super) fn estimate(&self, budget: &CounterKey, model: &str) -> Option<Amount> {
        self.0.lock().get(&key_of(budget, model))?.estimate()
    }
}

fn key_of(budget: &CounterKey, model: &str) -> u64 {
    SipHasher24::new().hash(&[budget.as_bytes(), b"\xff", model.as_bytes()].concat())
}
