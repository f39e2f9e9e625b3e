//! Explores all orders of arrivals, ends, cancellations and limits of a few requests.
//!
//! Guarantees:
//! - Each admission is within the part of its class.
//! - No permit stays free while an admissible request waits.
//! - A free permit goes to the first class that waits, and in it to a customer without a permit, else to
//!   the one with the fewest permits for its weight.
//! - A full queue displaces a request only for one of an earlier class or of a shorter flow.

use std::collections::BTreeMap;

use sluicegate_kernel::concurrency::limiter::{
    AcquireDenial, Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::{
    ClassParts, CustomerUse, Permit, QueueTicket, RequestOutcome, Requester, RequesterUse,
};
use sluicegate_kernel::units::Nanos;
use stateright::{Checker as _, Model, Property};

const NOW: Nanos = Nanos::from_secs(1_000);

struct Requests {
    config: LimiterConfig,
    requests: Vec<Requester>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    limiter: Limiter,
    limit: u32,
    /// The number of the next request.
    next: usize,
    in_flight: BTreeMap<Permit, Requester>,
    waiting: BTreeMap<QueueTicket, Requester>,
    wrong: Option<&'static str>,
    displaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Arrive,
    End(Permit),
    Cancel(QueueTicket),
    Share(u32),
}

impl State {
    fn permits(&self, customer: u64) -> u32 {
        let own = self.in_flight.values().filter(|by| by.customer == customer);
        u32::try_from(own.count()).unwrap()
    }

    /// The permits with one more, or 0 without a permit.
    fn level(&self, customer: u64) -> u32 {
        let permits = self.permits(customer);
        if permits == 0 { 0 } else { permits + 1 }
    }

    fn backlog(&self, by: Requester) -> u32 {
        let same = |other: &&Requester| (other.class, other.customer) == (by.class, by.customer);
        u32::try_from(self.waiting.values().filter(same).count()).unwrap()
    }

    fn fail_unless(&mut self, holds: bool, law: &'static str) {
        if !holds {
            self.wrong = Some(law);
        }
    }

    fn admit(&mut self, model: &Requests, permit: Permit, by: Requester) {
        let before = u32::try_from(self.in_flight.len()).unwrap();
        let part = model.config.classes.part(self.limit, by.class);
        self.fail_unless(before < part, "an admission above the part of its class");
        self.in_flight.insert(permit, by);
    }

    fn wake(&mut self, model: &Requests, ticket: QueueTicket, permit: Permit) {
        let by = self.waiting[&ticket];
        let better = self.waiting.iter().any(|(other, its)| {
            let (own, its_own) = (self.level(by.customer), self.level(its.customer));
            let is_same = its.customer == by.customer && its.class == by.class;
            its.class < by.class
                || its.class == by.class && its_own * by.weight < own * its.weight
                || is_same && *other < ticket
        });
        self.fail_unless(!better, "another request was first");
        self.waiting.remove(&ticket);
        self.admit(model, permit, by);
    }

    fn displace(&mut self, ticket: QueueTicket, by: Requester) {
        let victim = self.waiting[&ticket];
        let is_shorter = (self.backlog(by) + 1) * victim.weight < self.backlog(victim) * by.weight;
        let is_right = by.class < victim.class || by.class == victim.class && is_shorter;
        self.fail_unless(is_right, "displaced for a request that is not ahead");
        let is_last = self.waiting.values().all(|other| other.class <= victim.class);
        self.fail_unless(is_last, "a later class waits");
        self.displaced = true;
        self.waiting.remove(&ticket);
    }

    fn arrive(&mut self, model: &Requests) {
        let by = model.requests[self.next];
        self.next += 1;
        let timeout = Nanos::from_secs(9);
        let event = LimiterEvent::Acquire { lifetime: None, timeout, by };
        for effect in self.limiter.step(NOW, event) {
            match effect {
                LimiterEffect::Admit(permit) => self.admit(model, permit, by),
                LimiterEffect::Queue(ticket) => {
                    self.waiting.insert(ticket, by);
                }
                LimiterEffect::Displaced(ticket) => self.displace(ticket, by),
                LimiterEffect::Deny(AcquireDenial::QueueFull) => {
                    let is_behind = self.waiting.values().all(|other| other.class <= by.class);
                    self.fail_unless(is_behind, "denied, and a later class waits");
                }
                _ => self.wrong = Some("an arrival with another effect"),
            }
        }
    }

    fn apply(&mut self, model: &Requests, event: LimiterEvent) {
        for effect in self.limiter.step(NOW, event) {
            match effect {
                LimiterEffect::Wake(ticket, permit) => self.wake(model, ticket, permit),
                _ => self.wrong = Some("an event with another effect"),
            }
        }
    }
}

impl Model for Requests {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            limiter: Limiter::new(&self.config, 0),
            limit: self.config.limit,
            next: 0,
            in_flight: BTreeMap::new(),
            waiting: BTreeMap::new(),
            wrong: None,
            displaced: false,
        }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        if state.next < self.requests.len() {
            moves.push(Move::Arrive);
        }
        moves.extend(state.in_flight.keys().map(|permit| Move::End(*permit)));
        moves.extend(state.waiting.keys().map(|ticket| Move::Cancel(*ticket)));
        moves.extend([1, self.config.limit].map(Move::Share));
    }

    fn next_state(&self, last: &State, act: Move) -> Option<State> {
        let mut state = last.clone();
        match act {
            Move::Arrive => state.arrive(self),
            Move::End(permit) => {
                state.in_flight.remove(&permit);
                let outcome = RequestOutcome::Success;
                state.apply(self, LimiterEvent::Release { permit, outcome, rtt: None });
            }
            Move::Cancel(ticket) => {
                state.waiting.remove(&ticket);
                state.apply(self, LimiterEvent::Cancel(ticket));
            }
            Move::Share(share) => {
                state.limit = share;
                state.apply(self, LimiterEvent::Share(share));
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, state: &State| state.wrong.is_none()),
            Property::always("counts agree", |_, state: &State| {
                state.limiter.in_flight() as usize == state.in_flight.len()
                    && state.limiter.queue_len() == state.waiting.len()
            }),
            Property::always("the snapshot agrees", |model: &Self, state: &State| {
                let RequesterUse { classes, customers } = state.limiter.requesters(9);
                let is_of = |by: &Requester, class| model.config.classes.clamp(by.class) == class;
                let classes_agree = (0..).zip(&classes).all(|(class, used)| {
                    used.part == model.config.classes.part(state.limit, class)
                        && used.in_flight as usize
                            == state.in_flight.values().filter(|by| is_of(by, class)).count()
                        && used.waiting as usize
                            == state.waiting.values().filter(|by| is_of(by, class)).count()
                });
                let sum = |of: fn(&CustomerUse) -> u32| customers.iter().map(of).sum::<u32>();
                classes_agree
                    && (model.config.fair_keys.is_none()
                        || sum(|one| one.in_flight) as usize == state.in_flight.len()
                            && sum(|one| one.waiting) as usize == state.waiting.len())
            }),
            Property::always("no permit stays free", |model: &Self, state: &State| {
                let in_flight = u32::try_from(state.in_flight.len()).unwrap();
                let parts = &model.config.classes;
                let mut waiting = state.waiting.values();
                waiting.all(|by| parts.part(state.limit, by.class) <= in_flight)
            }),
            Property::sometimes("a request is displaced", |_, state: &State| state.displaced),
        ]
    }
}

