//! The parameters of a concurrency limit in mode `shared`.
//!
//! Guarantees:
//! - The coordinator config is valid for any parameters.

use crate::kernel::concurrency::ClassParts;
use crate::kernel::concurrency::limiter::LimiterConfig;
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::kernel::coordinator::config::MOST;
use crate::kernel::coordinator::{ConcurrencyFallback, CoordinatorConfig, ShareTiming};
use crate::kernel::units::{Nanos, Share};

/// The parameters of a concurrency limit in mode `shared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// The smallest value of the fleet-wide limit.
    pub min: u32,
    /// The initial value of the fleet-wide limit.
    pub start: u32,
    /// The largest value of the fleet-wide limit.
    pub max: u32,
    /// The rule that combines the replicas' votes on the limit.
    pub aggregate: VoteAggregate,
    /// The part of the limit that each class may fill.
    pub classes: ClassParts,
    /// The longest duration of a request.
    pub max_duration: Nanos,
    /// The behavior of the limit during a store outage.
    pub on_failure: ConcurrencyFallback,
}

impl SharedLimit {
    /// Returns the parameters of a limit with the limiter parameters `rules`.
    #[must_use]
    pub fn new(
        rules: &LimiterConfig,
        aggregate: VoteAggregate,
        max_duration: Nanos,
        on_failure: ConcurrencyFallback,
    ) -> Self {
        let start = rules.limit;
        let (min, max) = rules.adaptive.map_or((start, start), |it| (it.min, it.max));
        let classes = rules.classes;
        Self { min, start, max, aggregate, classes, max_duration, on_failure }
    }

    /// Returns the coordinator config of the limit.
    #[must_use]
    pub fn coordinator_config(&self, terms: ShareTiming) -> CoordinatorConfig {
        let [min, start, max] = [self.min, self.start, self.max].map(|it| Share(it.into()));
        let max = max.min(MOST);
        let config = CoordinatorConfig::new(terms, min.min(max), start.min(max), max);
        let aggregate = self.aggregate;
        // Never happens with a validated configuration. A limit of 1 is the safe choice.
        let least = CoordinatorConfig {
            timing: terms,
            min: Share(1),
            start: Share(1),
            max: Share(1),
            aggregate,
            classes: self.classes,
        };
        CoordinatorConfig { aggregate, classes: self.classes, ..config.unwrap_or(least) }
    }
}
