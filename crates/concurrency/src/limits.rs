//! Acquires and releases the permits of this replica's concurrency limits, and queues requests that
//! wait for a permit.
//!
//! Guarantees:
//! - A permit is released exactly once: [`PermitGuard`] releases it when dropped.
//! - A canceled acquire leaves the queue, or releases a permit that it was just granted.
//! - No request waits longer than the timeouts of its [`PermitRequest`].
//! - The number of buckets is bounded. A bucket is removed after 10 idle minutes, or for a new one.
//!
//! Not covered:
//! - The choice to allow, queue or reject: see [`Limiter`](crate::kernel::concurrency::Limiter).
//! - Request ids: see [`PermitRegistry`](crate::kernel::concurrency::PermitRegistry).
//! - The limits that cover a request.
//!
//! Cost: an acquire locks the map of buckets for one look-up, then its bucket. A release locks only
//! its bucket.

mod bucket;
mod bucket_load;
mod bucket_map;
mod permit_guard;
pub mod queue_time;
mod replica_share;
pub mod reporter;
mod request;
mod requesters;
mod shared_limit;
mod strict;
mod strict_limit;
mod usage;

use std::any::Any;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use sluicegate_lease::clock::Clock;

use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{AcquireDenial, LimiterConfig, LimiterEvent};
use crate::kernel::concurrency::{ClassUse, Permit, Requester, RequesterKeys, RequesterUse};
use crate::kernel::units::{Nanos, Revision};
use crate::limits::bucket::{AcquireStep, Bucket};
use crate::limits::bucket_load::NO_LIMIT;
pub use crate::limits::bucket_load::{BucketLoad, BucketMetrics, BucketName, BucketTotals};
use crate::limits::bucket_map::BucketMap;
pub use crate::limits::permit_guard::PermitGuard;
pub use crate::limits::queue_time::{with_queue_slots, with_queue_time};
pub use crate::limits::replica_share::ShareSnapshot;
use crate::limits::reporter::FleetReporter;
pub use crate::limits::request::{AcquireError, PermitRequest};
use crate::limits::requesters::CustomerNames;
pub use crate::limits::requesters::NamedCustomer;
pub use crate::limits::shared_limit::SharedLimit;
pub use crate::limits::strict_limit::{StrictLimit, StrictSnapshot};

/// The interval of [`ConcurrencyLimits::sweep`]. In a bucket without traffic, a permit is released
/// at most this long after its deadline.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// An idle bucket is removed after this time. Its learned adaptive limit is lost then.
const IDLE_BUCKET_LIFETIME: Nanos = Nanos::from_secs(600);

/// All concurrency limits of this replica, as buckets by name.
#[derive(Debug)]
pub struct ConcurrencyLimits {
    clock: Arc<Clock>,
    buckets: RwLock<BucketMap>,
    jitter: u64,
    customers: CustomerNames,
    fleet_reporter: Option<Arc<FleetReporter>>,
    start_queue_span: fn() -> QueueSpan,
}

/// The trace span of a wait in a queue. It ends when this is dropped.
pub type QueueSpan = Option<Box<dyn Any + Send>>;

impl ConcurrencyLimits {
    /// Creates an empty set of at most `most` buckets.
    ///
    /// The names of all buckets together have at most `most` × 512 bytes, or 1 MiB if that is more.
    /// At either bound, a new bucket replaces an idle one. `jitter` is a number that differs
    /// between replicas, so that they do not measure the min RTT of adaptive limits at the same
    /// time.
    #[must_use]
    pub fn new(clock: Arc<Clock>, most: usize, jitter: u64) -> Self {
        let buckets = RwLock::new(BucketMap::new(most));
        Self {
            clock,
            buckets,
            jitter,
            customers: CustomerNames::default(),
            fleet_reporter: None,
            start_queue_span: || None,
        }
    }