fn explore(requests: &[(u8, u64, u32)], states: usize) {
    let requester = |&(class, customer, weight)| Requester { class, customer, weight };
    let model = Requests {
        config: LimiterConfig {
            queue: Some(QueueConfig { size: 3, timeout: Nanos::from_secs(9) }),
            classes: ClassParts::new(&[100, 50]).unwrap(),
            fair_keys: Some(9),
            ..LimiterConfig::fixed(2)
        },
        requests: requests.iter().map(requester).collect(),
    };
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
    // Pinned, because a model that lost an action would pass too easily.
    assert_eq!(checker.unique_state_count(), states);
}

#[test]
fn no_order_of_events_breaks_a_law_of_classes() {
    explore(&[(1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 2, 1), (1, 3, 1), (0, 2, 1)], 38_917);
}

/// Requests without a customer count as one customer.
#[test]
fn no_order_of_events_breaks_a_law_without_customers() {
    explore(
        &[(1, 0, 1), (0, 0, 1), (1, 2, 1), (0, 0, 1), (1, 0, 1), (0, 3, 1), (0, 0, 1)],
        132_238,
    );
}

#[test]
fn no_order_of_events_breaks_a_law_of_fair_shares() {
    explore(&[(0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 2, 2), (0, 3, 1)], 91_735);
}
