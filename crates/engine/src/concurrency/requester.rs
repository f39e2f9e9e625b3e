//! The classes and customers of a concurrency limit: those of a check, and those that use the limit.

use super::bucket_name::limit_of_bucket;
use crate::Engine;
use crate::check_text::short_value;
use crate::config::Config;
use crate::config::concurrency::ConcurrencyLimit;
use crate::kernel::concurrency::{ClassUse, CustomerUse, Requester};
use crate::kernel::decision::Check;
use crate::telemetry::metrics::METRICS;

/// The most customers of a [`RequestersInUse`].
const MAX_CUSTOMERS: usize = 10;

/// The classes and customers that use a bucket.
#[derive(Clone, Debug, Default)]
pub struct RequestersInUse {
    /// The classes with their names and the requests that the limit rejected in this process.
    pub classes: Vec<(Box<str>, ClassUse, u64)>,
    /// The customers with the most requests, each with its name as `telemetry.descriptor_values`
    /// selects. `None`: the requests that count as one customer together.
    pub customers: Vec<(Option<String>, CustomerUse)>,
}

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

    /// Returns the classes and customers that use a bucket of this replica. `None` if its limit does
    /// not tell requests apart, or there is no such bucket.
    #[must_use]
    pub fn requesters_in_use(&self, bucket: &[u8]) -> Option<RequestersInUse> {
        let config = self.config()?;
        let limit = limit_of_bucket(&config, bucket, self.clock().now())?;
        let names = &limit.requesters.as_ref()?.keys.class_names;
        let (classes, customers) = self.concurrency_limits.requesters(bucket, MAX_CUSTOMERS)?;
        let classes = names.iter().zip(classes).map(|(name, requests)| {
            (name.clone(), requests, METRICS.class_rejections(&limit.path, name))
        });
        let values = self.policy.descriptor_values;
        let customers = customers.into_iter().map(|customer| {
            let name = || customer.name.as_deref().map(|name| short_value(name, values));
            let name = customer.requests.customer.map(|_| name().unwrap_or_else(|| "?".to_owned()));
            (name, customer.requests)
        });
        Some(RequestersInUse { classes: classes.collect(), customers: customers.collect() })
    }
}
