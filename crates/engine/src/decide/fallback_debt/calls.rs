//! Charges the fallback debt of an engine.

use super::{
    CALM_TIME, DEBTS_PER_YIELD, FallbackDebt, MAX_PAUSE, MIN_PAUSE, NodeUnavailable, PAUSE_FACTOR,
    Repayment, charge_debt, count,
};
use crate::Engine;
use crate::decide::local_fallback::LocalFallback;
use crate::kernel::decision::StoreFailure;
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::Hits;
use crate::store::{Charge, ChargeOutcome};
use crate::telemetry::event::FallbackDebtOutcome;
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

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
