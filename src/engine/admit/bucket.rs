//! One concurrency limit behind a lock, with its waiting requests.
//!
//! Guarantees:
//! - Effects are applied under the lock of their step: no request is woken twice.
//! - A permit whose request was canceled goes to the next waiting request.
//! - Rules of a later configuration win over requests that still carry earlier rules.
//!
//! Not covered:
//! - The name of the bucket.

mod strict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::fleet::Fleet;
use super::leased::{Leased, Shared, Shown, Speak};
use super::{Ask, Load, Look};
use crate::clock::Clock;
use crate::kernel::concurrency::limiter::{Effect, Effects, Event, Refusal, Rules};
use crate::kernel::concurrency::policy::{Looks, Part};
use crate::kernel::concurrency::{Limiter, Outcome, Permit, Ticket};
use crate::kernel::coordinator::{Heartbeat, Reply, Terms};
use crate::kernel::units::{Incarnation, Nanos, Revision, Share};
pub(super) use strict::Spoken;
use strict::Strict;

#[derive(Debug)]
pub(super) struct Bucket(Mutex<State>);

#[derive(Debug)]
struct State {
    limiter: Limiter,
    revision: Revision,
    rules: Rules,
    /// The smoothed latency of successful requests. Each request has a weight of 1/8.
    rtt: Option<Nanos>,
    /// Set while the limit is shared with the fleet.
    leased: Option<Box<Leased>>,
    /// Set while every acquire asks the store.
    strict: Option<Box<Strict>>,
    waiters: HashMap<Ticket, oneshot::Sender<Permit>>,
    /// Removed from the map. A request that still finds this bucket must look it up again.
    retired: bool,
}

pub(super) enum Place {
    Passes(Permit),
    Waits(Waiting),
    Turned(Refusal),
    /// The share is not known yet. The request retries after the next reply.
    Cold(watch::Receiver<()>),
}

/// A request in the queue. Dropping it leaves the queue.
pub(super) struct Waiting {
    bucket: Arc<Bucket>,
    clock: Arc<Clock>,
    ticket: Ticket,
    patience: Nanos,
    permit: oneshot::Receiver<Permit>,
}

impl Bucket {
    pub(super) fn new(revision: Revision, rules: &Rules, jitter: u64) -> Self {
        let limiter = Limiter::new(rules, jitter);
        let (rules, waiters) = (*rules, HashMap::new());
        let (rtt, leased, strict, retired) = (None, None, None, false);
        let state = State { limiter, revision, rules, rtt, leased, strict, waiters, retired };
        Self(Mutex::new(state))
    }

    /// Tries to acquire a permit for `ask`. A request that already `waited` for a reply is
    /// decided by the current share. Returns `None` if the bucket was removed from the map.
    pub(super) fn arrive(
        self: &Arc<Self>,
        clock: &Arc<Clock>,
        ask: &Ask<'_>,
        fleet: Option<&Fleet>,
        waited: bool,
    ) -> Option<Place> {
        let mut state = self.0.lock();
        if state.retired {
            return None;
        }
        // Under the lock, so that the steps of a bucket see increasing times.
        let now = clock.steady();
        state.reload(now, ask.revision, ask.rules);
        if let Some(fleet) = fleet.filter(|_| state.is_to_join(ask))
            && let Some(answers) = state.join(now, ask, fleet, self)
            && !waited
        {
            return Some(Place::Cold(answers));
        }
        let Ask { keep, patience, .. } = *ask;
        let mut effects = state.step(now, Event::Arrive { keep, patience });
        Some(match effects.pop()? {
            Effect::Admit(permit) => Place::Passes(permit),
            Effect::Queue(ticket) => Place::Waits(self.wait(&mut state, clock, ticket, patience)),
            Effect::Deny(refusal) => Place::Turned(refusal),
            _ => return None,
        })
    }

    /// Applies `event`, and returns the effects that are left to the caller.
    pub(super) fn step(&self, clock: &Clock, event: Event) -> Effects {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.time(now, event);
        state.step(now, event)
    }