    /// Adds the fleet reporter, which fleet-wide limits need.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<FleetReporter>) -> Self {
        Self { fleet_reporter: Some(fleet), ..self }
    }

    /// Starts a trace span with `start` for each wait in a queue.
    #[must_use]
    pub fn with_queue_spans(self, start: fn() -> QueueSpan) -> Self {
        Self { start_queue_span: start, ..self }
    }

    pub(crate) const fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    pub(crate) fn queue_span(&self) -> QueueSpan {
        (self.start_queue_span)()
    }

    /// Returns the class and the customer of a check. `value_of` returns the value of the first entry
    /// with a key. `weight_of` returns the weight of a customer; `None` counts it with all unknown ones.
    pub fn requester<'v>(
        &self,
        keys: &RequesterKeys,
        value_of: impl Fn(&str) -> Option<&'v str>,
        weight_of: impl FnOnce(&str) -> Option<u32>,
    ) -> Requester {
        self.customers.requester(keys, value_of, weight_of)
    }

    /// Returns the users of a bucket: its classes, and the `most` customers with the most requests.
    /// `None` if there is no such bucket.
    #[must_use]
    pub fn requesters(
        &self,
        bucket: &[u8],
        most: usize,
    ) -> Option<(Vec<ClassUse>, Vec<NamedCustomer>)> {
        let bucket = self.buckets.read().get(bucket).cloned()?;
        let RequesterUse { classes, customers } = bucket.requesters(most);
        Some((classes, self.customers.names_of(customers)))
    }

    /// Returns the fleet reporter, if this replica belongs to a fleet.
    #[must_use]
    pub fn fleet_reporter(&self) -> Option<&FleetReporter> {
        self.fleet_reporter.as_deref()
    }

    /// Acquires a permit, and waits in the queue if the request has a queue timeout. Safe to
    /// cancel: a dropped future leaves neither a queue entry nor a permit behind.
    ///
    /// # Errors
    /// The reason of the rejection. The request has no permit then.
    pub async fn acquire(
        &self,
        mut request: PermitRequest<'_>,
    ) -> Result<PermitGuard, AcquireError> {
        let mut waited = false;
        loop {
            let bucket = self.find_or_create_bucket(&request)?;
            let fleet = self.fleet_reporter();
            // `None`: the bucket was removed from the map in the meantime. The next look-up creates
            // a new one.
            let Some(step) = bucket.try_acquire(&self.clock, &request, fleet, waited) else {
                continue;
            };
            return match step {
                AcquireStep::ShareUnknown(answers) => {
                    waited = true;
                    let started_at = self.clock.steady();
                    if let Some(fleet) = fleet {
                        fleet.wait_for_reply(answers, request.store_timeout).await;
                    }
                    request.queue_timeout =
                        request.queue_timeout.since(self.clock.steady().since(started_at));
                    continue;
                }
                AcquireStep::Allowed(permit) => {
                    Ok(self.guard(bucket, permit, request.permit_lifetime))
                }
                AcquireStep::Rejected(AcquireDenial::LimitReached) => {
                    let has_share = !waited || !bucket.is_share_unknown();
                    Err(if has_share { AcquireError::Full } else { AcquireError::NoShare })
                }
                AcquireStep::Rejected(AcquireDenial::QueueFull) => Err(AcquireError::QueueFull),
                AcquireStep::Queued(waiting) => {
                    let queued = (self.queue_span(), queue_time::start_queue_timer(&self.clock));
                    let permit = waiting.wait_for_permit().await?;
                    drop(queued);
                    Ok(self.guard(bucket, permit, request.permit_lifetime))
                }
            };
        }
    }

    /// Applies the concurrency limits of configuration `revision` to all buckets.
    ///
    /// `rules` returns the parameters of a bucket's limit, and its sharing parameters in mode
    /// `shared`. `None`: no limit covers the bucket any longer. Adaptive limits keep their learned
    /// value. Waiting requests that the new parameters allow are woken. A later acquire with other
    /// parameters replaces these, unless it comes from an earlier revision.
    pub fn reload_all(
        &self,
        revision: Revision,
        rules: impl Fn(&[u8]) -> Option<(LimiterConfig, Option<SharedLimit>)>,
    ) {
        for (name, bucket) in self.named_buckets() {
            let free = (LimiterConfig::fixed(NO_LIMIT), None);
            let (rules, shared) = rules(&name).unwrap_or(free);
            let terms = |shared: SharedLimit| {
                Some((shared, self.fleet_reporter()?.share_timing(shared.max_duration)))
            };
            bucket.reload(&self.clock, revision, &rules, shared.and_then(terms));
        }
    }

    /// Sets this replica's share of the limit of `bucket`.
    pub fn set_share(&self, bucket: &[u8], share: u32) {
        self.apply_event(bucket, LimiterEvent::Share(share));
    }

    /// Releases the permits whose deadline has passed, and removes buckets that have been idle for
    /// 10 minutes.
    pub fn sweep(&self) {
        // `now` only measures idle times: each bucket reads the clock again under its lock.
        let now = self.clock.steady();
        let all = self.all_buckets();
        let is_idle =
            |bucket: &&Arc<Bucket>| bucket.sweep(&self.clock).is_some_and(is_idle_too_long(now));
        let idle = all.iter().filter(is_idle).count();
        if 0 < idle {
            self.buckets.write().retire_idle(is_idle_too_long(now));
        }
    }

    /// Runs [`Self::sweep`] every second, forever. No other timer releases expired permits.
    pub async fn sweep_forever(&self) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    /// Returns the number of buckets.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.read().len()
    }

    /// Returns the requests in flight, the queue length and the limit of `bucket`. `None` if there
    /// is no such bucket.
    #[must_use]
    pub fn load(&self, bucket: &[u8]) -> Option<BucketLoad> {
        self.buckets.read().get(bucket).map(|bucket| bucket.load())
    }

    /// Returns `true` if this replica itself shares the limit of `bucket`.
    #[must_use]
    pub fn has_share(&self, bucket: &[u8]) -> bool {
        self.buckets.read().get(bucket).is_some_and(|bucket| bucket.has_share())
    }

    /// Returns a snapshot of every bucket. The snapshots are taken one after another.
    #[must_use]
    pub fn snapshots(&self) -> Vec<(BucketName, BucketMetrics)> {
        self.named_buckets().into_iter().map(|(name, bucket)| (name, bucket.snapshot())).collect()
    }

    /// Returns a snapshot of one bucket. `None` if there is no such bucket.
    #[must_use]
    pub fn snapshot(&self, bucket: &[u8]) -> Option<BucketMetrics> {
        let bucket = self.buckets.read().get(bucket).cloned();
        bucket.map(|bucket| bucket.snapshot())
    }

    /// Returns the `most` oldest permits as pairs of bucket name and age, oldest first.
    #[must_use]
    pub fn oldest_permits(&self, most: usize) -> Vec<(BucketName, Nanos)> {
        // The youngest of the collected permits is on top of the heap, so that `pop` removes it.
        let mut oldest = BinaryHeap::new();
        for (name, bucket) in self.named_buckets() {
            for since in bucket.acquire_instants() {
                oldest.push((since, name.clone()));
                if most < oldest.len() {
                    oldest.pop();
                }
            }
        }
        let now = self.clock.steady();
        let age = |(since, name): (Nanos, BucketName)| (name, now.since(since));
        oldest.into_sorted_vec().into_iter().map(age).collect()
    }

    /// Returns the number of buckets and the sums of their loads.
    #[must_use]
    pub fn totals(&self) -> BucketTotals {
        let (all, most) = (self.all_buckets(), self.buckets.read().max_buckets());
        let mut total =
            BucketTotals { buckets: all.len(), max_buckets: most, ..BucketTotals::default() };
        for load in all.iter().map(|bucket| bucket.load()) {
            total.in_flight = total.in_flight.saturating_add(load.in_flight.into());
            total.waiting = total.waiting.saturating_add(load.waiting);
        }
        total
    }

    fn named_buckets(&self) -> Vec<(BucketName, Arc<Bucket>)> {
        let buckets = self.buckets.read();
        buckets.entries().map(|(name, bucket)| (name.into(), Arc::clone(bucket))).collect()
    }

    fn all_buckets(&self) -> Vec<Arc<Bucket>> {
        self.buckets.read().entries().map(|(_, bucket)| Arc::clone(bucket)).collect()
    }

    fn apply_event(&self, bucket: &[u8], event: LimiterEvent) {
        let bucket = self.buckets.read().get(bucket).cloned();
        if let Some(bucket) = bucket {
            bucket.step(&self.clock, event);
        }
    }

    pub(crate) fn guard(
        &self,
        bucket: Arc<Bucket>,
        permit: Permit,
        lifetime: Option<Nanos>,
    ) -> PermitGuard {
        PermitGuard::new(bucket, permit, lifetime, Arc::clone(&self.clock))
    }

    pub(crate) fn find_or_create_bucket(
        &self,
        request: &PermitRequest<'_>,
    ) -> Result<Arc<Bucket>, AcquireError> {
        if let Some(bucket) = self.buckets.read().get(request.bucket) {
            return Ok(Arc::clone(bucket));
        }
        let make = |number| Bucket::new(request, self.jitter.wrapping_add(number));
        self.buckets.write().get_or_create(request.bucket, make).ok_or(AcquireError::TooManyBuckets)
    }
}

/// Returns the limiter parameters of a limit at one process. `min` of an adaptive shared limit
/// applies to the whole fleet, so one process may use less. A strict limit has its own queue,
/// outside the limiter.
#[must_use]
pub fn rules_at_process(
    rules: &LimiterConfig,
    shared: Option<&SharedLimit>,
    strict: Option<&StrictLimit>,
) -> LimiterConfig {
    let at_process = |adaptive: AdaptiveConfig| AdaptiveConfig {
        min: if shared.is_some() { 1 } else { adaptive.min },
        ..adaptive
    };
    let queue = rules.queue.filter(|_| strict.is_none());
    LimiterConfig { adaptive: rules.adaptive.map(at_process), queue, ..*rules }
}

fn is_idle_too_long(now: Nanos) -> impl Fn(Nanos) -> bool {
    move |since| IDLE_BUCKET_LIFETIME <= now.since(since)
}
