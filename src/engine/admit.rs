//! Acquires and releases the permits of this replica's
//! concurrency limits, and waits in their queues.
//!
//! Guarantees:
//! - A permit is released once: [`Held`] releases it when dropped.
//! - A canceled acquire leaves the queue, or releases a permit just granted.
//! - A request waits no longer than its timeout.
//! - Buckets are bounded. Idle ones are removed after a while or for new ones.
//!
//! Not covered:
//! - The decisions: see [`Limiter`](crate::kernel::concurrency::Limiter).
//! - Request ids: see [`Register`](crate::kernel::concurrency::Register).
//! - The buckets of a check: see [`super::ceilings`].
//!
//! Cost: an acquire takes two locks, and a release takes
//! one. The lock of the map lasts only for the look-up.

mod bucket;
mod buckets;
pub mod fleet;
mod leased;
mod queued;
mod strict;
mod teller;
pub mod totals;
mod usage;

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::clock::Clock;
use crate::kernel::concurrency::limiter::{Effect, Event, Refusal, Rules};
use crate::kernel::concurrency::{Outcome, Permit};
use crate::kernel::units::{Nanos, Revision};
use crate::telemetry::trace;
use bucket::{Bucket, Place};
use buckets::Buckets;
use fleet::Fleet;
pub use leased::{Shared, Shown};
pub use queued::{with_places, with_wait};
pub use strict::{Seen, Strictly};

/// The longest delay between a permit's deadline and
/// its release, in a bucket without other traffic.
const SWEEP: Duration = Duration::from_secs(1);
/// The time for which an idle bucket is kept. Its adaptive limit is lost with it.
const KEPT_IDLE: Nanos = Nanos::from_secs(600);

/// The limit of a bucket that no concurrency limit covers any longer: every request is allowed.
const FREE: u32 = u32::MAX;

/// The name of a bucket. Two different buckets have different names.
pub type Name = Box<[u8]>;

/// All concurrency limits of this replica.
#[derive(Debug)]
pub struct Admission {
    clock: Arc<Clock>,
    buckets: RwLock<Buckets>,
    jitter: u64,
    fleet: Option<Arc<Fleet>>,
}

/// A request for one permit.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The name of the bucket.
    pub bucket: &'a [u8],
    /// The revision of the configuration that defines the limit.
    pub revision: Revision,
    /// The rules of the limit. They replace the bucket's
    /// rules, unless those come from a later revision.
    pub rules: &'a Rules,
    /// The longest time until the release. `None` if the
    /// end of the request is always seen, as for a stream.
    pub keep: Option<Nanos>,
    /// The longest wait in the queue. Zero: the request does not queue.
    pub patience: Nanos,
    /// The longest wait for the store, if a store call is needed.
    /// Zero: the call is sent, and its reply is not awaited.
    pub answer: Nanos,
    /// The parameters of a fleet-wide limit. `None` for a limit of this replica alone.
    pub shared: Option<Shared>,
}

/// The reason why a request got no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The limit is reached, and the request cannot queue.
    #[error("the ceiling on requests in flight is reached")]
    Full,
    /// The limit is reached, and the queue is full.
    #[error("the ceiling on requests in flight is reached, and its queue is full")]
    QueueFull,
    /// The queue timeout passed before a permit was free.
    #[error("no permit became free in the time to wait for one")]
    Late,
    /// The number or the total size of the buckets is
    /// at its maximum, and no examined bucket is idle.
    #[error("there are as many ceilings in use as may be")]
    TooManyBuckets,
}

impl Admission {
    /// Creates an empty set of at most `most` buckets.
    ///
    /// Their names have at most 512 bytes per bucket in total, and at least 1 MiB is
    /// allowed. Beyond that, a new bucket replaces an idle one. `jitter` is any number
    /// that differs between replicas. It spreads the recalibrations of adaptive limits.
    #[must_use]
    pub fn new(clock: Arc<Clock>, most: usize, jitter: u64) -> Self {
        Self { clock, buckets: RwLock::new(Buckets::new(most)), jitter, fleet: None }
    }

    /// Adds the connection to the fleet, for fleet-wide limits.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<Fleet>) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    /// Returns the fleet reporter, if this replica belongs to a fleet.
    #[must_use]
    pub fn fleet(&self) -> Option<&Fleet> {
        self.fleet.as_deref()
    }

