//! A simulated replica: one incarnation of an engine with its own clock and requests.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::concurrency::BucketLoad;
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::engine::{
    AdmissionOutcome, CheckError, DecisionPolicy, Engine, Membership, RequestPermits,
};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use super::run::{CALL_TIMEOUT, CEILINGS, HEARTBEAT, TERM, TICK};
use super::wire::Wire;
use crate::simulation::flaws::Flaw;

type Task = Pin<Box<dyn Future<Output = ()>>>;

const QUEUE: usize = 3;
/// Longer than any simulation takes, because this time is not virtual.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Ticks between two sweeps, which remove expired permits and waiters: a second, as in
/// [`ConcurrencyLimits::sweep_forever`](sluicegate::engine::concurrency::ConcurrencyLimits::sweep_forever).
const SWEEP: u64 = Nanos::SECOND.0 / TICK.0;

#[derive(Clone, Copy)]
pub struct Limit {
    pub ceiling: u64,
    pub longest: Nanos,
    /// The queue timeout, or `None` without a queue.
    pub queue: Option<Nanos>,
    pub revision: u64,
}

struct Waiter {
    ceiling: usize,
    lasts: u64,
    asked: Pin<Box<dyn Future<Output = Result<AdmissionOutcome, CheckError>>>>,
    woken: Arc<Woken>,
    /// The instant at which the request began to wait, by the replica's clock.
    since: Nanos,
    /// Ticks of the wait in which the replica was not paused.
    awake: u64,
}

/// Set when the waiting request is woken; it is polled only then.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WaitOutcomes {
    /// Waiting requests admitted after a grant of the store.
    pub granted: u64,
    /// Waiting requests admitted after another request ended.
    pub followed: u64,
    /// Waiting requests rejected before the queue timeout, because the share expired.
    pub fenced: u64,
    /// Waiting requests rejected at the queue timeout.
    pub late: u64,
}

impl WaitOutcomes {
    pub const fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.followed += other.followed;
        self.fenced += other.fenced;
        self.late += other.late;
    }
}

/// A request in flight and its permits, which are `None` after a crash of the replica.
pub struct Request {
    pub ceiling: usize,
    pub ends: u64,
    pub permits: Option<RequestPermits>,
}

pub struct EngineReplica {
    pub engine: Arc<Engine>,
    pub wire: Arc<Wire>,
    tasks: Vec<Task>,
    /// The lag of the replica's clock in parts per million.
    slow: u64,
    pub requests: Vec<Request>,
    /// The most arrivals in a tick, for each limit.
    pub max_arrivals: u64,
    pub paused_until: u64,
    pub cut_until: u64,
    pub clogged_until: u64,
    pub leaving: bool,
    pub known_limit: u64,
    queue: Option<Nanos>,
    waiters: Vec<Waiter>,
    pub waited: WaitOutcomes,
    /// The replica's next configuration, and the tick at which it is loaded.
    pub next_config: Option<(u64, Limit)>,
    /// The last seen numbers of fences and handoffs of each limit.
    seen: [(u64, u64); CEILINGS.len()],
    pub fences: u64,
    pub handoffs: u64,
}

impl EngineReplica {
    /// `life` is larger than in all earlier incarnations.
    pub fn new(
        (id, life): (u64, u64),
        (start, slow): (Nanos, u64),
        limit: Limit,
        flaw: Flaw,
    ) -> Self {
        let clock = Clock::manual(start);
        let membership = Membership::new(&format!("replica-{id}"), life, NonZeroU32::MIN);
        let pace = SharePace { heartbeat: HEARTBEAT, share_duration: TERM };
        let life = Nanos(life * Nanos::SECOND.0);
        let fleet = FleetReporter::new(Arc::new(membership), life, pace, FIRST_REPLY_TIMEOUT);
        let wire = Wire::new(flaw);
        let engine = Engine::new(clock, wire.clone(), DecisionPolicy::default());
        let engine = Arc::new(engine.with_fleet(Arc::new(fleet)));
        engine.publish(Arc::new(configuration(limit)));
        let (tasks, requests, waiters, waited) = Default::default();
        Self {
            engine,
            wire,
            tasks,
            slow,
            requests,
            max_arrivals: 0,
            paused_until: 0,
            cut_until: 0,
            clogged_until: 0,
            leaving: false,
            known_limit: limit.ceiling,
            queue: limit.queue,
            waiters,
            waited,
            next_config: None,
            seen: Default::default(),
            fences: 0,
            handoffs: 0,
        }
    }

