//! A fleet in virtual time: replicas with the service's own limits and reports, in front of one
//! backend.
//!
//! The backend serves 20 requests at once, each for its service time ± 5 %, and queues the others.
//! Sixteen times as many requests arrive as it can serve, so that every replica is saturated. A
//! request without a permit ends at once.
//!
//! Guarantees:
//! - A run depends on its [`Scenario`] only.
//!
//! Not covered:
//! - Delays and losses of messages between replicas and the store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluicegate_concurrency::limits::reporter::{FleetReporter, SharePace};
use sluicegate_concurrency::limits::{
    ConcurrencyLimits, PermitGuard, PermitRequest, SharedLimit, rules_at_process,
};
use sluicegate_kernel::concurrency::adaptive::AdaptiveConfig;
use sluicegate_kernel::concurrency::limiter::LimiterConfig;
use sluicegate_kernel::concurrency::{RequestOutcome, Requester};
use sluicegate_kernel::coordinator::ConcurrencyFallback;
use sluicegate_kernel::coordinator::aggregate::VoteAggregate;
use sluicegate_kernel::units::{Nanos, Revision};
use sluicegate_lease::clock::Clock;

use super::dice::Dice;
use super::store::{CoordinatorStore, SimulatedHost};

const WORKERS: u64 = 20;
/// The requests that arrive at the fleet, as a multiple of those that the backend can serve.
const OVERLOAD: u64 = 16;
const MAX_DURATION: Nanos = Nanos::from_secs(2);
const PACE: SharePace =
    SharePace { heartbeat: Nanos(500 * Nanos::MILLI.0), share_duration: Nanos::from_secs(2) };
const BUCKET: &[u8] = b"backend";
const START: Nanos = Nanos::from_secs(1_000);

/// The replicas in front of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fleet {
    /// One replica with `mode: local`.
    Local,
    /// This number of replicas with `mode: shared`, and the split of the requests among them.
    Shared(u32, Load),
}

/// The split of the requests among the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Even,
    /// Two thirds of the requests arrive at the first replica.
    Skewed,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub fleet: Fleet,
    pub adaptive: AdaptiveConfig,
    /// The limit at the start.
    pub start: u32,
    /// The mean service time.
    pub service: Nanos,
    pub seconds: u64,
    pub seed: u64,
}

/// The mean values of one second, or of a longer time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// The limit of the whole fleet.
    pub limit: f64,
    /// The latency of finished requests, in seconds.
    pub rtt: f64,
    /// The finished requests per second.
    pub goodput: f64,
}

/// Returns the mean figures of the last half of a run.
pub fn last_half(seconds: &[Figures]) -> Figures {
    let half = &seconds[seconds.len() / 2..];
    let count = half.len() as f64;
    let goodput: f64 = half.iter().map(|second| second.goodput).sum();
    let limit: f64 = half.iter().map(|second| second.limit).sum();
    let rtt: f64 = half.iter().map(|second| second.rtt * second.goodput).sum();
    Figures { limit: limit / count, rtt: rtt / goodput.max(1.0), goodput: goodput / count }
}

impl Scenario {
    /// Runs the scenario and returns the figures of each second.
    pub fn run(&self) -> Vec<Figures> {
        let mut run = Run::new(self);
        let mut seconds = Vec::new();
        for second in 1..=self.seconds {
            run.play_until(START.plus(Nanos::from_secs(second)));
            seconds.push(run.take_figures());
        }
        seconds
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    End(u64),
    /// Replica `.0` sends the reports that are due.
    Report(usize),
}

struct Replica {
    limits: ConcurrencyLimits,
    reporter: Option<Arc<FleetReporter>>,
    /// The mean time between two arrivals.
    gap: Nanos,
}

struct Run {
    now: Nanos,
    clock: Arc<Clock>,
    dice: Dice,
    service: Nanos,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    replicas: Vec<Replica>,
    store: Arc<CoordinatorStore>,
    rules: LimiterConfig,
    shared: Option<SharedLimit>,
    busy: u64,
    queue: VecDeque<u64>,
    /// The requests in flight by number, with the instant of their admission.
    requests: BTreeMap<u64, (Nanos, PermitGuard)>,
    next_request: u64,
    finished: u64,
    latency: Nanos,
    /// The limit × time since the last figures, and the end of that time.
    limit_area: f64,
    measured_until: Nanos,
}

impl Run {
    fn new(scenario: &Scenario) -> Self {
        let (count, load) = match scenario.fleet {
            Fleet::Local => (1, Load::Even),
            Fleet::Shared(count, load) => (count, load),
        };
        let limit = LimiterConfig {
            adaptive: Some(scenario.adaptive),
            ..LimiterConfig::fixed(scenario.start)
        };
        let shared = (scenario.fleet != Fleet::Local).then(|| {
            let fallback = ConcurrencyFallback::Deny;
            SharedLimit::new(&limit, VoteAggregate::Median, MAX_DURATION, fallback)
        });
        let clock = Arc::new(Clock::manual(START));
        let replicas = (0..count).map(|at| {
            let reporter = shared.map(|_| reporter(at, count));
            let limits = ConcurrencyLimits::new(Arc::clone(&clock), 1, u64::from(at));
            let limits = match &reporter {
                Some(reporter) => limits.with_fleet(Arc::clone(reporter)),
                None => limits,
            };
            Replica { limits, reporter, gap: gap(at, count, load, scenario.service) }
        });
        let mut run = Self {
            now: START,
            dice: Dice::new(scenario.seed),
            service: scenario.service,
            events: BinaryHeap::new(),
            replicas: replicas.collect(),
            store: Arc::default(),
            rules: rules_at_process(&limit, shared.as_ref(), None),
            shared,
            clock,
            busy: 0,
            queue: VecDeque::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            finished: 0,
            latency: Nanos(0),
            limit_area: 0.0,
            measured_until: START,
        };
        for at in 0..run.replicas.len() {
            run.plan_arrival(at);
            let first = run.dice.up_to(PACE.heartbeat.0);
            run.plan(Nanos(first), Event::Report(at));
        }
        run
    }

