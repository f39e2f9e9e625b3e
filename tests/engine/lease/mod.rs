//! Tests leased limits through the engine: several engines with balances share one store.

mod all_or_nothing;
mod check;
mod denials;
mod forced_deny;
mod refill;
mod refunds;
mod retry_after;
mod undecided;
mod utilization;
mod utilization_plot;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    ChargeOutcome, Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply,
};
use tokio::sync::Semaphore;

/// 2026-01-01T00:00:00Z, the start of a window for all seven units.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);

/// An in-memory store that acts like a remote one: it counts, delays, loses or pauses calls.
#[derive(Debug)]
pub struct RemoteStore {
    memory: MemoryStore,
    pub calls: AtomicU64,
    /// Number of `calls` that started in a batch.
    batched_calls: AtomicU64,
    pub is_unavailable: AtomicBool,
    /// `true`: the engine knows that the store is disconnected and sends nothing.
    pub is_disconnected: AtomicBool,
    /// If set, lease messages fail with this cause before they are sent.
    rejection: Mutex<Option<StoreFailure>>,
    /// Delay between sending and receiving, in nanoseconds.
    pub delay_ns: AtomicU64,
    /// Lead of the store clock over the engine clocks, in nanoseconds.
    pub clock_lead_ns: AtomicU64,
    /// Timeout of a store call in nanoseconds; 0 means none.
    pub timeout_ns: AtomicU64,
    /// `true`: new calls pause until they are resumed.
    pauses_calls: AtomicBool,
    /// `true`: the store receives paused calls at once, and only their replies pause.
    pauses_only_replies: AtomicBool,
    /// All paused calls, in order of arrival.
    paused: Mutex<Vec<Arc<PausedCall>>>,
}

/// The two pause points of a call: before the store receives it, and before its reply.
#[derive(Debug)]
struct PausedCall {
    taken: Semaphore,
    answered: Semaphore,
}

impl RemoteStore {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(1_000_000, WhenFull::Deny, [7; 16]),
            calls: AtomicU64::new(0),
            batched_calls: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
            is_disconnected: AtomicBool::new(false),
            rejection: Mutex::default(),
            delay_ns: AtomicU64::new(0),
            clock_lead_ns: AtomicU64::new(0),
            timeout_ns: AtomicU64::new(0),
            pauses_calls: AtomicBool::new(false),
            pauses_only_replies: AtomicBool::new(false),
            paused: Mutex::default(),
        })
    }

    /// The store clock at `now`.
    fn time(&self, now: Nanos) -> Nanos {
        now.plus(Nanos(self.clock_lead_ns.load(Relaxed)))
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Lets the store receive the paused call with this number.
    fn receive(&self, number: usize) {
        self.paused.lock()[number].taken.add_permits(1);
    }

    /// Delivers the reply of the paused call with this number.
    fn reply(&self, number: usize) {
        self.paused.lock()[number].answered.add_permits(1);
    }

    fn reply_all(&self) {
        for call in &*self.paused.lock() {
            call.answered.add_permits(1);
        }
    }

    fn resume_all(&self) {
        for call in &*self.paused.lock() {
            call.taken.add_permits(1);
            call.answered.add_permits(1);
        }
    }

    fn is_unavailable(&self) -> bool {
        self.is_unavailable.load(Relaxed)
    }

    /// Runs `act` and replies after other tasks ran, or when the paused call is resumed.
    fn reply_later<'a, T: Send + 'a>(
        &'a self,
        act: impl FnOnce() -> T + Send + 'a,
    ) -> StoreReply<'a, T> {
        self.calls.fetch_add(1, Relaxed);
        if !self.pauses_calls.load(Relaxed) {
            let result = act();
            return StoreReply::Pending(Box::pin(async move {
                tokio::task::yield_now().await;
                result
            }));
        }
        let taken = Semaphore::new(usize::from(self.pauses_only_replies.load(Relaxed)));
        let answered = Semaphore::new(0);
        let call = Arc::new(PausedCall { taken, answered });
        self.paused.lock().push(Arc::clone(&call));
        StoreReply::Pending(Box::pin(async move {
            call.taken.acquire().await.unwrap().forget();
            let result = act();
            call.answered.acquire().await.unwrap().forget();
            result
        }))
    }
}

