//! One life of one replica: an engine, a clock of its own, and the requests that it let in.

use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::admit::fleet::{Fleet, Pace};
use sluicegate::engine::{Admitted, Engine, Membership, Permits, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::{Cost, Descriptor, Question};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use super::wire::Wire;
use super::world::{CEILINGS, HEARTBEAT, TERM};
use crate::simulation::bad::Bad;

/// What it is doing that takes time.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A ceiling, for how long requests go on at most, and of which revision of the configuration that is.
#[derive(Clone, Copy)]
pub struct Limit {
    pub ceiling: u64,
    pub longest: Nanos,
    pub revision: u64,
}

/// A request that is going on, and what the replica holds for it; that is nothing once the replica is gone.
pub struct Request {
    pub ceiling: usize,
    pub ends: u64,
    pub permits: Option<Permits>,
}

pub struct Replica {
    pub engine: Arc<Engine>,
    pub wire: Arc<Wire>,
    tasks: Vec<Task>,
    /// Parts in a million by which its clock is slow.
    slow: u64,
    pub requests: Vec<Request>,
    /// Requests that come in a tick at most, to each ceiling.
    pub rush: u64,
    pub stands_until: u64,
    pub cut_until: u64,
    pub clogged_until: u64,
    pub leaving: bool,
    /// What it was configured with last.
    pub goes_by: u64,
    /// When it is configured anew, and how.
    pub news: Option<(u64, Limit)>,
    /// Of each ceiling, as last seen.
    seen: [(u64, u64); CEILINGS.len()],
    pub fences: u64,
    pub handoffs: u64,
}

impl Replica {
    /// `life` is larger than that of every one before.
    pub fn new(
        (id, life): (u64, u64),
        (start, slow): (Nanos, u64),
        limit: Limit,
        bad: Bad,
    ) -> Self {
        let clock = Clock::manual(start);
        let membership = Membership::new(&format!("replica-{id}"), life, NonZeroU32::MIN);
        let pace = Pace { heartbeat: HEARTBEAT, term: TERM };
        let life = Nanos(life * Nanos::SECOND.0);
        let fleet = Fleet::new(Arc::new(membership), life, pace, Duration::from_secs(1));
        let wire = Wire::new(bad);
        let engine = Engine::new(clock, wire.clone(), Policy::default());
        let engine = Arc::new(engine.with_fleet(Arc::new(fleet)));
        engine.publish(Arc::new(configuration(limit)));
        let (tasks, requests) = Default::default();
        Self {
            engine,
            wire,
            tasks,
            slow,
            requests,
            rush: 0,
            stands_until: 0,
            cut_until: 0,
            clogged_until: 0,
            leaving: false,
            goes_by: limit.ceiling,
            news: None,
            seen: Default::default(),
            fences: 0,
            handoffs: 0,
        }
    }

    /// Is configured anew.
    fn reloads(&mut self, limit: Limit) {
        self.goes_by = limit.ceiling;
        self.engine.publish(Arc::new(configuration(limit)));
    }

    /// Its clock goes on, whatever else stands still.
    pub fn passes(&self, tick: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!("a clock set by hand") };
        clock.advance(Nanos(tick.0 - tick.0 * self.slow / 1_000_000));
    }

    /// Somebody sets its wall clock forward.
    pub fn steps(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!("a clock set by hand") };
        clock.step(by);
    }

    /// Sees what has ended, and speaks where it is time to.
    pub fn lives(&mut self, tick: u64) {
        if let Some((_, limit)) = self.news.take_if(|(at, _)| *at <= tick) {
            self.reloads(limit);
        }
        for request in self.requests.extract_if(.., |request| request.ends <= tick) {
            request.permits.unwrap().finish(Outcome::Success, None);
        }
        if self.tasks.is_empty() && !self.leaving {
            let engine = Arc::clone(&self.engine);
            self.tasks.push(Box::pin(async move { engine.speak_once().await }));
        }
        self.goes_on();
        self.counts();
    }

    /// Does what can be done without waiting.
    pub fn goes_on(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }

    /// Gives all seats up.
    pub fn leave(&mut self) {
        self.leaving = true;
        let (engine, wire) = (Arc::clone(&self.engine), Arc::clone(&self.wire));
        self.tasks.push(Box::pin(async move { engine.ceilings().leave_fleet(&*wire).await }));
    }

    /// Whether it has said all that it had to.
    pub fn has_left(&self) -> bool {
        self.leaving && self.tasks.is_empty()
    }

    /// One comes; whether it passes at once, to end then.
    pub fn admits(&mut self, ceiling: usize, ends: u64) -> bool {
        let question = question(ceiling);
        let mut asked = pin!(self.engine.admit(&question, None));
        // One that would have to wait goes away.
        let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let std::task::Poll::Ready(Ok(Admitted::Decided(_, permits))) = polled else {
            return false;
        };
        assert!(!permits.is_empty(), "the ceiling covers the question");
        self.requests.push(Request { ceiling, ends, permits: Some(permits) });
        true
    }

    /// What it would let in, were all it has let in over.
    pub fn shares(&self) -> [u64; CEILINGS.len()] {
        let mut shares = [0; CEILINGS.len()];
        for (at, shown) in self.shown() {
            shares[at] = shown.share.0;
        }
        shares
    }

    fn counts(&mut self) {
        for (at, shown) in self.shown() {
            let (fences, handoffs) = self.seen[at];
            self.fences += shown.fences.saturating_sub(fences);
            self.handoffs += shown.handoffs.saturating_sub(handoffs);
            self.seen[at] = (shown.fences, shown.handoffs);
        }
    }

    fn shown(&self) -> Vec<(usize, sluicegate::engine::admit::Shown)> {
        let fleet = self.engine.ceilings().fleet().unwrap();
        let shown = fleet.shown(self.engine.clock(), CEILINGS.len());
        let known = |name: &[u8]| {
            let has = |key: &&str| name.windows(key.len()).any(|part| part == key.as_bytes());
            CEILINGS.iter().position(has).unwrap()
        };
        shown.into_iter().map(|(name, shown)| (known(&name), shown)).collect()
    }

    /// What goes on in the proxy when it dies.
    pub fn dies(self) -> Vec<Request> {
        let gone = |request| Request { permits: None, ..request };
        self.requests.into_iter().map(gone).collect()
    }
}

fn configuration(Limit { ceiling: limit, longest, revision }: Limit) -> config::Config {
    let longest = longest.0 / Nanos::MILLI.0;
    let ceiling = |key| {
        format!(
            "  - {{key: {key}, concurrency: {{limit: {limit}, max_duration: {longest}ms, \
             on_backend_failure: deny}}}}\n"
        )
    };
    let text = format!("domain: d\ndescriptors:\n{}", CEILINGS.map(ceiling).concat());
    config::load([("a.yaml", text.as_bytes())], Revision(revision), false).unwrap().0
}

fn question(ceiling: usize) -> Question<'static> {
    let entries = [(CEILINGS[ceiling], "v")].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Question { domain: "d", descriptors: [descriptor].into_iter().collect() }
}
