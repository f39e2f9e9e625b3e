//! One ceiling: who is in flight, who waits, who is turned away.
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
//! Guarantees: whoever is admitted is at most the limit-th in flight; when the limit falls nobody
//! is admitted until enough have left. Nobody is admitted past one who waits. Every ticket ends
//! once: `Wake`, `Late`, or the caller's own `Cancel`.
//! Cost of a step: O(1) for a permit that does not wait, O(log n) with a deadline, and no allocation once as many
//! were out before; O(waiters) where there are any.
//! Leaves out: ids (see [`super::register`]), waking, the timer, and the clock, which must not run
//! backwards.

use smallvec::SmallVec;

use super::in_flight::InFlight;
use super::policy::{Adaptive, Part, Policy, Sample};
use super::queue::Queue;
use super::{Outcome, Permit, Ticket};
use crate::kernel::units::Nanos;

/// What a ceiling is, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The ceiling; with `adaptive`, where it starts.
    pub limit: u32,
    /// How the ceiling is inferred; `None` keeps it at `limit`.
    pub adaptive: Option<Adaptive>,
    /// Who may wait; `None` turns everybody away at once.
    pub waiting: Option<Waiting>,
}

impl Rules {
    /// Never more than `limit`, and nobody waits.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self { limit, adaptive: None, waiting: None }
    }
}

/// Who may wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// How many may wait at once.
    pub size: u32,
    /// How long one may wait.
    pub timeout: Nanos,
}

/// What happened to a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// One asks to pass. Answered by exactly one of `Admit`, `Queue` and `Deny`.
    Arrive {
        /// How long its permit may be out; `None` where its end is always seen, as a stream's is.
        keep: Option<Nanos>,
        /// How long the caller itself can wait; the shorter of this and the queue's timeout counts.
        patience: Nanos,
    },
    /// A permit is given back.
    Leave {
        /// Which.
        permit: Permit,
        /// How it went.
        outcome: Outcome,
        /// Its latency where somebody measured better than from admission to now.
        rtt: Option<Nanos>,
    },
    /// The request of a permit with a deadline was seen alive: `keep` counts from now.
    Renew {
        /// Which.
        permit: Permit,
        /// How long it may still be out.
        keep: Nanos,
    },
    /// One that waits does so no more.
    Cancel(Ticket),
    /// Time has passed. Every event looks for what is over; this one does nothing else.
    Expire,
    /// The configuration was loaded anew. What was learnt stays.
    Reload(Rules),
    /// This replica's part of the ceiling; `u32::MAX` where it is alone.
    Share(u32),
    /// The same, of a ceiling that a fleet holds together.
    Part(Part),
    /// This replica's part is over: nobody is admitted, and nobody waits any longer for a place in it.
    Fence,
}

/// What is to be done about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The one that arrived passes.
    Admit(Permit),
    /// The one that arrived waits.
    Queue(Ticket),
    /// The one that arrived is turned away.
    Deny(Refusal),
    /// One that waited passes.
    Wake(Ticket, Permit),
    /// One that waited has waited too long, or in vain.
    Late(Ticket),
    /// A permit was out too long and is taken back.
    Expired(Permit),
    /// The permit or ticket of the event is not here: nothing was done about it.
    Unknown,
}

/// Why one is turned away at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The ceiling is reached and there is no queue, or no patience for one.
    Full,
    /// The ceiling is reached and so is the queue's size.
    QueueFull,
}

/// What is to be done, in this order. Two fit without an allocation.
pub type Effects = SmallVec<[Effect; 2]>;

/// One ceiling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limiter {
    policy: Policy,
    share: u32,
    waiting: Option<Waiting>,
    in_flight: InFlight,
    queue: Queue,
    /// When somebody last came or left.
    touched: Nanos,
}

impl Limiter {
    /// A ceiling with nobody in flight. `jitter` is any number, another one for each ceiling and
    /// replica: it spreads their recalibrations.
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

    /// Takes note of `event` and says what is to be done.
    pub fn step(&mut self, now: Nanos, event: Event) -> Effects {
        let mut effects = Effects::new();
        if event == Event::Fence {
            // Before anything: what deadlines make room for is not for a share that is over.
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

    /// How many may be in flight: the smaller of what the policy found and this replica's share.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.policy.limit().min(self.share)
    }

    /// How many are in flight.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// What was learnt.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// When `permit` was admitted; `None` when it is not out.
    #[must_use]
    pub fn since(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.since(permit)
    }

    /// The deadline of `permit`; `None` when it is not out or has none.
    #[must_use]
    pub fn until(&self, permit: Permit) -> Option<Nanos> {
        self.in_flight.until(permit)
    }

    /// The permits that are out, each with the instant it was admitted.
    pub fn permits(&self) -> impl Iterator<Item = (Permit, Nanos)> {
        self.in_flight.all()
    }

    /// When [`Event::Expire`] has something to do next. Cost: O(waiters).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.in_flight.next_deadline().into_iter().chain(self.queue.next_deadline()).min()
    }

    /// Since when nobody is in flight nor waits; `None` while somebody is. A ceiling that is idle
    /// for long may be dropped: a new one differs only in what was learnt.
    #[must_use]
    pub fn idle_since(&self) -> Option<Nanos> {
        let idle = self.in_flight.count() == 0 && self.queue.len() == 0;
        idle.then_some(self.touched)
    }

    fn arrive(&mut self, now: Nanos, keep: Option<Nanos>, patience: Nanos) -> Effect {
        self.touched = now;
        // Whoever could have been admitted from the queue was, so that nobody is overtaken here.
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
