//! One concurrency limit as a state machine: permits in flight, queue, admission.
//!
//! ```
//! use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Refusal, Rules};
//! use sluicegate::kernel::concurrency::Outcome;
//! use sluicegate::kernel::units::Nanos;
//!
//! let mut ceiling = Limiter::new(&Rules::fixed(1), 0);
//! let (now, arrive) = (Nanos::from_secs(1), Event::Arrive { keep: None, patience: Nanos(0) });
//! let effects = ceiling.step(now, arrive);
//! let [Effect::Admit(permit)] = effects[..] else { panic!() };
//! assert_eq!(ceiling.step(now, arrive)[..], [Effect::Deny(Refusal::Full)]);
//! let leave = Event::Leave { permit, outcome: Outcome::Success, rtt: None };
//! assert_eq!(ceiling.step(now, leave)[..], []);
//! assert_eq!(ceiling.in_flight(), 0);
//! ```
//!
//! Guarantees:
//! - An admission never raises the number in flight above the current limit.
//! - After the limit falls, admissions resume once enough permits are released.
//! - No request overtakes a waiting one.
//! - Every ticket ends once: by a permit, a timeout, or the caller's own cancel.
//! - A step costs O(1) without a deadline, O(log n) with one, O(waiters) with a queue.
//! - A step allocates only if more permits are in flight than ever before.
//!
//! Not covered:
//! - Request ids, which the registry maps to permits.
//! - Waking tasks, and the timer.
//! - The clock, which must be monotonic.

use smallvec::SmallVec;

use super::in_flight::InFlight;
use super::policy::{Adaptive, Part, Policy, Sample};
use super::queue::Queue;
use super::{Outcome, Permit, Ticket};
use crate::kernel::units::Nanos;

/// The configuration of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The limit in requests; with `adaptive`, its initial value.
    pub limit: u32,
    /// The adaptation to latency; `None` keeps the limit at `limit`.
    pub adaptive: Option<Adaptive>,
    /// The queue; `None` denies at once.
    pub waiting: Option<Waiting>,
}

impl Rules {
    /// A constant `limit` without a queue.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self { limit, adaptive: None, waiting: None }
    }
}

/// The bounds of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// The largest number of waiting requests.
    pub size: u32,
    /// The longest wait of one request.
    pub timeout: Nanos,
}

/// An input event of a [`Limiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A request needs a permit. The reply is exactly one of admit, queue and deny.
    Arrive {
        /// The permit's lifetime; `None` if its end is always observed, as for a stream.
        keep: Option<Nanos>,
        /// The caller's own timeout; the shorter of this and the queue timeout applies.
        patience: Nanos,
    },
    /// A permit is released.
    Leave {
        /// The permit to release.
        permit: Permit,
        /// The result of the request.
        outcome: Outcome,
        /// A measured latency, if the caller has a better one than the time since admission.
        rtt: Option<Nanos>,
    },
    /// The request of a permit with a deadline is still alive: `keep` counts from now.
    Renew {
        /// The permit to renew.
        permit: Permit,
        /// The permit's new lifetime.
        keep: Nanos,
    },
    /// The caller cancels a waiting request.
    Cancel(Ticket),
    /// Time has passed. Every event expires overdue permits and tickets; this one does only that.
    Expire,
    /// The configuration was reloaded. The adaptive limit keeps its state.
    Reload(Rules),
    /// This replica's share of the limit; `u32::MAX` without a fleet.
    Share(u32),
    /// This replica's share of a limit that the fleet adapts together.
    Part(Part),
    /// This replica's share expired: stop admitting and time out every waiting request.
    Fence,
}

/// An output of a [`Limiter`], to be carried out by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The arriving request is admitted.
    Admit(Permit),
    /// The arriving request waits.
    Queue(Ticket),
    /// The arriving request is denied.
    Deny(Refusal),
    /// A waiting request is admitted.
    Wake(Ticket, Permit),
    /// A waiting request timed out, or its share expired.
    Late(Ticket),
    /// A permit reached its deadline and was released.
    Expired(Permit),
    /// The permit or ticket of the event is unknown, so nothing changed.
    Unknown,
}

/// The reason for an immediate denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The limit is reached, and there is no queue or the caller has no time to wait.
    Full,
    /// The limit is reached and the queue is full.
    QueueFull,
}

/// Effects in the order in which to carry them out. Two fit without an allocation.
pub type Effects = SmallVec<[Effect; 2]>;

/// One concurrency limit with its permits and its queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limiter {
    policy: Policy,
    share: u32,
    waiting: Option<Waiting>,
    in_flight: InFlight,
    queue: Queue,
    touched: Nanos,
}

impl Limiter {
    /// A limit with nothing in flight.
    ///
    /// Use another `jitter` for each limit and replica: it spreads their min RTT probes.
    #[must_use]
    pub fn new(rules: &Rules, jitter: u64) -> Self {
        Self {
            policy: Policy::new(rules.limit, rules.adaptive, jitter),
            share: u32::MAX,
            waiting: rules.waiting,
            in_flight: InFlight::default(),
            queue: Queue::default(),
            touched: Nanos(0),
        }
    }

