//! Who may be in flight: buckets behind locks, and waiting for a place in them.
//!
//! Guarantees: what is held is given back once, whatever happens to whom it was given: a
//! [`Held`] that is dropped leaves, an acquire whose future is dropped leaves the queue, or gives
//! back the permit that was on its way. Nobody waits longer than its patience, for the store no longer than for its
//! answer. Buckets are bounded, and those that have been idle are dropped: after a while, or for new ones.
//! Leaves out: the decisions, which are [`Limiter`]'s; ids of requests (see
//! [`Register`](crate::kernel::concurrency::Register)); which questions ask for which bucket.
//! Cost: two locks for an acquire (the map's for as long as a look-up takes), one for a release.

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

/// How long after a deadline at most a permit is taken back, where nobody comes by before.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a bucket is kept after its last permit: what it learnt is lost with it.
const KEPT_IDLE: Nanos = Nanos::from_secs(600);

/// Of a bucket that no ceiling covers any longer: all pass.
const FREE: u32 = u32::MAX;

/// The name of a bucket: whatever tells two ceilings apart.
pub type Name = Box<[u8]>;

/// All ceilings of this replica.
#[derive(Debug)]
pub struct Admission {
    clock: Arc<Clock>,
    buckets: RwLock<Buckets>,
    jitter: u64,
    fleet: Option<Arc<Fleet>>,
}

/// What one asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Which bucket.
    pub bucket: &'a [u8],
    /// The configuration that says so.
    pub revision: Revision,
    /// What its ceiling is; where it was something else, it is this from now on, unless a later configuration
    /// said that.
    pub rules: &'a Rules,
    /// How long the permit may be out; `None` where its end is always seen, as a stream's is.
    pub keep: Option<Nanos>,
    /// How long one can wait oneself; zero asks without a queue.
    pub patience: Nanos,
    /// How long one can wait for the store, where it has to be asked; zero asks it, and waits for no answer.
    pub answer: Nanos,
    /// What the ceiling is to the fleet; nothing where this replica holds it alone.
    pub shared: Option<Shared>,
}

/// Why one was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The ceiling is reached, and there is no queue or no patience for one.
    #[error("the ceiling on requests in flight is reached")]
    Full,
    /// The ceiling is reached and so is the queue's size.
    #[error("the ceiling on requests in flight is reached, and its queue is full")]
    QueueFull,
    /// A place in the queue did not become a permit in time.
    #[error("no permit became free in the time to wait for one")]
    Late,
    /// There are as many buckets as there may be, or as large ones, and none of those looked at is idle.
    #[error("there are as many ceilings in use as may be")]
    TooManyBuckets,
}

impl Admission {
    /// No buckets yet, and never more than `most`, nor more bytes of names than 512 for each of those
    /// together (1 MiB where that is more): one more takes the place of an idle one. `jitter` is any
    /// number, another one for each replica: it spreads the recalibrations of ceilings.
    #[must_use]
    pub fn new(clock: Arc<Clock>, most: usize, jitter: u64) -> Self {
        Self { clock, buckets: RwLock::new(Buckets::new(most)), jitter, fleet: None }
    }

    /// The same, one of a fleet that shares ceilings.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<Fleet>) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    /// The fleet's voice, where there is a fleet.
    #[must_use]
    pub fn fleet(&self) -> Option<&Fleet> {
        self.fleet.as_deref()
    }