    /// Applies the rules of `revision`. Without `shared` the limit belongs to this replica alone.
    pub(super) fn reload(
        &self,
        clock: &Clock,
        revision: Revision,
        rules: &Rules,
        shared: Option<(Shared, Terms)>,
    ) {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.reload(now, revision, rules);
        match shared {
            Some((shared, terms)) => state.share_by(shared, terms),
            None => state.go_alone(now),
        }
        if let Some(strict) = &state.strict {
            strict.line.moves();
        }
    }

    /// Returns the acquire instant of `permit`. `None`
    /// if it was released or its deadline has passed.
    pub(super) fn since(&self, clock: &Clock, permit: Permit) -> Option<Nanos> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, Event::Expire);
        state.limiter.since(permit)
    }

    /// Releases permits whose deadline has passed.
    /// Returns the instant since when the bucket is idle.
    pub(super) fn sweep(&self, clock: &Clock) -> Option<Nanos> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, Event::Expire);
        state.limiter.idle_since()
    }

    /// Returns the instant since when the bucket has no requests, no share and no pending reports.
    pub(super) fn rests_since(&self) -> Option<Nanos> {
        self.0.lock().rests_since()
    }

    /// Marks the bucket as removed if it is idle since an instant that satisfies `old`.
    pub(super) fn retire(&self, old: impl Fn(Nanos) -> bool) -> bool {
        let mut state = self.0.lock();
        state.retired = state.rests_since().is_some_and(old);
        state.retired
    }

    pub(super) fn load(&self) -> Load {
        self.look().load
    }

    pub(super) fn look(&self) -> Look {
        let state = self.0.lock();
        let (limiter, rtt) = (&state.limiter, state.rtt);
        let (in_flight, waiting) = (limiter.in_flight(), limiter.waiting() + state.in_line());
        let load = Load { in_flight, waiting, limit: limiter.limit() };
        Look { load, rtt, min_rtt: limiter.policy().ideal() }
    }

    pub(super) fn admitted(&self) -> Vec<Nanos> {
        self.0.lock().limiter.permits().map(|(_, since)| since).collect()
    }

    fn wait(
        self: &Arc<Self>,
        state: &mut State,
        clock: &Arc<Clock>,
        ticket: Ticket,
        patience: Nanos,
    ) -> Waiting {
        let (sender, permit) = oneshot::channel();
        state.waiters.insert(ticket, sender);
        let timeout = state.rules.waiting.map_or(patience, |queue| queue.timeout);
        let (patience, clock) = (timeout.min(patience), Arc::clone(clock));
        Waiting { bucket: Arc::clone(self), clock, ticket, patience, permit }
    }
}

impl State {
    fn rests_since(&self) -> Option<Nanos> {
        let seated = self.leased.as_ref().is_some_and(|leased| leased.is_in_use());
        let asks = self.strict.as_ref().is_some_and(|strict| strict.is_in_use());
        self.limiter.idle_since().filter(|_| !seated && !asks)
    }

    /// Ignores earlier revisions: a check that started before a reload may arrive after it.
    fn reload(&mut self, now: Nanos, revision: Revision, rules: &Rules) {
        if revision < self.revision {
            return;
        }
        self.revision = revision;
        if self.rules != *rules {
            self.rules = *rules;
            self.step(now, Event::Reload(*rules));
        }
    }

    /// Updates the smoothed latency. Must run before the limiter forgets the permit.
    fn time(&mut self, now: Nanos, event: Event) {
        let Event::Leave { permit, outcome: Outcome::Success, rtt } = event else { return };
        let Some(since) = self.limiter.since(permit) else { return };
        let (new, old) = (rtt.unwrap_or(now.since(since)), self.rtt);
        let smoothed =
            |old: Nanos| Nanos(old.0.saturating_sub(old.0 / 8).saturating_add(new.0 / 8));
        self.rtt = Some(old.map_or(new, smoothed));
    }

