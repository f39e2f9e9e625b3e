//! One concurrency limit as a state machine: permits in flight, queue, admission.
//!
//! ```
//! use sluicegate_kernel::concurrency::limiter::{AcquireDenial, Limiter, LimiterConfig};
//! use sluicegate_kernel::concurrency::limiter::{LimiterEffect, LimiterEvent};
//! use sluicegate_kernel::concurrency::{RequestOutcome, Requester};
//! use sluicegate_kernel::units::Nanos;
//!
//! let mut limiter = Limiter::new(&LimiterConfig::fixed(1), 0);
//! let now = Nanos::from_secs(1);
//! let by = Requester::ANY;
//! let acquire = LimiterEvent::Acquire { lifetime: None, timeout: Nanos(0), by };
//! let effects = limiter.step(now, acquire);
//! let [LimiterEffect::Admit(permit)] = effects[..] else { panic!() };
//! let denied = LimiterEffect::Deny(AcquireDenial::LimitReached);
//! assert_eq!(limiter.step(now, acquire)[..], [denied]);
//! let release = LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None };
//! assert_eq!(limiter.step(now, release)[..], []);
//! assert_eq!(limiter.in_flight(), 0);
//! ```
//!
//! Guarantees:
//! - An admission never raises the number of requests in flight above the current limit.
//! - After the limit falls, admissions resume once enough permits are released.
//! - No permit stays free while an admissible request waits.
//! - No arriving request overtakes a waiting one of its class or of an earlier class.
//! - Every queue ticket ends once: with a permit, a timeout, by a request that displaces it, or with
//!   a cancellation by the caller.
//! - An event costs O(1) without a deadline; O(log n) with one, with a queue, or with fair shares.
//! - An event allocates only if a request waits, a customer is new, or more permits are in flight than
//!   ever before.
//!
//! The caller wakes tasks and runs timers. Its clock must be monotonic.

mod requester_use;

use smallvec::SmallVec;

use super::adaptive::{AdaptiveConfig, AdaptiveLimit, FleetShare, LatencySample};
use super::in_flight::InFlightPermits;
use super::queue::WaitQueue;
use super::requester::{ClassParts, Requester};
use super::{OverloadAnswers, Permit, QueueTicket, RequestOutcome, RetryAfterRule};
use crate::units::Nanos;

/// The longest time for which the limit does not grow after one answer of the backend.
pub const MAX_GROWTH_PAUSE: Nanos = Nanos::from_secs(60);

/// The shared customer of requests without one, and of all customers beyond `fair_keys`.
const OTHERS: u64 = u64::MAX;

/// The configuration of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimiterConfig {
    /// The limit in requests; with `adaptive`, its initial value.
    pub limit: u32,
    /// The adaptation to latency; `None` keeps the limit at `limit`.
    pub adaptive: Option<AdaptiveConfig>,
    /// The queue of waiting requests; `None` denies a request at once when the limit is reached.
    pub queue: Option<QueueConfig>,
    /// The part of the limit that each class may fill.
    pub classes: ClassParts,
    /// The most customers that are counted apart; further ones, and requests without a customer, count
    /// as one customer. `None`: the limit does not tell customers apart.
    pub fair_keys: Option<u32>,
    /// The answers of the backend that mean overload. The caller classifies each answer by them.
    pub overloaded_by: OverloadAnswers,
    /// The effect of a `Retry-After` in such an answer. The caller applies it.
    pub retry_after: RetryAfterRule,
}

impl LimiterConfig {
    /// A constant `limit` without a queue.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self {
            limit,
            adaptive: None,
            queue: None,
            classes: ClassParts::ONE,
            fair_keys: None,
            overloaded_by: OverloadAnswers::DEFAULT,
            retry_after: RetryAfterRule::Ignore,
        }
    }
}

/// The bounds of a queue of waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueConfig {
    /// The largest number of waiting requests.
    pub size: u32,
    /// The longest wait of one request.
    pub timeout: Nanos,
}

