//! The configuration that decides checks, with the counters of its rules.

use std::ops::Deref;
use std::sync::Arc;

use crate::config::Config;
use crate::engine::rule_counters::RuleCounters;

/// The configuration that decides checks, with the counters of its rules.
#[derive(Debug)]
pub(in crate::engine) struct ActiveConfig {
    pub(in crate::engine) config: Arc<Config>,
    pub(in crate::engine) counters: RuleCounters,
}

impl Deref for ActiveConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}