    /// Applies `event`, wakes or rejects waiting requests, and returns the other effects in order.
    fn step(&mut self, now: Nanos, event: Event) -> Effects {
        if let Event::Leave { permit, .. } = event {
            self.over(now, permit);
        }
        if let Some(leased) = &mut self.leased {
            leased.usage.pass(now, self.limiter.in_flight(), self.limiter.waiting());
            if leased.fence(now) {
                let todo = self.limiter.step(now, Event::Fence);
                // The effects of a fence concern waiting requests only.
                self.carry_out(now, todo);
            }
        }
        let todo = self.limiter.step(now, event);
        if let Some(leased) = &mut self.leased {
            leased.usage.note(event, &todo, self.limiter.in_flight());
        }
        // The usual case.
        if todo.iter().all(is_for_the_caller) { todo } else { self.carry_out(now, todo) }
    }

    fn carry_out(&mut self, now: Nanos, mut todo: Effects) -> Effects {
        let mut mine = Effects::new();
        while !todo.is_empty() {
            let mut refused = Effects::new();
            for effect in todo.drain(..) {
                match effect {
                    Effect::Wake(ticket, permit) => {
                        refused.extend(self.wake(ticket, permit).into_iter().flat_map(|permit| {
                            let outcome = Outcome::Ignored;
                            self.limiter.step(now, Event::Leave { permit, outcome, rtt: None })
                        }));
                    }
                    // Dropping the sender ends the wait.
                    Effect::Late(ticket) => drop(self.waiters.remove(&ticket)),
                    // Its `Held` learns of it at its release.
                    Effect::Expired(permit) => self.over(now, permit),
                    other => mine.push(other),
                }
            }
            todo = refused;
        }
        mine
    }

    /// Sends `permit` to the waiting request. Returns it if the request was canceled.
    fn wake(&mut self, ticket: Ticket, permit: Permit) -> Option<Permit> {
        match self.waiters.remove(&ticket) {
            Some(waiter) => waiter.send(permit).err(),
            None => Some(permit),
        }
    }
}

const fn is_for_the_caller(effect: &Effect) -> bool {
    !matches!(effect, Effect::Wake(..) | Effect::Late(_) | Effect::Expired(_))
}

/// Calls of the fleet reporter.
impl Bucket {
    /// Returns the next action of the reporter. Calls `rests` under
    /// the lock if there is nothing to report until the next request.
    pub(super) fn speaks(&self, clock: &Clock, rests: impl FnOnce()) -> Speak {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, Event::Expire);
        if state.retired {
            // A retired bucket has no requests in flight and no share. If its goodbye was lost,
            // the store keeps the share until it expires, and a new bucket waits for that.
            rests();
            state.leased = None;
            return Speak::Cold;
        }
        let State { leased, limiter, .. } = &mut *state;
        let Some(leased) = leased else {
            rests();
            return Speak::Cold;
        };
        let speak = leased.speak(now, limiter);
        match &speak {
            Speak::Cold => {
                rests();
                if leased.is_local() {
                    state.leased = None;
                }
            }
            // New requests join the fleet again before this.
            // After the replica has left, they cannot.
            Speak::Beat { said, .. } if said.leaves && !leased.is_local() => {
                state.step(now, Event::Share(0));
            }
            _ => {}
        }
        speak
    }

    /// Returns `true` if `said` is still worth sending.
    /// A goodbye is not if the bucket has joined again.
    pub(super) fn awaits(&self, said: &Heartbeat) -> bool {
        self.0.lock().leased.as_ref().is_some_and(|leased| leased.awaits(said))
    }

    /// Applies the store's reply to `said`, or counts a missed report if there was none.
    pub(super) fn hear(
        &self,
        clock: &Clock,
        said: &Heartbeat,
        reply: Option<&Reply>,
        looks: Looks,
        alone: impl FnOnce(u32) -> Share,
    ) {
        let mut state = self.0.lock();
        let now = clock.steady();
        // Before the reply, so that the limiter also drops an expired share.
        state.step(now, Event::Expire);
        let State { leased: Some(leased), rules, .. } = &mut *state else { return };
        let alone = alone(rules.limit);
        let Some(share) = leased.hear(now, said, reply, looks.beats(), alone) else { return };
        let number = |share: Share| u32::try_from(share.0).unwrap_or(u32::MAX);
        let event = match reply {
            Some(Reply::Grant(grant)) => {
                let (share, ceiling) = (number(share), number(grant.ceiling));
                Event::Part(Part { share, ceiling, looks })
            }
            _ => Event::Share(number(share)),
        };
        state.step(now, event);
    }

    pub(super) fn part(&self, clock: &Clock) {
        let mut state = self.0.lock();
        let Some(leased) = &mut state.leased else { return };
        leased.part();
        if !leased.is_local() {
            state.step(clock.steady(), Event::Fence);
        }
    }

    pub(super) fn under(&self, now: Nanos) -> Result<Option<Incarnation>, ()> {
        let state = self.0.lock();
        state.leased.as_ref().map_or(Ok(None), |leased| leased.under(now, &state.limiter))
    }

    pub(super) fn longest(&self) -> Nanos {
        self.0.lock().leased.as_ref().map_or(Nanos(0), |leased| leased.longest())
    }

    pub(super) fn shown(&self, clock: &Clock) -> Option<Shown> {
        let state = self.0.lock();
        state.leased.as_ref().map(|leased| leased.shown(clock.steady(), &state.limiter))
    }
}

