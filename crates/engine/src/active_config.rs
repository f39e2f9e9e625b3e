//! The configuration that decides checks, with the counters of its rules.

use std::ops::Deref;
use std::sync::Arc;

use crate::config::Config;
use crate::rule_counters::RuleCounters;

/// The configuration that decides checks, with the counters of its rules.
#[derive(Debug)]
pub(crate) struct ActiveConfig {
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<RuleCounters>,
    /// `true` if a domain has a budget.
    pub(crate) has_budgets: bool,
}

impl ActiveConfig {
    pub(crate) fn new(config: Arc<Config>, counters: Arc<RuleCounters>) -> Self {
        let mut domains = config.domains.values();
        let has_budgets = domains.any(|domain| domain.tree.budgets().len() != 0);
        Self { config, counters, has_budgets }
    }

    /// Returns `true` if `other` differs only in its tables.
    pub(crate) fn has_rules_of(&self, other: &Config) -> bool {
        Arc::ptr_eq(&self.config.domains, &other.domains)
    }
}

impl Deref for ActiveConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}
