//! The names of buckets: the domain, and the entries that a concurrency limit counts by.

use crate::Engine;
use crate::check_text::entries_text;
use crate::config::Config;
use crate::config::concurrency::ConcurrencyLimit;
use crate::config::descriptor_text::format_entries;
use crate::config::settings::DescriptorValues;
use crate::config::table_limits::FromTable;
use crate::config::tree::{self, ConcurrencyMatch};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, UnknownTableId};

/// Returns the name of the bucket of a descriptor that matches a concurrency limit.
pub(crate) fn bucket_of<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    found: &'e ConcurrencyMatch<'_>,
) -> CounterKey {
    CounterKey::concurrency_bucket(domain, tree::counter_entries(entries, &found.shared))
}

/// Returns the limit of a bucket. `None` if no limit covers it, or if its table says `unlimited`.
pub(crate) fn limit_of_bucket<'c>(
    config: &'c Config,
    name: &[u8],
    now: Nanos,
) -> Option<&'c ConcurrencyLimit> {
    let (domain, entries) = CounterKey::parse_concurrency_bucket(name)?;
    let tree = &config.domains.get(domain)?.tree;
    let covered = tree.lookup_concurrency_limit(entries.iter().copied())?;
    limit_from_table(config, covered.limit, &entries, now)
}

/// Returns the concurrency limit that applies to the id in `entries`. `None` if its table says
/// `unlimited`.
pub(crate) fn limit_from_table<'c>(
    config: &'c Config,
    limit: &'c ConcurrencyLimit,
    entries: &[(&str, &str)],
    now: Nanos,
) -> Option<&'c ConcurrencyLimit> {
    let Some(column) = limit.from.as_deref() else { return Some(limit) };
    let id = entries.get(column.entry).map_or("", |(_, id)| *id);
    match config.tables.concurrency_limit(column, id, now) {
        FromTable::Limit(sized) => Some(sized),
        // A concurrency limit has a limit of its own for a blocked id.
        FromTable::RuleNumber | FromTable::Blocked => Some(limit),
        FromTable::UnknownId => {
            UnknownTableId.emit();
            Some(limit)
        }
        FromTable::Unlimited => None,
    }
}

impl Engine {
    /// Returns the domain and the descriptor of a bucket, with values as `telemetry.descriptor_values`
    /// selects.
    #[must_use]
    pub fn bucket_text<'n>(&self, name: &'n [u8]) -> (&'n str, String) {
        let Some((domain, entries)) = CounterKey::parse_concurrency_bucket(name) else {
            return ("", String::new());
        };
        match self.policy.descriptor_values {
            DescriptorValues::Shown => (domain, format_entries(entries)),
            values => (domain, entries_text(&entries, values)),
        }
    }
}