impl State {
    /// Applies new fleet parameters without waiting for a request. Otherwise
    /// the reports would use the old ones for as long as the share lasts.
    fn share_by(&mut self, shared: Shared, terms: Terms) {
        let leased = self.leased.as_mut().filter(|leased| !leased.is_local());
        if let Some(leased) = leased.filter(|leased| leased.shared != shared) {
            leased.reload(shared, terms);
        }
    }

    fn go_alone(&mut self, now: Nanos) {
        if let Some(leased) = self.leased.as_mut().filter(|leased| !leased.is_local()) {
            leased.go_alone(now);
            self.step(now, Event::Share(u32::MAX));
        }
    }

    /// Returns the fleet parameters of `ask`, unless they come from an earlier revision.
    fn shared(&self, ask: &Ask<'_>) -> Option<Shared> {
        if self.revision <= ask.revision {
            return ask.shared;
        }
        self.leased.as_ref().filter(|leased| !leased.is_local()).map(|leased| leased.shared)
    }

    /// Returns `false` on the usual path: the fleet
    /// parameters are unchanged and the share is known.
    fn is_to_join(&self, ask: &Ask<'_>) -> bool {
        match &self.leased {
            Some(leased) => {
                ask.shared.is_none_or(|shared| leased.shared != shared) || leased.is_cold()
            }
            None => ask.shared.is_some(),
        }
    }

    /// Joins or leaves the fleet as `ask` requires. If the share is not
    /// known yet, returns a receiver that is notified of the next reply.
    fn join(
        &mut self,
        now: Nanos,
        ask: &Ask<'_>,
        fleet: &Fleet,
        bucket: &Arc<Bucket>,
    ) -> Option<watch::Receiver<()>> {
        let Some(shared) = self.shared(ask) else {
            self.go_alone(now);
            return None;
        };
        if self.leased.is_none() {
            let (terms, totals) = (fleet.terms(shared.max_duration), Arc::clone(fleet.totals()));
            self.leased = Some(Box::new(Leased::new(shared, terms, now, totals)));
            self.step(now, Event::Share(0));
        }
        let leased = self.leased.as_mut()?;
        if leased.shared != shared {
            leased.reload(shared, fleet.terms(shared.max_duration));
        }
        if !leased.is_seated() && !fleet.has_left() {
            leased.join(now, fleet.member(), fleet.next_life());
            fleet.activate(ask.bucket, bucket);
            self.step(now, Event::Share(0));
        }
        let leased = self.leased.as_mut()?;
        leased.is_cold().then(|| leased.answers())
    }
}

impl Waiting {
    pub(super) async fn permit(mut self) -> Option<Permit> {
        let patience = Duration::from_nanos(self.patience.0);
        // A shorter queue timeout ends the wait by dropping the sender.
        match tokio::time::timeout(patience, &mut self.permit).await {
            Ok(permit) => permit.ok(),
            Err(_) => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.bucket.0.lock();
        let now = self.clock.steady();
        if state.waiters.remove(&self.ticket).is_some() {
            state.step(now, Event::Cancel(self.ticket));
        } else if let Ok(permit) = self.permit.try_recv() {
            // Woken, but the request was canceled before it took the permit.
            state.step(now, Event::Leave { permit, outcome: Outcome::Ignored, rtt: None });
        }
    }
}
