//! The names of buckets: the domain, and the entries that a concurrency limit counts by.

use crate::config::Config;
use crate::config::concurrency::ConcurrencyLimit;
use crate::config::tree::{self, ConcurrencyMatch};
use crate::kernel::key::CounterKey;

/// Returns the name of the bucket of a descriptor that matches a concurrency limit.
pub(crate) fn bucket_of<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    found: &'e ConcurrencyMatch<'_>,
) -> CounterKey {
    CounterKey::concurrency_bucket(domain, tree::counter_entries(entries, &found.shared))
}

pub(crate) fn limit_of_bucket<'c>(config: &'c Config, name: &[u8]) -> Option<&'c ConcurrencyLimit> {
    let (domain, entries) = CounterKey::parse_concurrency_bucket(name)?;
    let covered = config.domains.get(domain)?.tree.lookup_concurrency_limit(entries)?;
    Some(covered.limit)
}
