//! How much of each concurrency limit is in use, for metrics and pages.

use std::collections::{HashMap, HashSet};

use super::bucket_name::{bucket_of, limit_of_bucket};
use crate::Engine;
use crate::concurrency::{BucketLoad, BucketMetrics, BucketName};
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::proxies::ProxyBucket;

/// The usage of one concurrency limit, summed over its buckets.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    /// The buckets at this replica and at each connected proxy; one name may count several times.
    pub buckets: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of requests in queues.
    pub waiting: u64,
    /// The sum of the buckets' limits. For a strict limit, only this replica's part.
    pub limit: u64,
    /// The bucket of this replica with the most requests in flight.
    pub busiest: Option<BucketMetrics>,
    /// The name of that bucket.
    pub busiest_name: Option<BucketName>,
}

impl ConcurrencyUsage {
    fn add(&mut self, load: BucketLoad, limit: u32) {
        let BucketLoad { in_flight, waiting, .. } = load;
        self.buckets = self.buckets.saturating_add(1);
        self.in_flight = self.in_flight.saturating_add(in_flight.into());
        self.waiting = self.waiting.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX));
        self.limit = self.limit.saturating_add(limit.into());
    }

    fn add_busiest(&mut self, name: &BucketName, metrics: BucketMetrics) {
        if self.busiest.is_none_or(|busiest| busiest.load.in_flight < metrics.load.in_flight) {
            (self.busiest, self.busiest_name) = (Some(metrics), Some(name.clone()));
        }
    }
}

impl Engine {
    /// Returns a snapshot of the bucket of a descriptor. `None` if no concurrency limit covers the
    /// descriptor, or its bucket does not exist.
    #[must_use]
    pub fn concurrency_snapshot(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Option<BucketMetrics> {
        let config = self.config()?;
        let tree = &config.domains.get(domain)?.tree;
        let found = tree.lookup_concurrency_limit(entries.iter().copied())?;
        let bucket = bucket_of(domain, entries.iter().copied(), &found);
        self.concurrency_limits.snapshot(bucket.as_bytes())
    }

    /// Returns the usage of each concurrency limit by its path, summed over its buckets at this
    /// replica and at the proxies that are connected to it.
    ///
    /// For a strict limit, only this replica's part of the limit counts, so that sums over replicas
    /// are correct.
    #[must_use]
    pub fn concurrency_in_use(&self) -> HashMap<Box<str>, ConcurrencyUsage> {
        let Some(config) = self.config() else { return HashMap::new() };
        let mut in_use: HashMap<Box<str>, ConcurrencyUsage> = HashMap::new();
        let mut counted: HashSet<Box<[u8]>> = HashSet::new();
        let now = self.clock().now();
        for (name, metrics) in self.concurrency_limits.snapshots() {
            if let Some(ceiling) = limit_of_bucket(&config, &name, now) {
                let limit = self.metric_limit(ceiling, &name, metrics.load.limit);
                let usage = in_use.entry(ceiling.path.clone()).or_default();
                usage.add(metrics.load, limit);
                usage.add_busiest(&name, metrics);
            }
            counted.insert(name);
        }
        for proxy in self.proxies().list() {
            for ProxyBucket { bucket, load } in proxy.concurrency {
                if let Some(limit) = limit_of_bucket(&config, &bucket, now) {
                    // This replica's part of a strict limit is added once for each bucket, not again for
                    // each proxy.
                    let is_strict = limit.mode == Some(ConcurrencyMode::Strict);
                    let is_counted = is_strict && counted.contains(&bucket);
                    let part = self.metric_limit(limit, &bucket, load.limit);
                    let part = if is_counted { 0 } else { part };
                    in_use.entry(limit.path.clone()).or_default().add(load, part);
                    counted.insert(bucket);
                }
            }
        }
        in_use
    }

    fn metric_limit(&self, concurrency_limit: &ConcurrencyLimit, name: &[u8], limit: u32) -> u32 {
        let fleet = self
            .concurrency_limits
            .fleet_reporter()
            .filter(|_| concurrency_limit.mode == Some(ConcurrencyMode::Strict));
        fleet.map_or(limit, |fleet| fleet.metric_part(name, limit))
    }
}