    fn play_until(&mut self, end: Nanos) {
        while let Some(Reverse((at, event))) = self.events.pop() {
            if end <= at {
                self.events.push(Reverse((at, event)));
                break;
            }
            self.advance(at);
            match event {
                Event::Arrival(replica) => self.arrive(replica),
                Event::End(request) => self.end(request),
                Event::Report(replica) => self.report(replica),
            }
        }
        self.advance(end);
    }

    fn advance(&mut self, to: Nanos) {
        self.limit_area += f64::from(self.limit()) * to.since(self.measured_until).0 as f64;
        let Clock::Manual(clock) = &*self.clock else { unreachable!("the clock is manual") };
        clock.advance(to.since(self.now));
        (self.now, self.measured_until) = (to, to);
    }

    fn limit(&self) -> u32 {
        if self.shared.is_some() {
            return u32::try_from(self.store.limit().0).unwrap_or(u32::MAX);
        }
        self.replicas[0].limits.load(BUCKET).map_or(0, |load| load.limit)
    }

    fn take_figures(&mut self) -> Figures {
        let second = Nanos::SECOND.0 as f64;
        let finished = self.finished as f64;
        let figures = Figures {
            limit: self.limit_area / second,
            rtt: self.latency.0 as f64 / second / finished.max(1.0),
            goodput: finished,
        };
        (self.limit_area, self.finished, self.latency) = (0.0, 0, Nanos(0));
        figures
    }

    fn plan(&mut self, after: Nanos, event: Event) {
        self.events.push(Reverse((self.now.plus(after), event)));
    }

    fn plan_arrival(&mut self, at: usize) {
        let gap = self.dice.up_to(2 * self.replicas[at].gap.0);
        self.plan(Nanos(gap), Event::Arrival(at));
    }

    fn arrive(&mut self, at: usize) {
        self.plan_arrival(at);
        let request = PermitRequest {
            by: Requester::ANY,
            bucket: BUCKET,
            limit_path: "backend",
            revision: Revision(1),
            rules: &self.rules,
            permit_lifetime: None,
            queue_timeout: Nanos(0),
            store_timeout: Nanos(0),
            shared: self.shared,
        };
        let Ok(permit) = complete(self.replicas[at].limits.acquire(request)) else { return };
        let number = self.next_request;
        self.next_request += 1;
        self.requests.insert(number, (self.now, permit));
        if self.busy < WORKERS {
            self.busy += 1;
            self.serve(number);
        } else {
            self.queue.push_back(number);
        }
    }

    fn serve(&mut self, request: u64) {
        let takes = self.service.0 * (950 + self.dice.up_to(100)) / 1_000;
        self.plan(Nanos(takes), Event::End(request));
    }

    fn end(&mut self, request: u64) {
        let (admitted_at, permit) = self.requests.remove(&request).expect("it is in flight");
        assert!(permit.release(RequestOutcome::Success, None), "a permit without a lifetime");
        self.finished += 1;
        self.latency = self.latency.plus(self.now.since(admitted_at));
        match self.queue.pop_front() {
            Some(next) => self.serve(next),
            None => self.busy -= 1,
        }
    }

    fn report(&mut self, at: usize) {
        let Some(reporter) = &self.replicas[at].reporter else { return };
        complete(reporter.report_once(&self.clock, &*self.store));
        // As often as the service's own timer.
        self.plan(Nanos(PACE.heartbeat.0 / 100), Event::Report(at));
    }
}

fn reporter(at: u32, count: u32) -> Arc<FleetReporter> {
    let replicas = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    let host = SimulatedHost { name: format!("replica-{at}"), replicas };
    Arc::new(FleetReporter::new(Arc::new(host), START, PACE, Duration::ZERO))
}

/// The mean time between two arrivals at the replica `at`.
fn gap(at: u32, count: u32, load: Load, service: Nanos) -> Nanos {
    let (count, of_fleet) = (u64::from(count), service.0 / WORKERS / OVERLOAD);
    match load {
        Load::Skewed if 1 < count && at == 0 => Nanos(of_fleet * 3 / 2),
        Load::Skewed if 1 < count => Nanos(of_fleet * 3 * (count - 1)),
        _ => Nanos(of_fleet * count),
    }
}

/// Runs a future that never waits.
fn complete<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("neither the store nor the queue lets a request wait"),
    }
}
