//! Samples the history of an engine.

use super::{STEP, Sample, Series};
use crate::Engine;
use crate::kernel::units::Nanos;
use crate::rule_counters::{RuleActivity, RuleHash, rule_hash};
use crate::telemetry::metrics::METRICS;
use std::collections::HashMap;
use std::time::Duration;

impl Engine {
    /// Samples the history at the end of each step, forever.
    pub async fn sample_history_forever(&self) {
        loop {
            let passed = self.clock.now().0 % STEP.0;
            tokio::time::sleep(Duration::from_nanos(STEP.0 - passed)).await;
            self.sample_history();
        }
    }

    /// Adds the step that has just ended to the history.
    pub fn sample_history(&self) {
        let step = (self.clock.now().0 / STEP.0).saturating_sub(1);
        let rules =
            self.active.load().as_ref().map_or_else(Vec::new, |active| active.counters.samples());
        let limits = self.concurrency_in_use().into_iter().map(|(path, usage)| {
            let rtt = usage.busiest.and_then(|busiest| busiest.rtt).unwrap_or_default();
            (path, [usage.limit, usage.in_flight, usage.waiting, rtt.0 / Nanos::MICRO.0])
        });
        let (checks, limits) = (METRICS.verdict_counts(), limits.collect());
        self.live.history.lock().add(Sample { step, checks, rules, limits });
    }

    /// Returns the decisions and the used share of all rules at this replica, by
    /// [`crate::rule_counters::rule_hash`].
    #[must_use]
    pub fn rule_activity(&self) -> HashMap<RuleHash, RuleActivity> {
        let Some(active) = self.active.load_full() else { return HashMap::new() };
        let history = self.live.history.lock();
        let activity = active.counters.activity().map(|((domain, path), mut activity)| {
            let last = history.last_used(&(domain.into(), path.into()));
            activity.used = activity.used.max(u32::try_from(last).unwrap_or(u32::MAX));
            (rule_hash(domain, path), activity)
        });
        activity.collect()
    }

    /// Returns the history of a concurrency limit at this replica. `None` if it has none.
    #[must_use]
    pub fn limit_history(&self, path: &str) -> Option<Series> {
        self.live.history.lock().limit(path).cloned()
    }
}
