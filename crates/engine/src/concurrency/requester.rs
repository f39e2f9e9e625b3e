//! The class and the customer of a check.

use crate::Engine;
use crate::config::Config;
use crate::config::concurrency::ConcurrencyLimit;
use crate::kernel::concurrency::Requester;
use crate::kernel::decision::Check;

impl Engine {
    /// Returns the class and the customer of a check, as `limit` tells them apart.
    pub(super) fn requester(
        &self,
        config: &Config,
        limit: &ConcurrencyLimit,
        check: &Check<'_>,
    ) -> Requester {
        let Some(rule) = &limit.requesters else { return Requester::ANY };
        let weight_of = |customer: &str| match &rule.weight {
            None => Some(1),
            Some(column) => config.tables.weight(column, customer, self.clock().now()),
        };
        self.concurrency_limits.requester(&rule.keys, |key| check.value_of(key), weight_of)
    }
}
