//! Fallback debt: hits that this replica allowed during a store outage and charges to the store
//! afterwards.
//!
//! Guarantees:
//! - At most [`MAX_KEYS`] counters and [`MAX_KEY_BYTES`] of keys have debt; further hits are lost.
//! - Debt is charged when the Redis node of its counter is available again.
//! - Hits that have drained or expired in the local counter meanwhile are not charged.
//! - Attempts to charge debt during an outage never overlap, and take about a tenth of the time.
//! - Outages less than [`CALM_TIME`] apart count as one: only then the local counters are cleared.
//!
//! Not covered: a restart of the process loses its debt.

mod calls;

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kernel::decision::{Cost, StoreFailure};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::Strategy;
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, StoreReply};
use crate::telemetry::event::{Event as _, FallbackDebtEnded, FallbackDebtOutcome};

const MAX_KEYS: usize = 65_536;

const MAX_KEY_BYTES: usize = 16 << 20;

const MIN_PAUSE: Duration = Duration::from_millis(20);

const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The pause after an attempt, as a multiple of the attempt's duration. At most [`MAX_PAUSE`].
const PAUSE_FACTOR: u32 = 10;

/// An outage ends once the store has been available for this time.
const CALM_TIME: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct FallbackDebt {
    /// The last charge that became debt: it has the counter's key and strategy in the store.
    charge: Charge,
    pub(crate) local_strategy: Strategy,
    pub(crate) hits: Hits,
}

impl FallbackDebt {
    pub(crate) fn charge_of(&self, hits: Hits) -> Charge {
        Charge { cost: Cost::Charge(hits), ..self.charge.clone() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FallbackDebts {
    table: Mutex<DebtTable>,
    charged_locally: Notify,
}

#[derive(Debug, Default)]
struct DebtTable {
    debts: HashMap<CounterKey, FallbackDebt>,
    bytes: usize,
}

impl FallbackDebts {
    /// Wakes [`crate::Engine::repay_forever`]. Call this after a charge to a local counter.
    pub(crate) fn wake(&self) {
        self.charged_locally.notify_one();
    }

    /// Adds an allowed charge to the debt, or subtracts a refund.
    pub(crate) fn record(&self, charge: &Charge, local_strategy: Strategy) {
        let mut table = self.table.lock();
        match charge.cost {
            Cost::Charge(Hits(0)) => {}
            Cost::Charge(hits) => {
                table.add(FallbackDebt { charge: charge.clone(), local_strategy, hits });
            }
            Cost::Refund(hits) => {
                if let Some(debt) = table.debts.get_mut(&charge.key) {
                    debt.hits = debt.hits.less(hits);
                }
            }
        }
    }

    fn keys(&self) -> Vec<CounterKey> {
        self.table.lock().debts.keys().cloned().collect()
    }

    fn with_charge<T>(&self, key: &CounterKey, read: impl FnOnce(&Charge) -> T) -> Option<T> {
        self.table.lock().debts.get(key).map(|debt| read(&debt.charge))
    }

    /// Removes and returns the debt of one counter.
    fn take(&self, key: &CounterKey) -> Option<FallbackDebt> {
        let mut table = self.table.lock();
        let debt = table.debts.remove(key)?;
        table.bytes = table.bytes.saturating_sub(key.as_bytes().len());
        Some(debt)
    }

    /// Puts back debt that could not be charged. If its counter has newer debt, adds the hits to
    /// that.
    fn put_back(&self, debt: FallbackDebt) {
        let mut table = self.table.lock();
        match table.debts.get_mut(&debt.charge.key) {
            Some(newer) => newer.hits = newer.hits.plus(debt.hits),
            None => table.add(debt),
        }
    }

    fn is_empty(&self) -> bool {
        self.table.lock().debts.is_empty()
    }
}

impl DebtTable {
    fn add(&mut self, debt: FallbackDebt) {
        if let Some(existing) = self.debts.get_mut(&debt.charge.key) {
            let hits = existing.hits.plus(debt.hits);
            *existing = FallbackDebt { hits, ..debt };
            return;
        }
        let bytes = self.bytes.saturating_add(debt.charge.key.as_bytes().len());
        if MAX_KEYS <= self.debts.len() || MAX_KEY_BYTES < bytes {
            FallbackDebtEnded { hits: debt.hits, outcome: FallbackDebtOutcome::Lost }.emit();
            return;
        }
        self.bytes = bytes;
        self.debts.insert(debt.charge.key.clone(), debt);
    }
}

/// The error of an attempt that found a store node unavailable.
struct NodeUnavailable {
    started_at: Nanos,
}

enum Repayment {
    /// The debt was charged, or counted as lost or not needed.
    Settled,
    /// The node is unavailable, and nothing was charged.
    Unavailable,
    /// The store may or may not have made the charge. The debt counts as lost, because a retry
    /// might charge the hits twice.
    Unknown,
}

/// The number of debts between two yields to the async runtime. Debts of unavailable nodes are
/// skipped without an await.
const DEBTS_PER_YIELD: usize = 64;

async fn charge_debt(store: &dyn CounterStore, now: Nanos, debt: &FallbackDebt) -> ChargeOutcome {
    let charges =
        Charges { list: [debt.charge_of(debt.hits)].into_iter().collect(), mode: ChargeMode::Each };
    let outcomes = match store.charge(now, &charges) {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(outcomes) => outcomes.await,
    };
    outcomes.into_iter().next().unwrap_or(ChargeOutcome::Failed(StoreFailure::InvalidReply))
}

fn count(outcome: FallbackDebtOutcome, hits: Hits) {
    if hits != Hits(0) {
        FallbackDebtEnded { hits, outcome }.emit();
    }
}
