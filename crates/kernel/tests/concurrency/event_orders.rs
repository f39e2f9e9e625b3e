//! A model check of every order of acquire, release, expiry and limit change for three requests.
//!
//! The limiter and the registry are the real ones. The network delivers the acquire and the
//! release of an id in any order, or loses the release. Time advances only in three jumps of ten
//! seconds, so the state space is finite.

use sluicegate_kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::permit_registry::{
    EarlyReleaseLimits, PermitRegistry, RegisterOutcome, ReleaseOutcome,
};
use sluicegate_kernel::concurrency::{Permit, QueueTicket, RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;
use stateright::{Checker, Model, Property};

const KEEP: Nanos = Nanos::from_secs(10);
const BOUNDS: EarlyReleaseLimits = EarlyReleaseLimits { per_source: 3, total: 3, lifetime: KEEP };

struct Requests {
    count: usize,
    limit: u32,
    queue: u32,
    /// `true` if early releases are remembered.
    early_releases: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PermitOrTicket {
    Ticket(QueueTicket),
    Permit(Permit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RequestPhase {
    /// The acquire of this id has not arrived yet.
    New,
    Waiting,
    InFlight,
    /// The id was denied, released or expired.
    Finished,
    /// The release of this id arrived before its acquire.
    ReleasedFirst,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelState {
    now: Nanos,
    limiter: Limiter,
    ids: PermitRegistry<usize, u8, PermitOrTicket>,
    requests: Vec<RequestPhase>,
    /// For each id: `true` once its release was delivered or lost.
    released: Vec<bool>,
    delivered: Vec<bool>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Move {
    Acquire(usize),
    Release(usize),
    Lose(usize),
    Limit(u32),
    Later,
}

impl ModelState {
    fn acquire(&mut self, id: usize) {
        let arrive =
            LimiterEvent::Acquire { lifetime: Some(KEEP), timeout: KEEP, by: Requester::ANY };
        let mut effects = self.limiter.step(self.now, arrive);
        let answer = effects.pop();
        let value = match answer {
            Some(LimiterEffect::Admit(permit)) => PermitOrTicket::Permit(permit),
            Some(LimiterEffect::Queue(ticket)) => PermitOrTicket::Ticket(ticket),
            Some(LimiterEffect::Deny(_)) => return self.requests[id] = RequestPhase::Finished,
            _ => return self.wrong = Some("an arrival without an answer"),
        };
        match self.ids.acquire(self.now, id, self.now.plus(KEEP).plus(KEEP), value) {
            RegisterOutcome::Registered => {
                let waits = matches!(value, PermitOrTicket::Ticket(_));
                self.requests[id] =
                    if waits { RequestPhase::Waiting } else { RequestPhase::InFlight };
            }
            RegisterOutcome::AlreadyReleased(value) => {
                self.requests[id] = RequestPhase::ReleasedFirst;
                self.release_or_cancel(value);
            }
            RegisterOutcome::AlreadyRegistered(_) => self.wrong = Some("an id taken twice"),
        }
    }

    fn release_or_cancel(&mut self, value: PermitOrTicket) {
        let event = match value {
            PermitOrTicket::Permit(permit) => {
                LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None }
            }
            PermitOrTicket::Ticket(ticket) => LimiterEvent::Cancel(ticket),
        };
        self.step(event);
    }

    fn step(&mut self, event: LimiterEvent) {
        for effect in self.limiter.step(self.now, event) {
            match effect {
                LimiterEffect::Wake(ticket, permit) => self.woken(ticket, permit),
                LimiterEffect::TimedOut(ticket) => self.end(PermitOrTicket::Ticket(ticket)),
                LimiterEffect::Expired(permit) => self.end(PermitOrTicket::Permit(permit)),
                _ => self.wrong = Some("given back what was not out"),
            }
        }
    }

    fn woken(&mut self, ticket: QueueTicket, permit: Permit) {
        let Some(id) = self.id_of(PermitOrTicket::Ticket(ticket)) else {
            return self.wrong = Some("woke somebody who does not wait");
        };
        self.requests[id] = RequestPhase::InFlight;
        *self.ids.value_mut(&id).expect("found just now") = PermitOrTicket::Permit(permit);
    }

    fn end(&mut self, value: PermitOrTicket) {
        let Some(id) = self.id_of(value) else {
            return self.wrong = Some("ended what nobody holds");
        };
        self.requests[id] = RequestPhase::Finished;
        self.ids.release(self.now, &id, &0);
    }

    fn id_of(&mut self, value: PermitOrTicket) -> Option<usize> {
        (0..self.requests.len())
            .find(|id| self.ids.value_mut(id).is_some_and(|held| *held == value))
    }

    fn release(&mut self, id: usize, early_releases: bool) {
        (self.released[id], self.delivered[id]) = (true, true);
        if !early_releases && self.ids.value_mut(&id).is_none() {
            return;
        }
        if let ReleaseOutcome::Released(value) = self.ids.release(self.now, &id, &0) {
            self.requests[id] = RequestPhase::Finished;
            self.release_or_cancel(value);
        }
    }
}

impl Model for Requests {
    type State = ModelState;
    type Action = Move;

    fn init_states(&self) -> Vec<ModelState> {
        let waiting = Some(QueueConfig { size: self.queue, timeout: KEEP });
        let rules = LimiterConfig { queue: waiting, ..LimiterConfig::fixed(self.limit) };
        vec![ModelState {
            now: Nanos::from_secs(1_000),
            limiter: Limiter::new(&rules, 0),
            ids: PermitRegistry::new(BOUNDS),
            requests: vec![RequestPhase::New; self.count],
            released: vec![false; self.count],
            delivered: vec![false; self.count],
            wrong: None,
        }]
    }

    fn actions(&self, state: &ModelState, moves: &mut Vec<Move>) {
        for id in 0..self.count {
            if state.requests[id] == RequestPhase::New {
                moves.push(Move::Acquire(id));
            }
            if !state.released[id] {
                moves.extend([Move::Release(id), Move::Lose(id)]);
            }
        }
        moves.extend([Move::Limit(0), Move::Limit(self.limit)]);
        if state.now < Nanos::from_secs(1_030) {
            moves.push(Move::Later);
        }
    }

    fn next_state(&self, last: &ModelState, act: Move) -> Option<ModelState> {
        let mut state = last.clone();
        match act {
            Move::Acquire(id) => state.acquire(id),
            Move::Release(id) => state.release(id, self.early_releases),
            Move::Lose(id) => state.released[id] = true,
            Move::Limit(limit) => state.step(LimiterEvent::Share(limit)),
            Move::Later => {
                state.now = state.now.plus(KEEP);
                state.step(LimiterEvent::Expire);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, state: &ModelState| state.wrong.is_none()),
            Property::always(
                "never more in flight than the limit",
                |model: &Self, state: &ModelState| state.limiter.in_flight() <= model.limit,
            ),
            Property::always("in flight are those that pass", |_, state: &ModelState| {
                let in_flight =
                    state.requests.iter().filter(|r| **r == RequestPhase::InFlight).count();
                state.limiter.in_flight() as usize == in_flight
            }),
            Property::always("waiting are those that wait", |_, state: &ModelState| {
                let waiting =
                    state.requests.iter().filter(|r| **r == RequestPhase::Waiting).count();
                state.limiter.queue_len() == waiting
            }),
            Property::always("nobody waits beside room", |_, state: &ModelState| {
                state.limiter.queue_len() == 0 || state.limiter.limit() <= state.limiter.in_flight()
            }),
            // Only in the first ten seconds, because early releases are remembered for that long.
            Property::always(
                "a request that was released holds nothing",
                |_, state: &ModelState| {
                    let at_once = state.now == Nanos::from_secs(1_000);
                    !at_once || !state.leaks()
                },
            ),
            Property::sometimes(
                "a release comes first and is answered",
                |_, state: &ModelState| {
                    state.requests.contains(&RequestPhase::ReleasedFirst)
                        && state.limiter.in_flight() == 0
                },
            ),
            Property::sometimes("somebody waits", |_, state: &ModelState| {
                0 < state.limiter.queue_len()
            }),
        ]
    }
}

impl ModelState {
    /// Returns `true` if a released request is still in flight or queued.
    fn leaks(&self) -> bool {
        let live = |request: &RequestPhase| {
            matches!(request, RequestPhase::Waiting | RequestPhase::InFlight)
        };
        let mut both = self.requests.iter().zip(&self.delivered);
        both.any(|(request, delivered)| *delivered && live(request))
    }
}

#[test]
fn no_order_of_events_leaks_a_permit() {
    let model = Requests { count: 3, limit: 1, queue: 1, early_releases: true };
    let checked = model.checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    println!("{} states", checked.unique_state_count());
}

#[test]
fn model_finds_a_leak_without_early_releases() {
    let model = Requests { count: 2, limit: 1, queue: 1, early_releases: false };
    let checked = model.checker().spawn_bfs().join();
    assert!(checked.discovery("a request that was released holds nothing").is_some());
}
