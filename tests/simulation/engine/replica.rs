//! One life of one replica: an engine, a clock of its own, and the requests that it let in.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::admit::Load;
use sluicegate::engine::admit::fleet::{Fleet, Pace};
use sluicegate::engine::{Admitted, Engine, Membership, Permits, Policy, Refusal};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Reason};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use super::wire::Wire;
use super::world::{CEILINGS, HEARTBEAT, PATIENCE, TERM, TICK};
use crate::simulation::bad::Bad;

/// What it is doing that takes time.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// How many wait for a permit at most.
const QUEUE: usize = 3;
/// Ticks between two looks at what is over: a second, as [`Admission::run`](sluicegate::engine::admit::Admission::run) has it.
const SWEEP: u64 = Nanos::SECOND.0 / TICK.0;

/// A ceiling, for how long requests go on and wait at most, and of which revision of the configuration that is.
#[derive(Clone, Copy)]
pub struct Limit {
    pub ceiling: u64,
    pub longest: Nanos,
    /// Nobody waits where there is none.
    pub queue: Option<Nanos>,
    pub revision: u64,
}

/// A question that waits, and for how many ticks its request will go on.
struct Waiter {
    ceiling: usize,
    lasts: u64,
    asked: Pin<Box<dyn Future<Output = Result<Admitted, Refusal>>>>,
    woken: Arc<Woken>,
    /// When it asked, by its replica's clock.
    since: Nanos,
    /// Ticks in which its replica was awake.
    awake: u64,
}

/// Whether it was woken since it was last looked at: nobody looks else.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// What became of those who waited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// Let in by what the store granted.
    pub granted: u64,
    /// Let in where another left.
    pub followed: u64,
    /// Turned away before their time, with the share that they waited for.
    pub fenced: u64,
    /// Turned away in their time.
    pub late: u64,
}

impl Waited {
    pub const fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.followed += other.followed;
        self.fenced += other.fenced;
        self.late += other.late;
    }
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
    queue: Option<Nanos>,
    waiters: Vec<Waiter>,
    pub waited: Waited,
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
        let (tasks, requests, waiters, waited) = Default::default();
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
            queue: limit.queue,
            waiters,
            waited,
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
        if tick.is_multiple_of(SWEEP) {
            self.engine.ceilings().sweep();
        }
        self.waiters.iter_mut().for_each(|waiter| waiter.awake += 1);
        let followed = self.serves(tick);
        self.waited.followed += followed;
        if self.tasks.is_empty() && !self.leaving {
            let engine = Arc::clone(&self.engine);
            self.tasks.push(Box::pin(async move { engine.speak_once().await }));
        }
        self.goes_on(tick);
        self.counts();
    }

    /// Does what can be done without waiting.
    pub fn goes_on(&mut self, tick: u64) {
        let mut context = Context::from_waker(Waker::noop());
        self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        // Nobody has left meanwhile: what there is more was granted.
        let granted = self.serves(tick);
        self.waited.granted += granted;
    }

    /// Looks at those who were woken; how many came in.
    fn serves(&mut self, tick: u64) -> u64 {
        let (mut came, now) = (0, self.engine.clock().steady());
        for mut waiter in std::mem::take(&mut self.waiters) {
            let is_woken = waiter.woken.0.swap(false, Relaxed);
            match if is_woken { waiter.looks() } else { Poll::Pending } {
                Poll::Pending => self.waiters.push(waiter),
                Poll::Ready(Ok(Admitted::Decided(_, permits))) => {
                    came += 1;
                    self.takes(waiter.ceiling, tick + waiter.lasts, permits);
                }
                Poll::Ready(Ok(Admitted::Rejected(why))) => {
                    let early = self.queue.is_some_and(|queue| now.since(waiter.since) < queue);
                    let fenced = early && !self.leaving && why.reason == Reason::QueueTimeout;
                    self.waited.fenced += u64::from(fenced);
                    self.waited.late += u64::from(!early);
                }
                Poll::Ready(Err(refused)) => panic!("{refused:?}"),
            }
        }
        came
    }

    /// What is wrong with those who wait: one that should have passed, or been turned away, and was not.
    pub fn wrong(&self) -> Option<String> {
        let queue = self.queue?;
        // Besides, the first answer is waited for, which may be that to the third word from now, and who sees that time is up
        // looks once a second.
        let most = queue.0.div_ceil(TICK.0) + 3 * PATIENCE + SWEEP + 2;
        if let Some(waiter) = self.waiters.iter().find(|waiter| most < waiter.awake) {
            return Some(format!("one waits for {} ticks, {most} at most", waiter.awake));
        }
        let loads = CEILINGS.iter().filter_map(|key| self.engine.look("d", &[(key, "v")]));
        let room = |load: &Load| 0 < load.waiting && load.in_flight < load.limit;
        let load = loads.map(|look| look.load).find(room)?;
        Some(format!("one waits though there is room: {load:?}"))
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

    /// One comes, for so many ticks; whether it passes at once. Else it waits, where one may.
    pub fn admits(&mut self, ceiling: usize, tick: u64, lasts: u64) -> bool {
        let engine = Arc::clone(&self.engine);
        let since = engine.clock().steady();
        let asked = async move { engine.admit(&question(ceiling), None).await };
        let (asked, woken) = (Box::pin(asked), Arc::new(Woken(AtomicBool::new(false))));
        let mut waiter = Waiter { ceiling, lasts, asked, woken, since, awake: 0 };
        match waiter.looks() {
            Poll::Ready(Ok(Admitted::Decided(_, permits))) => {
                self.takes(ceiling, tick + lasts, permits);
                return true;
            }
            Poll::Pending if self.queue.is_some() && self.may_wait(ceiling) => {
                self.waiters.push(waiter);
            }
            // One that would have to wait goes away.
            _ => {}
        }
        false
    }

    /// Those before the first answer are in no queue yet.
    fn may_wait(&self, ceiling: usize) -> bool {
        self.waiters.iter().filter(|waiter| waiter.ceiling == ceiling).count() < QUEUE
    }

    fn takes(&mut self, ceiling: usize, ends: u64, permits: Permits) {
        assert!(!permits.is_empty(), "the ceiling covers the question");
        self.requests.push(Request { ceiling, ends, permits: Some(permits) });
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

impl Waiter {
    fn looks(&mut self) -> Poll<Result<Admitted, Refusal>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.asked.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

fn configuration(Limit { ceiling: limit, longest, queue, revision }: Limit) -> config::Config {
    let longest = longest.0 / Nanos::MILLI.0;
    let queue = queue.map_or(String::new(), |timeout| {
        format!("queue: {{size: {QUEUE}, timeout: {}ms}}, ", timeout.0 / Nanos::MILLI.0)
    });
    let ceiling = |key| {
        format!(
            "  - {{key: {key}, concurrency: {{limit: {limit}, max_duration: {longest}ms, {queue}\
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
