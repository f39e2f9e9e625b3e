//! Lists the budgets that requests of this replica met.
//!
//! Guarantees:
//! - At most 1,000 budgets are kept. The last [`GENERATION`] are always among them.
//! - A list reads each budget with a store call of its own, because they may be in different slots of
//!   a Redis Cluster. At most [`READS_AT_ONCE`] calls run at once.
//!
//! Not covered:
//! - Other replicas, and requests before the start of the process.
//! - Budgets that no request can meet any more after a reload.
//! - Budgets of networks: their keys name no address.

use std::cmp::Reverse;
use std::collections::HashSet;

use foldhash::fast::RandomState;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::BudgetStatus;
use super::plan::BudgetPlan;
use crate::active_config::ActiveConfig;
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Hits;
use crate::{CheckError, Engine};

/// The budgets after which a new generation starts. Two generations are kept.
const GENERATION: usize = 500;

/// The most store calls of a list that run at once.
const READS_AT_ONCE: usize = 32;

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

    fn all(&self) -> Vec<CounterKey> {
        let met = self.0.lock();
        met.recent.union(&met.earlier).cloned().collect()
    }
}

impl Engine {
    /// Returns the budgets that the last requests of this replica met, of one domain or of all, with
    /// the usage of their last periods. Those with the largest used share come first.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn list_budgets(
        &self,
        domain: Option<&str>,
    ) -> Result<Vec<BudgetStatus>, CheckError> {
        let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
        let mut budgets = Vec::new();
        for keys in self.met_budgets.all().chunks(READS_AT_ONCE) {
            let reads = keys.iter().map(|key| self.read_met(&config, key, domain));
            for read in join_all(reads).await {
                budgets.extend(read?);
            }
        }
        budgets.sort_by(|a, b| {
            let order = |it: &BudgetStatus| Reverse(it.used_millionths());
            order(a).cmp(&order(b)).then_with(|| a.key.as_bytes().cmp(b.key.as_bytes()))
        });
        Ok(budgets)
    }

    /// Reads a budget by its key. `None` if the configuration or the domain does not have it.
    async fn read_met(
        &self,
        config: &ActiveConfig,
        key: &CounterKey,
        wanted: Option<&str>,
    ) -> Result<Option<BudgetStatus>, CheckError> {
        let parsed = CounterKey::parse_budget(key.as_bytes());
        let of_domain = |(domain, _): &(&str, _)| wanted.is_none_or(|wanted| wanted == *domain);
        let Some((domain, entries)) = parsed.filter(of_domain) else { return Ok(None) };
        let (entries, cost) = (entries.into_iter().collect(), Cost::Charge(Hits(0)));
        let descriptors = std::iter::once(Descriptor { entries, cost, limit: None }).collect();
        let check = Check { domain, descriptors };
        let Some(mut plan) = BudgetPlan::new(config, &check, self.clock.now()) else {
            return Ok(None);
        };
        plan.budgets.retain(|budget| budget.key == *key);
        if plan.budgets.is_empty() {
            return Ok(None);
        }
        Ok(self.read_planned(config, &plan, None).await?.pop())
    }
}