    fn reload(&mut self, limit: Limit) {
        self.known_limit = limit.ceiling;
        self.engine.publish(Arc::new(configuration(limit)));
    }

    /// Advances the replica's clock, even while the replica is paused.
    pub fn advance_clock(&self, tick: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!("a clock set by hand") };
        clock.advance(Nanos(tick.0 - tick.0 * self.slow / 1_000_000));
    }

    pub fn step_wall_clock(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!("a clock set by hand") };
        clock.step_wall_clock(by);
    }

    /// Ends finished requests, and sends a heartbeat if one is due.
    pub fn run(&mut self, tick: u64) {
        if let Some((_, limit)) = self.next_config.take_if(|(at, _)| *at <= tick) {
            self.reload(limit);
        }
        for request in self.requests.extract_if(.., |request| request.ends <= tick) {
            request.permits.unwrap().release(RequestOutcome::Success, None);
        }
        if tick.is_multiple_of(SWEEP) {
            self.engine.concurrency_limits().sweep();
        }
        self.waiters.iter_mut().for_each(|waiter| waiter.awake += 1);
        let followed = self.poll_waiters(tick);
        self.waited.followed += followed;
        if self.tasks.is_empty() && !self.leaving {
            let engine = Arc::clone(&self.engine);
            self.tasks.push(Box::pin(async move { engine.report_once().await }));
        }
        self.poll_tasks(tick);
        self.count_events();
    }

    pub fn poll_tasks(&mut self, tick: u64) {
        let mut context = Context::from_waker(Waker::noop());
        self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        // No request ended since the last poll, so these permits come from a grant.
        let granted = self.poll_waiters(tick);
        self.waited.granted += granted;
    }

    /// Polls the waiting requests that were woken. Returns the number of those admitted.
    fn poll_waiters(&mut self, tick: u64) -> u64 {
        let (mut came, now) = (0, self.engine.clock().steady());
        for mut waiter in std::mem::take(&mut self.waiters) {
            let is_woken = waiter.woken.0.swap(false, Relaxed);
            match if is_woken { waiter.poll_admission() } else { Poll::Pending } {
                Poll::Pending => self.waiters.push(waiter),
                Poll::Ready(Ok(AdmissionOutcome::Decided(_, permits))) => {
                    came += 1;
                    self.add_request(waiter.ceiling, tick + waiter.lasts, permits);
                }
                Poll::Ready(Ok(AdmissionOutcome::Rejected(why))) => {
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

    /// Describes a waiting request that should have been admitted or rejected, if there is one.
    pub fn find_violation(&self) -> Option<String> {
        let queue = self.queue?;
        // The longest wait: the queue timeout, up to three heartbeats until the first reply, and
        // one second until timeouts are noticed.
        let most = queue.0.div_ceil(TICK.0) + 3 * CALL_TIMEOUT + SWEEP + 2;
        if let Some(waiter) = self.waiters.iter().find(|waiter| most < waiter.awake) {
            return Some(format!("one waits for {} ticks, {most} at most", waiter.awake));
        }
        let loads =
            CEILINGS.iter().filter_map(|key| self.engine.concurrency_snapshot("d", &[(key, "v")]));
        let room = |load: &BucketLoad| 0 < load.waiting && load.in_flight < load.limit;
        let load = loads.map(|look| look.load).find(room)?;
        Some(format!("one waits though there is room: {load:?}"))
    }

    pub fn leave(&mut self) {
        self.leaving = true;
        let engine = Arc::clone(&self.engine);
        self.tasks.push(Box::pin(async move { engine.leave().await }));
    }

    pub fn has_left(&self) -> bool {
        self.leaving && self.tasks.is_empty()
    }

    /// Sends a request with a duration of `duration` ticks. Returns `true` if it is admitted at once.
    /// Otherwise the request waits, if the queue has room.
    pub fn try_admit(&mut self, limit_index: usize, tick: u64, duration: u64) -> bool {
        let engine = Arc::clone(&self.engine);
        let since = engine.clock().steady();
        let asked = async move { engine.admit(&check_of(limit_index), None).await };
        let (asked, woken) = (Box::pin(asked), Arc::new(Woken(AtomicBool::new(false))));
        let mut waiter =
            Waiter { ceiling: limit_index, lasts: duration, asked, woken, since, awake: 0 };
        match waiter.poll_admission() {
            Poll::Ready(Ok(AdmissionOutcome::Decided(_, permits))) => {
                self.add_request(limit_index, tick + duration, permits);
                return true;
            }
            Poll::Pending if self.queue.is_some() && self.may_wait(limit_index) => {
                self.waiters.push(waiter);
            }
            // The queue is full or missing, so the request ends.
            _ => {}
        }
        false
    }

    /// Returns `true` if the queue has room. Requests before the first reply are not in the
    /// engine's queue yet.
    fn may_wait(&self, limit_index: usize) -> bool {
        self.waiters.iter().filter(|waiter| waiter.ceiling == limit_index).count() < QUEUE
    }

    fn add_request(&mut self, limit_index: usize, ends: u64, permits: RequestPermits) {
        assert!(!permits.is_empty(), "the ceiling covers the question");
        self.requests.push(Request { ceiling: limit_index, ends, permits: Some(permits) });
    }

    pub fn shares(&self) -> [u64; CEILINGS.len()] {
        let mut shares = [0; CEILINGS.len()];
        for (at, shown) in self.shown() {
            shares[at] = shown.share.0;
        }
        shares
    }

    fn count_events(&mut self) {
        for (at, shown) in self.shown() {
            let (fences, handoffs) = self.seen[at];
            self.fences += shown.fences.saturating_sub(fences);
            self.handoffs += shown.handoffs.saturating_sub(handoffs);
            self.seen[at] = (shown.fences, shown.handoffs);
        }
    }

    fn shown(&self) -> Vec<(usize, sluicegate::engine::concurrency::ShareSnapshot)> {
        let fleet = self.engine.concurrency_limits().fleet_reporter().unwrap();
        let shown = fleet.share_snapshots(self.engine.clock(), CEILINGS.len());
        let known = |name: &[u8]| {
            let has = |key: &&str| name.windows(key.len()).any(|part| part == key.as_bytes());
            CEILINGS.iter().position(has).unwrap()
        };
        shown.into_iter().map(|(name, shown)| (known(&name), shown)).collect()
    }

    /// Crashes the replica. Returns its requests, which continue in the proxy.
    pub fn crash(self) -> Vec<Request> {
        let gone = |request| Request { permits: None, ..request };
        self.requests.into_iter().map(gone).collect()
    }
}

impl Waiter {
    fn poll_admission(&mut self) -> Poll<Result<AdmissionOutcome, CheckError>> {
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
             on_store_failure: deny}}}}\n"
        )
    };
    let text = format!("domain: d\ndescriptors:\n{}", CEILINGS.map(ceiling).concat());
    config::load([("a.yaml", text.as_bytes())], Revision(revision), false).unwrap().0
}

fn check_of(limit_index: usize) -> Check<'static> {
    let entries = [(CEILINGS[limit_index], "v")].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "d", descriptors: [descriptor].into_iter().collect() }
}