/// Unwraps the immediate reply of the in-memory store.
fn immediate<T>(reply: StoreReply<'_, T>) -> T {
    let StoreReply::Ready(answer) = reply else { panic!("memory answers at once") };
    answer
}

impl CounterStore for RemoteStore {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        if self.is_disconnected.load(Relaxed) {
            let failed = |_| ChargeOutcome::Failed(StoreFailure::Unreachable);
            return StoreReply::Ready(charges.list.iter().map(failed).collect());
        }
        self.reply_later(move || {
            if self.is_unavailable() {
                return charges
                    .list
                    .iter()
                    .map(|_| ChargeOutcome::Failed(StoreFailure::TimedOut))
                    .collect();
            }
            let at = self.time(now);
            let mut outcomes = immediate(self.memory.charge(at, charges));
            // Stale outcomes carry the time of the store, as from a store with its own clock.
            for stale in outcomes
                .iter_mut()
                .filter(|o| **o == ChargeOutcome::Decided(CounterDecision::OutsideWindows))
            {
                *stale = ChargeOutcome::Stale(at);
            }
            outcomes
        })
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        if self.is_disconnected.load(Relaxed) {
            return StoreReply::Ready(LeaseOutcome::Failed(StoreFailure::Unreachable));
        }
        if let Some(cause) = *self.rejection.lock() {
            return StoreReply::Pending(Box::pin(async move {
                tokio::task::yield_now().await;
                LeaseOutcome::Failed(cause)
            }));
        }
        self.reply_later(move || {
            if self.is_unavailable() {
                return LeaseOutcome::Failed(StoreFailure::TimedOut);
            }
            let taken = self.time(now).plus(Nanos(self.delay_ns.load(Relaxed)));
            immediate(self.memory.exchange_lease_message(taken, message))
        })
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        let before = self.calls();
        begin();
        self.batched_calls.fetch_add(self.calls() - before, Relaxed);
    }

    fn max_wait(&self) -> Option<Nanos> {
        Some(Nanos(self.timeout_ns.load(Relaxed))).filter(|deadline| *deadline != Nanos(0))
    }
}

impl FleetStore for RemoteStore {}

/// An engine over `store` with a manual clock and these descriptors in domain `d`.
fn engine(store: &Arc<RemoteStore>, descriptors: &str) -> Engine {
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), DecisionPolicy::default());
    publish(&engine, "", descriptors);
    engine
}

/// Publishes `descriptors` in domain `d`, with additional `domain_fields`.
fn publish(engine: &Engine, domain_fields: &str, descriptors: &str) {
    let text = format!("domain: d\n{domain_fields}descriptors:\n{descriptors}");
    let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
}

fn advance_clock(engine: &Engine, time: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!("a clock that is set by hand") };
    clock.advance(time);
}

/// A check with one descriptor per entry.
fn check<'a>(entries: &[(&'a str, &'a str)], cost: Cost) -> Check<'a> {
    let descriptor = |entry: &(&'a str, &'a str)| Descriptor {
        entries: [*entry].into_iter().collect(),
        cost,
        limit: None,
    };
    Check { domain: "d", descriptors: entries.iter().map(descriptor).collect() }
}

async fn send_check(
    engine: &Engine,
    entries: &[(&str, &str)],
    hits: u64,
) -> Result<Decision, CheckError> {
    let check = check(entries, Cost::Charge(Hits(hits)));
    let answer = engine.decide(&check).await;
    // Background borrows make progress here.
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    answer
}

async fn is_allowed(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> bool {
    send_check(engine, entries, hits).await.unwrap().verdict == Verdict::Allow
}

/// Polls a check once and returns its decision if it is ready.
fn poll_once(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> Option<Decision> {
    let check = check(entries, Cost::Charge(Hits(hits)));
    let mut deciding = pin!(engine.decide(&check));
    match deciding.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.unwrap()),
        Poll::Pending => None,
    }
}

/// The sum of the balances of all keys.
fn total_balance(engine: &Engine) -> u64 {
    engine.leases().unwrap().totals().hits.0
}
