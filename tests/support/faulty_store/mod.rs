//! The store of engine tests: in this process, with counted calls and injected faults.
//!
//! Counters and leases act like those of a remote store: a call replies after other tasks ran.

mod fleet;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use sluicegate::kernel::coordinator::CoordinatorConfig;
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::coordinators::Coordinators;
use sluicegate::store::memory::permits::StrictLimits;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::permits::StrictPermitRequest;
use sluicegate::store::{ChargeOutcome, Charges, CounterStore, Outcomes, StoreFailure, StoreReply};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub struct FaultyStore {
    memory: MemoryStore,
    /// The coordinators of shared limits, if the store started without state.
    unsettled: Option<Mutex<Coordinators>>,
    pub strict: Mutex<StrictLimits>,
    /// Charges and lease messages time out. Calls of the fleet fail at once.
    pub is_unavailable: AtomicBool,
    /// The engine knows that the store is disconnected and sends nothing.
    pub is_disconnected: AtomicBool,
    /// If set, lease messages fail with this cause before they are sent.
    pub rejection: Mutex<Option<StoreFailure>>,
    /// Calls of the fleet take effect, but their replies are lost.
    pub loses_replies: AtomicBool,
    /// Replies to the fleet arrive one poll later.
    pub is_slow: AtomicBool,
    /// Calls of the fleet never return, although acquires take effect.
    pub is_silent: AtomicBool,
    /// A new store that knows the replicas of the old one, but no shares.
    pub is_another: AtomicBool,
    /// Delay between sending and receiving, in nanoseconds.
    pub delay_ns: AtomicU64,
    /// Lead of the store clock over the engine clocks, in nanoseconds.
    pub clock_lead_ns: AtomicU64,
    /// Timeout of a store call in nanoseconds; 0 means none.
    pub timeout_ns: AtomicU64,
    /// New charges and lease messages pause until they are resumed.
    pub pauses_calls: AtomicBool,
    /// The store receives paused calls at once, and only their replies pause.
    pub pauses_only_replies: AtomicBool,
    /// All paused calls, in order of arrival.
    pub paused: Mutex<Vec<Arc<PausedCall>>>,
    /// Number of charges and lease messages.
    pub calls: AtomicU64,
    /// Number of `calls` that started in a batch.
    pub batched_calls: AtomicU64,
    pub share_calls: AtomicUsize,
    /// The largest number of reports in one share round.
    pub largest_round: AtomicUsize,
    /// The reported buckets of each share round.
    pub reported: Mutex<Vec<Vec<Box<[u8]>>>>,
    /// The coordinator's configuration in the last report of a share.
    pub last_config: Mutex<Option<CoordinatorConfig>>,
    pub acquire_calls: AtomicUsize,
    pub permit_report_calls: AtomicUsize,
    pub last_acquire: Mutex<Option<StrictPermitRequest>>,
}

/// The two pause points of a call: before the store receives it, and before its reply.
#[derive(Debug)]
pub struct PausedCall {
    taken: Semaphore,
    answered: Semaphore,
}

impl FaultyStore {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::with_coordinators(None))
    }

    /// A store that may be new or may have lost its data.
    pub fn unsettled() -> Arc<Self> {
        Arc::new(Self::with_coordinators(Some(Mutex::default())))
    }

    fn with_coordinators(unsettled: Option<Mutex<Coordinators>>) -> Self {
        Self {
            memory: MemoryStore::new(1_000_000, WhenFull::Deny, [7; 16]),
            unsettled,
            strict: Mutex::new(StrictLimits::settled()),
            is_unavailable: AtomicBool::new(false),
            is_disconnected: AtomicBool::new(false),
            rejection: Mutex::default(),
            loses_replies: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            is_another: AtomicBool::new(false),
            delay_ns: AtomicU64::new(0),
            clock_lead_ns: AtomicU64::new(0),
            timeout_ns: AtomicU64::new(0),
            pauses_calls: AtomicBool::new(false),
            pauses_only_replies: AtomicBool::new(false),
            paused: Mutex::default(),
            calls: AtomicU64::new(0),
            batched_calls: AtomicU64::new(0),
            share_calls: AtomicUsize::new(0),
            largest_round: AtomicUsize::new(0),
            reported: Mutex::default(),
            last_config: Mutex::default(),
            acquire_calls: AtomicUsize::new(0),
            permit_report_calls: AtomicUsize::new(0),
            last_acquire: Mutex::default(),
        }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Lets the store receive the paused call with this number.
    pub fn receive(&self, number: usize) {
        self.paused.lock()[number].taken.add_permits(1);
    }

    /// Delivers the reply of the paused call with this number.
    pub fn reply(&self, number: usize) {
        self.paused.lock()[number].answered.add_permits(1);
    }

    pub fn reply_all(&self) {
        for call in &*self.paused.lock() {
            call.answered.add_permits(1);
        }
    }

    pub fn resume_all(&self) {
        for call in &*self.paused.lock() {
            call.taken.add_permits(1);
            call.answered.add_permits(1);
        }
    }

    /// The store clock at `now`.
    fn time(&self, now: Nanos) -> Nanos {
        now.plus(Nanos(self.clock_lead_ns.load(Relaxed)))
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
    let StoreReply::Ready(answer) = reply else { panic!("the memory store replies at once") };
    answer
}

impl CounterStore for FaultyStore {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        if charges.list.is_empty() {
            // Like Redis: a check without rate limits needs no call.
            return StoreReply::Ready(Outcomes::new());
        }
        if self.is_disconnected.load(Relaxed) {
            let failed = |_| ChargeOutcome::Failed(StoreFailure::Unreachable);
            return StoreReply::Ready(charges.list.iter().map(failed).collect());
        }
        self.reply_later(move || {
            if self.is_unavailable.load(Relaxed) {
                let failed = |_| ChargeOutcome::Failed(StoreFailure::TimedOut);
                return charges.list.iter().map(failed).collect();
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
            if self.is_unavailable.load(Relaxed) {
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
        Some(Nanos(self.timeout_ns.load(Relaxed))).filter(|timeout| *timeout != Nanos(0))
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.is_disconnected.load(Relaxed).then_some(StoreFailure::Unreachable)
    }
}