/// An input event of a [`Limiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimiterEvent {
    /// A request needs a permit. Exactly one of `Admit`, `Queue` and `Deny` is among the effects.
    Acquire {
        /// The permit's lifetime; `None` if the request's end is always observed, as for a stream.
        lifetime: Option<Nanos>,
        /// The caller's own timeout; the shorter of this and the queue timeout applies.
        timeout: Nanos,
        /// Its class and customer.
        by: Requester,
    },
    /// A permit is released.
    Release {
        /// The permit to release.
        permit: Permit,
        /// The result of the request.
        outcome: RequestOutcome,
        /// A measured latency, if the caller has a better one than the time since admission.
        rtt: Option<Nanos>,
    },
    /// The request of a permit with a deadline is still in flight: the permit's lifetime restarts.
    Renew {
        /// The permit to renew.
        permit: Permit,
        /// The permit's new lifetime.
        lifetime: Nanos,
    },
    /// The caller cancels a waiting request.
    Cancel(QueueTicket),
    /// Time has passed. Every event expires overdue permits and tickets; this event does only that.
    Expire,
    /// The configuration was reloaded. The adaptive limit keeps its state.
    Reload(LimiterConfig),
    /// A new share of this replica in a fleet-wide limit, in permits; `u32::MAX` without a fleet.
    Share(u32),
    /// A new share of this replica in a limit that all replicas of the fleet adapt together.
    FleetShare(FleetShare),
    /// The backend asks clients to wait. The limit does not grow for this time, at most
    /// [`MAX_GROWTH_PAUSE`].
    PauseGrowth(Nanos),
    /// This replica's share expired: admit no request and time out every waiting request.
    Fence,
}

/// An output of a [`Limiter`], which the caller must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimiterEffect {
    /// The arriving request is admitted.
    Admit(Permit),
    /// The arriving request waits.
    Queue(QueueTicket),
    /// The arriving request is denied.
    Deny(AcquireDenial),
    /// A waiting request is admitted.
    Wake(QueueTicket, Permit),
    /// A waiting request timed out, or this replica's share expired.
    TimedOut(QueueTicket),
    /// A waiting request left the full queue for the arriving one.
    Displaced(QueueTicket),
    /// A permit reached its deadline and was released.
    Expired(Permit),
    /// The permit or ticket of the event is unknown, so nothing changed.
    Unknown,
}

/// The reason for the denial of a request that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcquireDenial {
    /// The limit is reached, and there is no queue or the caller's timeout is zero.
    LimitReached,
    /// The limit is reached and the queue is full.
    QueueFull,
}

/// The effects in the order in which to carry them out. Two fit without an allocation.
pub type LimiterEffects = SmallVec<[LimiterEffect; 2]>;

/// One concurrency limit with its permits and its queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limiter {
    adaptive: AdaptiveLimit,
    share: u32,
    queue_config: Option<QueueConfig>,
    classes: ClassParts,
    fair_keys: Option<u32>,
    in_flight: InFlightPermits,
    queue: WaitQueue,
    last_activity: Nanos,
}

impl Limiter {
    /// A limiter without permits in flight and without waiting requests. A different `jitter` for
    /// each limit and replica keeps their min RTT probes apart.
    #[must_use]
    pub fn new(config: &LimiterConfig, jitter: u64) -> Self {
        Self {
            adaptive: AdaptiveLimit::new(config.limit, config.adaptive, jitter),
            share: u32::MAX,
            queue_config: config.queue,
            classes: config.classes,
            fair_keys: config.fair_keys,
            in_flight: InFlightPermits::default(),
            queue: WaitQueue::default(),
            last_activity: Nanos(0),
        }
    }

    /// Applies `event` at `now` and returns its effects.
    pub fn step(&mut self, now: Nanos, event: LimiterEvent) -> LimiterEffects {
        let mut effects = LimiterEffects::new();
        if event == LimiterEvent::Fence {
            // Set the share first: permits that expire now must not admit requests under an expired
            // share.
            self.share = 0;
        }
        self.adaptive.advance(now);
        self.expire(now, &mut effects);
        match event {
            LimiterEvent::Acquire { lifetime, timeout, by } => {
                let by = self.known(by);
                self.acquire(now, (lifetime, timeout), by, &mut effects);
            }
            LimiterEvent::Release { permit, outcome, rtt } => {
                self.release(now, permit, outcome, rtt, &mut effects);
            }
            LimiterEvent::Renew { permit, lifetime } => {
                let known = self.in_flight.renew(permit, now, lifetime);
                effects.extend((!known).then_some(LimiterEffect::Unknown));
            }
            LimiterEvent::Cancel(ticket) => {
                let known = self.queue.remove(ticket);
                effects.extend((!known).then_some(LimiterEffect::Unknown));
            }
            LimiterEvent::Expire => {}
            LimiterEvent::Reload(config) => self.reload(&config),
            LimiterEvent::Share(share) => {
                self.share = share;
                self.adaptive.set_fleet_share(now, None);
            }
            LimiterEvent::FleetShare(fleet_share) => {
                self.share = fleet_share.share;
                self.adaptive.set_fleet_share(now, Some(fleet_share));
            }
            LimiterEvent::PauseGrowth(pause) => {
                self.adaptive.pause_growth(now.plus(pause.min(MAX_GROWTH_PAUSE)));
            }
            LimiterEvent::Fence => {
                let waiters = std::iter::from_fn(|| self.queue.pop());
                effects.extend(waiters.map(|(ticket, _)| LimiterEffect::TimedOut(ticket)));
            }
        }
        self.admit_waiting(now, &mut effects);
        effects
    }

