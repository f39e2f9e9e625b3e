//! Every order of acquire, release, time and cancel of a few requests, not a sample of them.
//!
//! Two ceilings of the real kernel and its register, three requests of two calls each. The network
//! delivers acquire and release of an id in any order, or loses the release. The state space is
//! finite: time stands still but for one jump past every deadline.

use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Rules, Waiting};
use sluicegate::kernel::concurrency::register::{Acquired, Bounds, Register, Released};
use sluicegate::kernel::concurrency::{Outcome, Permit, Ticket};
use sluicegate::kernel::units::Nanos;
use stateright::{Checker, Model, Property};

const KEEP: Nanos = Nanos::from_secs(10);
const BOUNDS: Bounds = Bounds { per_source: 3, total: 3, keep: KEEP };

/// Requests that compete for a ceiling.
struct Requests {
    count: usize,
    limit: u32,
    queue: u32,
    /// Whether a release that comes first is remembered.
    tombstones: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holding {
    Waits(Ticket),
    Passes(Permit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// Its acquire and its release are both under way.
    New,
    Waiting,
    Passing,
    /// Turned away, or it has ended.
    Turned,
    /// Found over on arrival.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: Nanos,
    limiter: Limiter,
    ids: Register<usize, u8, Holding>,
    requests: Vec<Request>,
    /// Whose release is no longer under way, because it was delivered or lost.
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

impl World {
    fn acquire(&mut self, id: usize) {
        let arrive = Event::Arrive { keep: Some(KEEP), patience: KEEP };
        let mut effects = self.limiter.step(self.now, arrive);
        let answer = effects.pop();
        let holding = match answer {
            Some(Effect::Admit(permit)) => Holding::Passes(permit),
            Some(Effect::Queue(ticket)) => Holding::Waits(ticket),
            Some(Effect::Deny(_)) => return self.requests[id] = Request::Turned,
            _ => return self.wrong = Some("an arrival without an answer"),
        };
        match self.ids.acquire(self.now, id, self.now.plus(KEEP).plus(KEEP), holding) {
            Acquired::Held => {
                let waits = matches!(holding, Holding::Waits(_));
                self.requests[id] = if waits { Request::Waiting } else { Request::Passing };
            }
            Acquired::Over(holding) => {
                self.requests[id] = Request::Over;
                self.give_back(holding);
            }
            Acquired::Taken(_) => self.wrong = Some("an id taken twice"),
        }
    }

    fn give_back(&mut self, holding: Holding) {
        let event = match holding {
            Holding::Passes(permit) => {
                Event::Leave { permit, outcome: Outcome::Success, rtt: None }
            }
            Holding::Waits(ticket) => Event::Cancel(ticket),
        };
        self.step(event);
    }

    fn step(&mut self, event: Event) {
        for effect in self.limiter.step(self.now, event) {
            match effect {
                Effect::Wake(ticket, permit) => self.woken(ticket, permit),
                Effect::Late(ticket) => self.over(Holding::Waits(ticket)),
                Effect::Expired(permit) => self.over(Holding::Passes(permit)),
                _ => self.wrong = Some("given back what was not out"),
            }
        }
    }

    fn woken(&mut self, ticket: Ticket, permit: Permit) {
        let Some(id) = self.holder(Holding::Waits(ticket)) else {
            return self.wrong = Some("woke somebody who does not wait");
        };
        self.requests[id] = Request::Passing;
        *self.ids.held(&id).expect("found just now") = Holding::Passes(permit);
    }

    fn over(&mut self, holding: Holding) {
        let Some(id) = self.holder(holding) else {
            return self.wrong = Some("ended what nobody holds");
        };
        self.requests[id] = Request::Turned;
        self.ids.release(self.now, &id, &0);
    }

    fn holder(&mut self, holding: Holding) -> Option<usize> {
        (0..self.requests.len()).find(|id| self.ids.held(id).is_some_and(|held| *held == holding))
    }

    fn release(&mut self, id: usize, tombstones: bool) {
        (self.released[id], self.delivered[id]) = (true, true);
        if !tombstones && self.ids.held(&id).is_none() {
            return;
        }
        if let Released::Held(holding) = self.ids.release(self.now, &id, &0) {
            self.requests[id] = Request::Turned;
            self.give_back(holding);
        }
    }
}

impl Model for Requests {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let waiting = Some(Waiting { size: self.queue, timeout: KEEP });
        let rules = Rules { waiting, ..Rules::fixed(self.limit) };
        vec![World {
            now: Nanos::from_secs(1_000),
            limiter: Limiter::new(&rules, 0),
            ids: Register::new(BOUNDS),
            requests: vec![Request::New; self.count],
            released: vec![false; self.count],
            delivered: vec![false; self.count],
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        for id in 0..self.count {
            if world.requests[id] == Request::New {
                moves.push(Move::Acquire(id));
            }
            if !world.released[id] {
                moves.extend([Move::Release(id), Move::Lose(id)]);
            }
        }
        moves.extend([Move::Limit(0), Move::Limit(self.limit)]);
        if world.now < Nanos::from_secs(1_030) {
            moves.push(Move::Later);
        }
    }

    fn next_state(&self, last: &World, act: Move) -> Option<World> {
        let mut world = last.clone();
        match act {
            Move::Acquire(id) => world.acquire(id),
            Move::Release(id) => world.release(id, self.tombstones),
            Move::Lose(id) => world.released[id] = true,
            Move::Limit(limit) => world.step(Event::Share(limit)),
            Move::Later => {
                world.now = world.now.plus(KEEP);
                world.step(Event::Expire);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, world: &World| world.wrong.is_none()),
            Property::always(
                "never more in flight than the limit",
                |model: &Self, world: &World| world.limiter.in_flight() <= model.limit,
            ),
            Property::always("in flight are those that pass", |_, world: &World| {
                let passing = world.requests.iter().filter(|r| **r == Request::Passing).count();
                world.limiter.in_flight() as usize == passing
            }),
            Property::always("waiting are those that wait", |_, world: &World| {
                let waiting = world.requests.iter().filter(|r| **r == Request::Waiting).count();
                world.limiter.waiting() == waiting
            }),
            Property::always("nobody waits beside room", |_, world: &World| {
                world.limiter.waiting() == 0 || world.limiter.limit() <= world.limiter.in_flight()
            }),
            // Within the time of a tombstone: a release and its acquire are not ten seconds apart.
            Property::always("a request that was released holds nothing", |_, world: &World| {
                let at_once = world.now == Nanos::from_secs(1_000);
                !at_once || !world.leaks()
            }),
            Property::sometimes("a release comes first and is answered", |_, world: &World| {
                world.requests.contains(&Request::Over) && world.limiter.in_flight() == 0
            }),
            Property::sometimes("somebody waits", |_, world: &World| 0 < world.limiter.waiting()),
        ]
    }
}

impl World {
    /// Does a request pass or wait whose release was delivered?
    fn leaks(&self) -> bool {
        let live = |request: &Request| matches!(request, Request::Waiting | Request::Passing);
        let mut both = self.requests.iter().zip(&self.delivered);
        both.any(|(request, delivered)| *delivered && live(request))
    }
}

#[test]
fn in_every_order_of_acquire_release_and_expiry_nothing_leaks() {
    let model = Requests { count: 3, limit: 1, queue: 1, tombstones: true };
    let checked = model.checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    println!("{} states", checked.unique_state_count());
}

#[test]
fn without_tombstones_the_model_finds_the_leak() {
    let model = Requests { count: 2, limit: 1, queue: 1, tombstones: false };
    let checked = model.checker().spawn_bfs().join();
    assert!(checked.discovery("a request that was released holds nothing").is_some());
}
