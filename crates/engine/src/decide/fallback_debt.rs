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

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::Engine;
use crate::decide::local_fallback::LocalFallback;
use crate::kernel::decision::{Cost, StoreFailure};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{CounterDecision, Strategy};
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
    /// Wakes [`Engine::repay_forever`]. Call this after a charge to a local counter.
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

impl Engine {
    /// Charges fallback debt whenever the store is available again. Never returns.
    pub async fn repay_forever(&self) {
        let Some(local) = self.local_fallback() else { return std::future::pending().await };
        loop {
            local.debts.charged_locally.notified().await;
            while let Err(NodeUnavailable { started_at }) = self.repay_until_calm(local).await {
                let took = Duration::from_nanos(self.clock().steady().since(started_at).0);
                sleep(took.saturating_mul(PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE)).await;
            }
        }
    }

    /// Charges all debt. Clears the local counters once the store has been available for
    /// [`CALM_TIME`].
    async fn repay_until_calm(&self, local: &LocalFallback) -> Result<(), NodeUnavailable> {
        loop {
            self.repay_all(local).await?;
            match timeout(CALM_TIME, local.debts.charged_locally.notified()).await {
                Ok(()) => sleep(MIN_PAUSE).await,
                Err(_calm)
                    if local.debts.is_empty() && self.store().current_failure().is_none() =>
                {
                    local.memory.clear();
                    return Ok(());
                }
                Err(_calm) => {}
            }
        }
    }

    async fn repay_all(&self, local: &LocalFallback) -> Result<(), NodeUnavailable> {
        let started_at = self.clock().steady();
        let mut unavailable_nodes = HashSet::new();
        for (index, key) in local.debts.keys().into_iter().enumerate() {
            if index % DEBTS_PER_YIELD == DEBTS_PER_YIELD - 1 {
                yield_now().await;
            }
            let node_of = |charge: &Charge| self.store().node_of(self.clock().now(), charge);
            let Some(node) = local.debts.with_charge(&key, node_of) else { continue };
            if unavailable_nodes.contains(&node) {
                continue;
            }
            let Some(mut debt) = local.debts.take(&key) else { continue };
            let hits = local.remaining_debt(&debt, self.clock().now());
            count(FallbackDebtOutcome::NotNeeded, debt.hits.less(hits));
            debt.hits = hits;
            match self.repay_debt(&mut debt).await {
                Repayment::Settled => continue,
                Repayment::Unavailable => local.debts.put_back(debt),
                Repayment::Unknown => count(FallbackDebtOutcome::Lost, debt.hits),
            }
            unavailable_nodes.insert(node);
        }
        if unavailable_nodes.is_empty() { Ok(()) } else { Err(NodeUnavailable { started_at }) }
    }

    /// Charges the hits of `debt` that the limit allows: debt never raises a counter above its
    /// limit, unless the limit charges denied hits.
    async fn repay_debt(&self, debt: &mut FallbackDebt) -> Repayment {
        // A second attempt, because the remaining hits may have changed since the first reply.
        for _ in 0..2 {
            if debt.hits == Hits(0) {
                return Repayment::Settled;
            }
            match charge_debt(self.store(), self.clock().now(), debt).await {
                ChargeOutcome::Decided(
                    CounterDecision::Deny { headroom: room, .. }
                    | CounterDecision::ExceedsLimit(room),
                ) if !debt.charge.strategy.charges_denied_hits() => {
                    count(FallbackDebtOutcome::NotNeeded, debt.hits.less(room.remaining));
                    debt.hits = room.remaining;
                }
                // Some limits count the hits even if they deny them.
                ChargeOutcome::Decided(_)
                | ChargeOutcome::Counted(..)
                | ChargeOutcome::Refunded(_) => {
                    count(FallbackDebtOutcome::Charged, debt.hits);
                    return Repayment::Settled;
                }
                ChargeOutcome::Failed(StoreFailure::TimedOut | StoreFailure::ConnectionLost) => {
                    return Repayment::Unknown;
                }
                ChargeOutcome::Failed(cause) if !cause.is_unsafe_to_repeat() => {
                    return Repayment::Unavailable;
                }
                ChargeOutcome::Failed(_)
                | ChargeOutcome::StoreFull(_)
                | ChargeOutcome::Stale(_) => break,
            }
        }
        count(FallbackDebtOutcome::Lost, debt.hits);
        Repayment::Settled
    }
}

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