    /// A permit of a bucket, at once or after waiting for it. Safe to cancel: a dropped future holds
    /// neither a place nor a permit.
    ///
    /// # Errors
    /// Why there is none; nothing is held then.
    pub async fn acquire(&self, mut ask: Ask<'_>) -> Result<Held, Denied> {
        let mut waited = false;
        loop {
            let bucket = self.bucket(&ask)?;
            let fleet = self.fleet();
            // A bucket that was dropped meanwhile has a successor.
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

    /// Puts what `rules` says of each bucket in force, as of `revision`, and what it is to the fleet; no
    /// ceiling where it says nothing. What a bucket learnt stays; those whom that lets pass are woken. The
    /// next who asks by other rules, of no earlier configuration, puts those in force.
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

    /// Sets this replica's part of a ceiling.
    pub fn share(&self, bucket: &[u8], share: u32) {
        self.tell(bucket, Event::Share(share));
    }

    /// Takes back what is over its deadline and drops what has been idle for long.
    pub fn sweep(&self) {
        // For ages alone: each bucket is swept at an instant of its own.
        let now = self.clock.steady();
        let all = self.each();
        let is_idle = |bucket: &&Arc<Bucket>| bucket.sweep(&self.clock).is_some_and(is_old(now));
        let idle = all.iter().filter(is_idle).count();
        if 0 < idle {
            self.buckets.write().retire(is_old(now));
        }
    }

    /// Sweeps for ever: the one timer behind all deadlines of permits.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    /// How many buckets there are.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.read().len()
    }

    /// How many are in flight, wait and may be in flight in `bucket`; `None` where it is idle.
    #[must_use]
    pub fn load(&self, bucket: &[u8]) -> Option<Load> {
        self.buckets.read().get(bucket).map(|bucket| bucket.load())
    }

    /// Every bucket with what it is at, each at an instant of its own.
    #[must_use]
    pub fn looks(&self) -> Vec<(Name, Look)> {
        self.all().into_iter().map(|(name, bucket)| (name, bucket.look())).collect()
    }

    /// One bucket; `None` where it is idle.
    #[must_use]
    pub fn look(&self, bucket: &[u8]) -> Option<Look> {
        let bucket = self.buckets.read().get(bucket).cloned();
        bucket.map(|bucket| bucket.look())
    }

    /// The permits that have been out for longest, at most `most`: the bucket of each, and for how
    /// long.
    #[must_use]
    pub fn oldest(&self, most: usize) -> Vec<(Name, Nanos)> {
        // The youngest of them on top, to make room for an older one.
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

    /// How much there is of everything together.
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

/// One bucket at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How many are in flight.
    pub in_flight: u32,
    /// How many wait.
    pub waiting: usize,
    /// How many may be in flight; `u32::MAX` where no ceiling covers it any longer.
    pub limit: u32,
}

impl Load {
    /// How many may be in flight; `None` where no ceiling covers it any longer.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        Some(self.limit).filter(|limit| *limit != FREE)
    }
}

/// One bucket at one instant, with what is known of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Who is there.
    pub load: Load,
    /// The latency of those that succeeded, smoothed; `None` before the first.
    pub rtt: Option<Nanos>,
    /// The latency without a queue, as far as the ceiling's policy knows one.
    pub min_rtt: Option<Nanos>,
}

impl Look {
    /// minRTT over RTT, in millionths: 1,000,000 is no queue, and less is one.
    #[must_use]
    pub fn gradient(&self) -> Option<u64> {
        let (min_rtt, rtt) = (u128::from(self.min_rtt?.0), u128::from(self.rtt?.0.max(1)));
        u64::try_from(min_rtt.saturating_mul(1_000_000).checked_div(rtt)?).ok()
    }
}

/// All buckets at one instant, or nearly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How many buckets there are.
    pub buckets: usize,
    /// How many there may be.
    pub most: usize,
    /// How many are in flight.
    pub in_flight: u64,
    /// How many wait.
    pub waiting: usize,
}

/// A permit in somebody's hands. Dropped, it leaves, and tells nothing of the backend.
#[derive(Debug)]
pub struct Held {
    bucket: Arc<Bucket>,
    permit: Permit,
    keep: Option<Nanos>,
    clock: Arc<Clock>,
    left: bool,
}

impl Held {
    /// Gives the permit back. `rtt` is the request's latency where somebody measured it better than
    /// from acquire to release. False when its deadline had taken it back before.
    #[must_use]
    pub fn release(mut self, outcome: Outcome, rtt: Option<Nanos>) -> bool {
        self.leave(outcome, rtt)
    }

    /// What it is held for goes on, and nobody here will see its end: it is given back by its deadline alone.
    pub fn go_on(mut self) {
        self.left = true;
        self.bucket.goes_on(&self.clock, self.permit);
    }

    /// When it was admitted; `None` where its deadline took it back.
    #[must_use]
    pub fn since(&self) -> Option<Nanos> {
        self.bucket.since(&self.clock, self.permit)
    }

    /// How long it has been held; `None` where its deadline took it back.
    #[must_use]
    pub fn age(&self) -> Option<Nanos> {
        self.since().map(|since| self.clock.steady().since(since))
    }

    /// Whether somebody waits in its bucket.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        0 < self.bucket.load().waiting
    }

    /// How long it may be out; `None` where its end is always seen.
    #[must_use]
    pub const fn keep(&self) -> Option<Nanos> {
        self.keep
    }

    /// The request was seen alive: its time counts from now. False when its deadline took it back.
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