    /// The effective limit: the smaller of the adaptive limit and this replica's share.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.adaptive.limit().min(self.share)
    }

    /// The number of permits in flight.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// The number of waiting requests.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// The adaptive limit's state.
    #[must_use]
    pub const fn adaptive_limit(&self) -> &AdaptiveLimit {
        &self.adaptive
    }

    /// The instant of `permit`'s admission; `None` if it is not in flight.
    #[must_use]
    pub fn admitted_at(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.admitted_at(permit)
    }

    /// The deadline of `permit`; `None` if it is not in flight or has none.
    #[must_use]
    pub fn deadline(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.deadline(permit)
    }

    /// All permits in flight, each with the instant of its admission.
    pub fn permits(&self) -> impl Iterator<Item = (Permit, Nanos)> {
        self.in_flight.all()
    }

    /// The instant since which no request is in flight or queued; `None` while one is. A limiter
    /// that is idle for long may be deleted: only its adaptive state is lost.
    #[must_use]
    pub fn idle_since(&self) -> Option<Nanos> {
        let is_idle = self.in_flight.count() == 0 && self.queue.len() == 0;
        is_idle.then_some(self.last_activity)
    }

    fn acquire(
        &mut self,
        now: Nanos,
        (lifetime, timeout): (Option<Nanos>, Nanos),
        by: Requester,
        effects: &mut LimiterEffects,
    ) {
        self.last_activity = now;
        // Earlier events already admitted the waiting requests of this class and of earlier ones.
        if self.in_flight.count() < self.part(by.class) {
            let permit = self.admit(now, lifetime, by);
            return effects.push(LimiterEffect::Admit(permit));
        }
        let Some(queue_config) = self.queue_config.filter(|_| Nanos(0) < timeout) else {
            return effects.push(LimiterEffect::Deny(AcquireDenial::LimitReached));
        };
        if usize::try_from(queue_config.size).unwrap_or(usize::MAX) <= self.queue.len() {
            let Some(ticket) = self.queue.make_room_for(by) else {
                return effects.push(LimiterEffect::Deny(AcquireDenial::QueueFull));
            };
            effects.push(LimiterEffect::Displaced(ticket));
        }
        let deadline = now.plus(queue_config.timeout.min(timeout));
        effects.push(LimiterEffect::Queue(self.queue.push(deadline, lifetime, by)));
    }

    /// Returns the number of requests in flight from which `class` is no longer admitted.
    fn part(&self, class: u8) -> u32 {
        self.classes.part(self.limit(), class)
    }

    fn admit(&mut self, now: Nanos, lifetime: Option<Nanos>, by: Requester) -> Permit {
        self.queue.admitted(by);
        self.in_flight.admit(now, lifetime, by)
    }

    fn release(
        &mut self,
        now: Nanos,
        permit: Permit,
        outcome: RequestOutcome,
        rtt: Option<Nanos>,
        effects: &mut LimiterEffects,
    ) {
        let Some(state) = self.in_flight.release(permit) else {
            return effects.push(LimiterEffect::Unknown);
        };
        self.queue.released(state.customer);
        self.last_activity = now;
        let rtt = rtt.unwrap_or(now.since(state.admitted_at));
        let sample = LatencySample { ended_at: now, rtt, in_flight: state.in_flight, outcome };
        self.adaptive.record(&sample, self.share);
    }

    fn reload(&mut self, config: &LimiterConfig) {
        self.adaptive.reload(config.limit, config.adaptive);
        self.queue_config = config.queue;
        (self.classes, self.fair_keys) = (config.classes, config.fair_keys);
    }

    fn expire(&mut self, now: Nanos, effects: &mut LimiterEffects) {
        while let Some((permit, customer)) = self.in_flight.release_overdue(now) {
            self.queue.released(customer);
            self.last_activity = now;
            effects.push(LimiterEffect::Expired(permit));
        }
        while let Some(ticket) = self.queue.remove_overdue(now) {
            effects.push(LimiterEffect::TimedOut(ticket));
        }
        self.admit_waiting(now, effects);
    }

    fn admit_waiting(&mut self, now: Nanos, effects: &mut LimiterEffects) {
        // The parts of later classes are not larger, so none of them is admissible if the first is not.
        while let Some(class) = self.queue.first_class()
            && self.in_flight.count() < self.part(class)
            && let Some((ticket, waiter)) = self.queue.pop()
        {
            self.last_activity = now;
            let permit = self.admit(now, waiter.lifetime, waiter.by);
            effects.push(LimiterEffect::Wake(ticket, permit));
        }
    }
}