    /// Acquires a permit, and waits in the queue if the request allows it. Safe to
    /// cancel: a dropped future leaves neither a queue entry nor a permit behind.
    ///
    /// # Errors
    /// The reason of the rejection. No permit is taken then.
    pub async fn acquire(&self, mut ask: Ask<'_>) -> Result<Held, Denied> {
        let mut waited = false;
        loop {
            let bucket = self.bucket(&ask)?;
            let fleet = self.fleet();
            // `None`: the bucket was removed in the meantime,
            // and the next look-up finds its successor.
            let Some(place) = bucket.arrive(&self.clock, &ask, fleet, waited) else { continue };
            return match place {
                Place::Cold(answers) => {
                    waited = true;
                    let begun = self.clock.steady();
                    if let Some(fleet) = fleet {
                        fleet.hears(answers, ask.answer).await;
                    }
                    ask.patience = ask.patience.since(self.clock.steady().since(begun));
                    continue;
                }
                Place::Passes(permit) => Ok(self.held(bucket, permit, ask.keep)),
                Place::Turned(Refusal::Full) => Err(Denied::Full),
                Place::Turned(Refusal::QueueFull) => Err(Denied::QueueFull),
                Place::Waits(waiting) => {
                    let queued = (trace::part(trace::Part::Queue), queued::begins(&self.clock));
                    let permit = waiting.permit().await.ok_or(Denied::Late)?;
                    drop(queued);
                    Ok(self.held(bucket, permit, ask.keep))
                }
            };
        }
    }

    /// Applies the rules of configuration `revision` to every bucket.
    ///
    /// `rules` returns the rules of a bucket and its fleet parameters, or `None` if no limit covers
    /// it any longer. Adaptive limits are kept. Waiting requests that the new rules allow are
    /// woken. A later acquire with other rules replaces these, unless it has an earlier revision.
    pub fn reload_all(
        &self,
        revision: Revision,
        rules: impl Fn(&[u8]) -> Option<(Rules, Option<Shared>)>,
    ) {
        for (name, bucket) in self.all() {
            let free = (Rules::fixed(FREE), None);
            let (rules, shared) = rules(&name).unwrap_or(free);
            let terms = |shared: Shared| Some((shared, self.fleet()?.terms(shared.max_duration)));
            bucket.reload(&self.clock, revision, &rules, shared.and_then(terms));
        }
    }

    /// Sets this replica's share of a limit.
    pub fn share(&self, bucket: &[u8], share: u32) {
        self.tell(bucket, Event::Share(share));
    }

    /// Releases the permits whose deadline has passed,
    /// and removes buckets that have been idle for long.
    pub fn sweep(&self) {
        // Only for the idle times: each bucket reads the clock again under its lock.
        let now = self.clock.steady();
        let all = self.each();
        let is_idle = |bucket: &&Arc<Bucket>| bucket.sweep(&self.clock).is_some_and(is_old(now));
        let idle = all.iter().filter(is_idle).count();
        if 0 < idle {
            self.buckets.write().retire(is_old(now));
        }
    }

    /// Runs [`Self::sweep`] forever. This is the only timer behind the deadlines of permits.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    /// Returns the number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.read().len()
    }

    /// Returns the requests in flight, the queue length and the
    /// limit of `bucket`. `None` if there is no such bucket.
    #[must_use]
    pub fn load(&self, bucket: &[u8]) -> Option<Load> {
        self.buckets.read().get(bucket).map(|bucket| bucket.load())
    }

    /// Returns a snapshot of every bucket. The snapshots are taken one after another.
    #[must_use]
    pub fn looks(&self) -> Vec<(Name, Look)> {
        self.all().into_iter().map(|(name, bucket)| (name, bucket.look())).collect()
    }

    /// Returns a snapshot of one bucket. `None` if there is no such bucket.
    #[must_use]
    pub fn look(&self, bucket: &[u8]) -> Option<Look> {
        let bucket = self.buckets.read().get(bucket).cloned();
        bucket.map(|bucket| bucket.look())
    }

    /// Returns the `most` oldest permits, each with its bucket and its age, oldest first.
    #[must_use]
    pub fn oldest(&self, most: usize) -> Vec<(Name, Nanos)> {
        // The youngest of them is on top, so that an older one can replace it.
        let mut oldest = BinaryHeap::new();
        for (name, bucket) in self.all() {
            for since in bucket.admitted() {
                oldest.push((since, name.clone()));
                if most < oldest.len() {
                    oldest.pop();
                }
            }
        }
        let now = self.clock.steady();
        let age = |(since, name): (Nanos, Name)| (name, now.since(since));
        oldest.into_sorted_vec().into_iter().map(age).collect()
    }

    /// Returns the sums over all buckets.
    #[must_use]
    pub fn total(&self) -> Total {
        let (all, most) = (self.each(), self.buckets.read().most());
        let mut total = Total { buckets: all.len(), most, ..Total::default() };
        for load in all.iter().map(|bucket| bucket.load()) {
            total.in_flight = total.in_flight.saturating_add(load.in_flight.into());
            total.waiting = total.waiting.saturating_add(load.waiting);
        }
        total
    }

    fn all(&self) -> Vec<(Name, Arc<Bucket>)> {
        let buckets = self.buckets.read();
        buckets.all().map(|(name, bucket)| (name.into(), Arc::clone(bucket))).collect()
    }

    fn each(&self) -> Vec<Arc<Bucket>> {
        self.buckets.read().all().map(|(_, bucket)| Arc::clone(bucket)).collect()
    }

    fn tell(&self, bucket: &[u8], event: Event) {
        let bucket = self.buckets.read().get(bucket).cloned();
        if let Some(bucket) = bucket {
            bucket.step(&self.clock, event);
        }
    }

    fn held(&self, bucket: Arc<Bucket>, permit: Permit, keep: Option<Nanos>) -> Held {
        Held { bucket, permit, keep, clock: Arc::clone(&self.clock), left: false }
    }

    fn bucket(&self, ask: &Ask<'_>) -> Result<Arc<Bucket>, Denied> {
        if let Some(bucket) = self.buckets.read().get(ask.bucket) {
            return Ok(Arc::clone(bucket));
        }
        let make = |number| Bucket::new(ask.revision, ask.rules, self.jitter.wrapping_add(number));
        self.buckets.write().get_or_make(ask.bucket, make).ok_or(Denied::TooManyBuckets)
    }
}

