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
//! - Without a pace, an admission never raises the number of requests in flight above the current limit.
//! - After the limit falls, admissions resume once enough permits are released.
//! - No permit stays free while an admissible request waits.
//! - With a pace, an admission needs a turn (see [`pace`](super::pace)), and no limit applies.
//! - No arriving request overtakes a waiting one of its class or of an earlier class.
//! - Every queue ticket ends once: with a permit, a timeout, by a request that displaces it, or with
//!   a cancellation by the caller.
//! - An event costs O(1) without a deadline; O(log n) with one, with a queue, or with fair shares.
//! - An event allocates only if a request waits, a customer is new, or more permits are in flight than
//!   ever before.
//!
//! The caller wakes tasks and runs timers. Its clock must be monotonic.

mod config;
mod event;
mod requester_use;

use super::adaptive::{AdaptiveLimit, LatencySample};
use super::in_flight::InFlightPermits;
use super::pace::{Pace, WAKE_DELAY};
use super::queue::WaitQueue;
use super::requester::{ClassParts, Requester};
use super::{Permit, RequestOutcome};
use crate::units::Nanos;
pub use config::{LimiterConfig, QueueConfig};
pub use event::{AcquireDenial, LimiterEffect, LimiterEffects, LimiterEvent};

/// The longest time for which the limit does not grow after one answer of the backend.
pub const MAX_GROWTH_PAUSE: Nanos = Nanos::from_secs(60);

/// The shared customer of requests without one, and of all customers beyond `fair_keys`.
const OTHERS: u64 = u64::MAX;

/// One concurrency limit with its permits and its queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limiter {
    adaptive: AdaptiveLimit,
    /// Boxed, to keep the limiters without one small.
    pace: Option<Box<Pace>>,
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
            pace: config.pace.map(|pace| Box::new(Pace::new(config.limit, pace))),
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
            LimiterEvent::GiveBack(permit) => {
                if let Some(pace) = &mut self.pace {
                    pace.give_back(permit);
                }
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
                let ends_at = now.plus(pause.min(MAX_GROWTH_PAUSE));
                self.adaptive.pause_growth(ends_at);
                if let Some(pace) = &mut self.pace {
                    pace.pause_growth(ends_at);
                }
            }
            LimiterEvent::Fence => {
                let waiters = std::iter::from_fn(|| self.queue.pop());
                effects.extend(waiters.map(|(ticket, _)| LimiterEffect::TimedOut(ticket)));
            }
        }
        self.admit_waiting(now, &mut effects);
        effects
    }

    /// The effective limit: the smaller of the adaptive limit and this replica's share. With a pace, the
    /// requests per unit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        let limit = self.pace().map_or_else(|| self.adaptive.limit(), Pace::rate);
        limit.min(self.share)
    }

    /// The pace; `None` if the limit counts requests in flight.
    #[must_use]
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_deref()
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

    /// The instant since which no request is in flight or queued, and a turn is due; `None` while one
    /// is in flight or queued. A limiter that is idle for long may be deleted: only its adaptive state
    /// is lost.
    #[must_use]
    pub fn idle_since(&self) -> Option<Nanos> {
        let is_idle = self.in_flight.count() == 0 && self.queue.len() == 0;
        let next_turn = self.pace().map_or(Nanos(0), Pace::next_turn);
        is_idle.then_some(self.last_activity.max(next_turn))
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
        if self.is_admissible(now, by.class) {
            let permit = self.admit(now, now, lifetime, by);
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

    fn is_admissible(&self, now: Nanos, class: u8) -> bool {
        match &self.pace {
            Some(pace) => pace.next_turn() <= now,
            None => self.in_flight.count() < self.part(class),
        }
    }

    /// Returns the number of requests in flight from which `class` is no longer admitted.
    fn part(&self, class: u8) -> u32 {
        self.classes.part(self.limit(), class)
    }

    /// Admits a request. Its turn counts from the instant at which it was due, not before `earliest`.
    fn admit(
        &mut self,
        now: Nanos,
        earliest: Nanos,
        lifetime: Option<Nanos>,
        by: Requester,
    ) -> Permit {
        self.queue.admitted(by);
        let permit = self.in_flight.admit(now, lifetime, by);
        if let Some(pace) = &mut self.pace
            && pace.take_turn(permit, earliest, now)
        {
            self.in_flight.mark_paced(permit);
        }
        permit
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
        if let Some(pace) = &mut self.pace {
            pace.record(state.admitted_at, state.is_paced, &sample);
        }
    }

    fn reload(&mut self, config: &LimiterConfig) {
        self.adaptive.reload(config.limit, config.adaptive);
        self.pace = config.pace.map(|pace| match self.pace.take() {
            Some(mut before) => {
                before.reload(config.limit, pace);
                before
            }
            None => Box::new(Pace::new(config.limit, pace)),
        });
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
            && self.is_admissible(now, class)
            && let Some((ticket, waiter)) = self.queue.pop()
        {
            self.last_activity = now;
            let earliest = now.since(WAKE_DELAY);
            let permit = self.admit(now, earliest, waiter.lifetime, waiter.by);
            effects.push(LimiterEffect::Wake(ticket, permit));
        }
    }
}
