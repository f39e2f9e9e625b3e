//! A store that charges through leases with `max_overshoot: 0`.
//!
//! Leases have a fixed size, so one check under `each` already leases hits. Before the first
//! `all_or_nothing` check of a key, the store sends checks that borrow hits and refunds what they
//! charge. The check itself then uses the balance.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use sluicegate::clock::Clock;
use sluicegate::engine::lease::{ChargeTerms, LeaseManager, LeaseOptions};
use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{LeaseTerms, Overshoot};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    AuditStore, BudgetStore, Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, FleetStore,
    Outcomes, StoreReply,
};

use super::{all_or_nothing, is_allowed};
use crate::support::waiting::soon;

/// The lease duration, longer than any test, because the hits of an expired balance stay charged.
const TERM: Nanos = Nanos::from_secs(3_600);

/// A fixed lease size, larger than any lease that these tests get.
const SIZE: LeaseSizing = LeaseSizing::Fixed(Hits(100));

/// One replica over a store that no other replica uses.
#[derive(Debug)]
pub(super) struct LeasingStore {
    leases: Arc<LeaseManager>,
    clock: Arc<Clock>,
    store: Arc<FailureCounter>,
    /// Keys that were already charged.
    seen_keys: Mutex<HashSet<CounterKey>>,
    /// Number of charges that a balance covered.
    local_charges: AtomicU64,
}

impl LeasingStore {
    pub(super) fn new(store: impl CounterStore + 'static) -> Self {
        Self::with_clock(store, Clock::system())
    }

    /// Uses the instants of the checks as its clock, like the store itself.
    pub(super) fn with_memory() -> Self {
        Self::with_clock(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]), Clock::manual(Nanos(0)))
    }

    fn with_clock(store: impl CounterStore + 'static, clock: Clock) -> Self {
        let clock = Arc::new(clock);
        let store =
            Arc::new(FailureCounter { store: Box::new(store), failed_calls: AtomicU64::new(0) });
        let leases = LeaseManager::new(
            Arc::clone(&clock),
            Arc::<FailureCounter>::clone(&store),
            LeaseOptions::default(),
        );
        Self { leases, clock, store, seen_keys: Mutex::default(), local_charges: AtomicU64::new(0) }
    }

    /// The number of store calls that failed, also in the background.
    pub(super) fn failed_calls(&self) -> u64 {
        self.store.failed_calls.load(Relaxed)
    }

    /// Asserts that balances covered charges. Otherwise the test would prove nothing about leases.
    #[track_caller]
    pub(super) fn assert_used_balances(&self, strategy: Strategy) {
        assert_ne!(self.local_charges.load(Relaxed), 0, "{strategy:?}");
    }

    fn advance_to(&self, now: Nanos) -> Nanos {
        if let Clock::Manual(clock) = &*self.clock {
            clock.advance(now.since(self.clock.now()));
        }
        self.clock.now()
    }

    /// Borrows for new keys, at no net cost.
    /// Under `all_or_nothing`, a lease starts in the background at the second check.
    /// Each check here refunds its own charge.
    async fn fill_balances(&self, now: Nanos, charges: &Charges, is_atomic: bool) {
        for charge in &charges.list {
            let is_new = self.seen_keys.lock().unwrap().insert(charge.key.clone());
            let needs_lease = is_atomic && is_new;
            let (terms, Cost::Charge(_), true) = (terms(charge), charge.cost, needs_lease) else {
                continue;
            };
            let of = |cost| Charge { cost, standing: Enforcement::default(), ..charge.clone() };
            let nothing = all_or_nothing([of(Cost::Charge(Hits(1))), of(Cost::Refund(Hits(1)))]);
            for _ in 0..2 {
                self.leases.charge(now, &nothing, &[Some(&terms), None]).await;
                self.wait_until_idle().await;
            }
        }
    }

    /// Waits for background messages, which keep a reference to the leases.
    /// Until the replies arrive, the returned balances are missing from the reported headroom.
    async fn wait_until_idle(&self) {
        let idle = async {
            while 1 < Arc::strong_count(&self.leases) {
                tokio::task::yield_now().await;
            }
        };
        soon("an answer to what was sent in the background", idle).await;
    }

    fn balances(&self, charges: &Charges) -> Vec<Hits> {
        charges.list.iter().map(|charge| self.leases.balance(&charge.key)).collect()
    }

    /// Counts the allowed `charges` whose hits are missing from their balances of `before`.
    fn count_taken(&self, before: &[Hits], charges: &Charges, outcomes: &Outcomes) -> usize {
        let now = self.balances(charges);
        let is_taken = |at: &usize| match charges.list[*at].cost {
            Cost::Charge(hits) if hits != Hits(0) && is_allowed(outcomes[*at]) => {
                before[*at] == now[*at].plus(hits)
            }
            _ => false,
        };
        (0..charges.list.len()).filter(is_taken).count()
    }
}