/// The load of one bucket at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The number of requests in flight.
    pub in_flight: u32,
    /// The number of waiting requests.
    pub waiting: usize,
    /// The limit. `u32::MAX` if no concurrency limit covers the bucket any longer.
    pub limit: u32,
}

impl Load {
    /// Returns the limit. `None` if no concurrency limit covers the bucket any longer.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        Some(self.limit).filter(|limit| *limit != FREE)
    }
}

/// A snapshot of one bucket: its load and the latency of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The load.
    pub load: Load,
    /// The smoothed latency of successful requests. `None` before the first one.
    pub rtt: Option<Nanos>,
    /// The latency without queueing, if the adaptive algorithm has an estimate.
    pub min_rtt: Option<Nanos>,
}

impl Look {
    /// Returns min RTT / RTT in millionths. 1,000,000
    /// means no queueing; a smaller value means queueing.
    #[must_use]
    pub fn gradient(&self) -> Option<u64> {
        let (min_rtt, rtt) = (u128::from(self.min_rtt?.0), u128::from(self.rtt?.0.max(1)));
        u64::try_from(min_rtt.saturating_mul(1_000_000).checked_div(rtt)?).ok()
    }
}

/// The sums over all buckets. Each bucket is read at its own instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The number of buckets.
    pub buckets: usize,
    /// The largest number of buckets.
    pub most: usize,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of waiting requests.
    pub waiting: usize,
}

/// A permit that is released when dropped. A drop counts as no latency sample.
#[derive(Debug)]
pub struct Held {
    bucket: Arc<Bucket>,
    permit: Permit,
    keep: Option<Nanos>,
    clock: Arc<Clock>,
    left: bool,
}

impl Held {
    /// Releases the permit. `rtt` is the latency of the request, if the
    /// caller measured it better than from acquire to release. Returns
    /// `false` if the permit's deadline has already released it.
    #[must_use]
    pub fn release(mut self, outcome: Outcome, rtt: Option<Nanos>) -> bool {
        self.leave(outcome, rtt)
    }

    /// Leaves the permit to its deadline: the request continues, but its end will not be seen here.
    pub fn go_on(mut self) {
        self.left = true;
        self.bucket.goes_on(&self.clock, self.permit);
    }

    /// Returns the instant of the acquire. `None` if the deadline has released the permit.
    #[must_use]
    pub fn since(&self) -> Option<Nanos> {
        self.bucket.since(&self.clock, self.permit)
    }

    /// Returns the time since the acquire. `None` if the deadline has released the permit.
    #[must_use]
    pub fn age(&self) -> Option<Nanos> {
        self.since().map(|since| self.clock.steady().since(since))
    }

    /// Returns `true` if requests wait in the permit's bucket.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        0 < self.bucket.load().waiting
    }

    /// Returns the longest time until the release. `None` if the end of the request is always seen.
    #[must_use]
    pub const fn keep(&self) -> Option<Nanos> {
        self.keep
    }

    /// Restarts the deadline of the permit, because the request is still
    /// active. Returns `false` if the deadline has already released the permit.
    #[must_use]
    pub fn renew(&self) -> bool {
        let Some(keep) = self.keep else { return true };
        let event = Event::Renew { permit: self.permit, keep };
        !self.bucket.step(&self.clock, event).contains(&Effect::Unknown)
    }

    fn leave(&mut self, outcome: Outcome, rtt: Option<Nanos>) -> bool {
        self.left = true;
        let event = Event::Leave { permit: self.permit, outcome, rtt };
        !self.bucket.step(&self.clock, event).contains(&Effect::Unknown)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.left {
            self.leave(Outcome::Ignored, None);
        }
    }
}

fn is_old(now: Nanos) -> impl Fn(Nanos) -> bool {
    move |since| KEPT_IDLE <= now.since(since)
}