    /// Applies `event` at `now` and returns its effects.
    pub fn step(&mut self, now: Nanos, event: Event) -> Effects {
        let mut effects = Effects::new();
        if event == Event::Fence {
            // First: permits that expire in this step must not admit requests of an expired share.
            self.share = 0;
        }
        self.policy.pass(now);
        self.expire(now, &mut effects);
        match event {
            Event::Arrive { keep, patience } => effects.push(self.arrive(now, keep, patience)),
            Event::Leave { permit, outcome, rtt } => {
                self.leave(now, permit, outcome, rtt, &mut effects);
            }
            Event::Renew { permit, keep } => {
                let known = self.in_flight.renew(permit, now, keep);
                effects.extend((!known).then_some(Effect::Unknown));
            }
            Event::Cancel(ticket) => {
                let known = self.queue.leave(ticket);
                effects.extend((!known).then_some(Effect::Unknown));
            }
            Event::Expire => {}
            Event::Reload(rules) => self.reload(&rules),
            Event::Share(share) => {
                self.share = share;
                self.policy.take(now, None);
            }
            Event::Part(part) => {
                self.share = part.share;
                self.policy.take(now, Some(part));
            }
            Event::Fence => {
                let waiters = std::iter::from_fn(|| self.queue.serve());
                effects.extend(waiters.map(|waiter| Effect::Late(waiter.ticket)));
            }
        }
        self.admit_waiting(now, &mut effects);
        effects
    }

    /// The effective limit: the smaller of the adaptive limit and this replica's share.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.policy.limit().min(self.share)
    }

    /// The number of permits in flight.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// The number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The adaptive limit's state.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The instant of `permit`'s admission; `None` if it is not in flight.
    #[must_use]
    pub fn since(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.since(permit)
    }

    /// The deadline of `permit`; `None` if it is not in flight or has none.
    #[must_use]
    pub fn until(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.until(permit)
    }

    /// All permits in flight, each with the instant of its admission.
    pub fn permits(&self) -> impl Iterator<Item = (Permit, Nanos)> {
        self.in_flight.all()
    }

    /// The next instant at which [`Event::Expire`] has an effect. Cost: O(waiters).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.in_flight.next_deadline().into_iter().chain(self.queue.next_deadline()).min()
    }

    /// The instant since which nothing is in flight or queued; `None` while something is.
    ///
    /// A limit that is idle for long may be dropped: a new one lacks only the adaptive state.
    #[must_use]
    pub fn idle_since(&self) -> Option<Nanos> {
        let idle = self.in_flight.count() == 0 && self.queue.len() == 0;
        idle.then_some(self.touched)
    }

    fn arrive(&mut self, now: Nanos, keep: Option<Nanos>, patience: Nanos) -> Effect {
        self.touched = now;
        // The queue was served before this event, so nothing is overtaken here.
        if self.in_flight.count() < self.limit() {
            return Effect::Admit(self.in_flight.admit(now, keep));
        }
        let Some(waiting) = self.waiting.filter(|_| Nanos(0) < patience) else {
            return Effect::Deny(Refusal::Full);
        };
        if usize::try_from(waiting.size).unwrap_or(usize::MAX) <= self.queue.len() {
            return Effect::Deny(Refusal::QueueFull);
        }
        Effect::Queue(self.queue.join(now.plus(waiting.timeout.min(patience)), keep))
    }

    fn leave(
        &mut self,
        now: Nanos,
        permit: Permit,
        outcome: Outcome,
        rtt: Option<Nanos>,
        effects: &mut Effects,
    ) {
        let Some(held) = self.in_flight.take(permit) else {
            return effects.push(Effect::Unknown);
        };
        self.touched = now;
        let rtt = rtt.unwrap_or(now.since(held.since));
        let sample = Sample { at: now, rtt, in_flight: held.among, outcome };
        self.policy.step(&sample, self.share);
    }

    fn reload(&mut self, rules: &Rules) {
        self.policy.reload(rules.limit, rules.adaptive);
        self.waiting = rules.waiting;
    }

    fn expire(&mut self, now: Nanos, effects: &mut Effects) {
        while let Some(permit) = self.in_flight.expire(now) {
            self.touched = now;
            effects.push(Effect::Expired(permit));
        }
        while let Some(ticket) = self.queue.expire(now) {
            effects.push(Effect::Late(ticket));
        }
        self.admit_waiting(now, effects);
    }

    fn admit_waiting(&mut self, now: Nanos, effects: &mut Effects) {
        while self.in_flight.count() < self.limit() {
            let Some(waiter) = self.queue.serve() else { return };
            self.touched = now;
            effects.push(Effect::Wake(waiter.ticket, self.in_flight.admit(now, waiter.keep)));
        }
    }
}