fn terms(charge: &Charge) -> LeaseTerms {
    let overshoot = match charge.strategy {
        Strategy::FixedWindow(_) => Overshoot::InWindow,
        _ => Overshoot::Occupying(Hits(100)),
    };
    LeaseTerms { overshoot, duration: TERM, sizing: SIZE }
}

impl CounterStore for LeasingStore {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        StoreReply::Pending(Box::pin(async move {
            let (now, terms): (_, Vec<_>) =
                (self.advance_to(now), charges.list.iter().map(terms).collect());
            let terms: ChargeTerms<'_> = terms.iter().map(Some).collect();
            let is_atomic = matches!(charges.mode, ChargeMode::AllOrNothing { .. });
            if is_atomic {
                // A check under `each` may have sent a refill, whose hits no balance has yet.
                self.wait_until_idle().await;
            }
            self.fill_balances(now, charges, is_atomic).await;
            let (before, mut outcomes) = (self.balances(charges), Outcomes::new());
            // A check without a store call is decided by the balances or by a remembered denial.
            let is_done = self
                .leases
                .try_charge(now, charges, terms.iter().copied(), &mut outcomes)
                .is_some();
            let local_charges = if is_done {
                outcomes.iter().filter(|outcome| is_allowed(**outcome)).count()
            } else {
                outcomes = self.leases.charge(now, charges, &terms).await;
                // Under `each`, concurrent charges also change the balances.
                if is_atomic { self.count_taken(&before, charges, &outcomes) } else { 0 }
            };
            if is_atomic {
                self.wait_until_idle().await;
            }
            self.local_charges.fetch_add(local_charges as u64, Relaxed);
            outcomes
        }))
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.store.exchange_lease_message(self.advance_to(now), message)
    }
}

impl AuditStore for LeasingStore {}

impl BudgetStore for LeasingStore {}

impl FleetStore for LeasingStore {}

/// Counts the failed calls to a store.
#[derive(Debug)]
struct FailureCounter {
    store: Box<dyn CounterStore>,
    failed_calls: AtomicU64,
}

impl FailureCounter {
    /// Returns `reply`, whose failure is counted.
    fn count<'a, T: Send + 'a>(
        &'a self,
        reply: StoreReply<'a, T>,
        is_failed: fn(&T) -> bool,
    ) -> StoreReply<'a, T> {
        let counted = move |reply: T| {
            self.failed_calls.fetch_add(u64::from(is_failed(&reply)), Relaxed);
            reply
        };
        match reply {
            StoreReply::Ready(reply) => StoreReply::Ready(counted(reply)),
            StoreReply::Pending(reply) => {
                StoreReply::Pending(Box::pin(async move { counted(reply.await) }))
            }
        }
    }
}

impl CounterStore for FailureCounter {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.count(self.store.charge(now, charges), |outcomes| {
            outcomes.iter().any(|outcome| matches!(outcome, ChargeOutcome::Failed(_)))
        })
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.count(self.store.exchange_lease_message(now, message), |outcome| {
            matches!(outcome, LeaseOutcome::Failed(_))
        })
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        self.store.batch_calls(begin);
    }

    fn node_of(&self, now: Nanos, charge: &Charge) -> u32 {
        self.store.node_of(now, charge)
    }

    fn is_synchronous(&self) -> bool {
        self.store.is_synchronous()
    }

    fn has_leases(&self) -> bool {
        self.store.has_leases()
    }

    fn max_wait(&self) -> Option<Nanos> {
        self.store.max_wait()
    }
}
