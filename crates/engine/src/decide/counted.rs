//! Reads the hits in the counters of a check, including hits above the limit.
//!
//! A reply of the store has only the remaining hits. So a preview of the counter uses a wider
//! limit: the counted hits are the wider limit minus its remaining hits.
//!
//! | 10 per day, 50 counted | remaining | counted | hits to refund |
//! |---|---|---|---|
//! | under the limit of 10 | 0 | at least 10 | |
//! | under the limit of 4294967295 | 4294967245 | 50 | 41 |
//!
//! Guarantees:
//! - Charges nothing. No lease and no cached denial decides.
//! - The debt of GCRA and of a sliding window is rounded up to whole hits.
//! - The hits of a lease count as soon as they are borrowed.
//! - A sliding log has at most as many hits as its limit, because it drops older ones.
//!
//! Not covered:
//! - Hits above the widened limit: [`FACTORS`] times the limit, at most 1,000 times. Fixed windows
//!   count up to 4,294,967,295 hits.

use crate::Engine;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{Check, Cost};
use crate::kernel::rate::fixed_window::FixedWindow;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::{LimitError, RefillRate};
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::Hits;
use crate::store::{Charge, ChargeMode, ChargeOutcome};

/// The factors by which a limit is widened. The first factor with which the limit keeps its tick
/// applies; otherwise the limit is not widened.
const FACTORS: [u32; 4] = [1_000, 100, 10, 2];

/// The hits that count under one limit, and the refund that makes room for one hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedHits {
    /// The hits that are counted now, including hits above the limit.
    pub counted: u64,
    /// The hits that must be refunded before a check of one hit is allowed. `None` for a limit of
    /// 0, which denies every hit.
    pub to_refund: Option<u64>,
    /// `true` if the counter includes hits that replicas borrowed and did not spend yet.
    pub is_leased: bool,
}

impl Engine {
    /// Returns the hits in the counter of each limit of `check`, in the order of
    /// [`super::Decision::all_limits`]. `None` for a limit without a counter, and if the store does
    /// not reply.
    pub async fn counted_hits(&self, mut check: Check<'_>) -> Vec<Option<CountedHits>> {
        for descriptor in &mut check.descriptors {
            descriptor.cost = Cost::Charge(Hits(0));
        }
        let (active, now) = (self.active.load(), self.clock.now());
        let mut plan = CheckPlan::default();
        if let Some(active) = active.as_deref() {
            plan.fill(&active.config, &check, self.policy.planning, now);
        }
        let mut previews = plan.charges.clone();
        previews.mode = ChargeMode::Preview;
        for charge in &mut previews.list {
            charge.strategy = widened(&charge.strategy).unwrap_or(charge.strategy);
        }
        let outcomes = self.charge_store(now, &previews, None).await;
        let mut charges = plan.charges.list.iter().zip(&previews.list).zip(outcomes);
        let counted = plan.limits.iter().map(|limit| {
            let ((charge, preview), outcome) =
                limit.is_charged().then(|| charges.next()).flatten()?;
            let counted = counted_by(&preview.strategy, outcome)?;
            Some(CountedHits::new(limit, charge, counted))
        });
        counted.collect()
    }
}

impl CountedHits {
    fn new(limit: &LimitPlan<'_>, charge: &Charge, counted: u64) -> Self {
        let allowed = u64::from(charge.strategy.max_at_once());
        let needed = counted.saturating_add(1).saturating_sub(allowed);
        let is_leased = limit.lease_terms().is_some();
        Self { counted, to_refund: (allowed != 0).then_some(needed), is_leased }
    }
}

/// Returns the hits in a counter, from the `outcome` of 0 hits under the limit `wide`.
fn counted_by(wide: &Strategy, outcome: ChargeOutcome) -> Option<u64> {
    match outcome {
        ChargeOutcome::Counted(_, counter) => (!counter.is_cached_denial).then_some(counter.hits),
        ChargeOutcome::Decided(CounterDecision::Allow(room)) => {
            Some(u64::from(wide.max_at_once()).saturating_sub(room.remaining.0))
        }
        _ => None,
    }
}

/// Returns the strategy with a wider limit, under which the counter has the same state. Excess hits
/// are not charged, so a check of 0 hits is always allowed.
fn widened(strategy: &Strategy) -> Option<Strategy> {
    if let Strategy::FixedWindow(window) = strategy {
        return FixedWindow::new(u32::MAX, *window.windows()).ok().map(Strategy::FixedWindow);
    }
    FACTORS.into_iter().find_map(|factor| {
        let limit = strategy.max_at_once().checked_mul(factor)?;
        let wide = with_limit(strategy, limit).ok()?;
        (wide.tick() == strategy.tick()).then_some(wide)
    })
}

/// Returns the strategy with another limit, or burst, and without `on_excess: charge`.
fn with_limit(strategy: &Strategy, limit: u32) -> Result<Strategy, LimitError> {
    match strategy {
        Strategy::Gcra(gcra) => {
            let RefillRate { hits, ticks } = gcra.refill_rate();
            let period = gcra.tick().nanos(ticks.get());
            Gcra::new(hits, period, limit).map(Strategy::Gcra)
        }
        Strategy::FixedWindow(window) => {
            FixedWindow::new(limit, *window.windows()).map(Strategy::FixedWindow)
        }
        Strategy::SlidingWindow(window) => {
            let period = window.tick().nanos(window.refill_rate().ticks.get());
            SlidingWindow::new(limit, period).map(Strategy::SlidingWindow)
        }
        Strategy::SlidingLog(log) => SlidingLog::new(limit, log.period()).map(Strategy::SlidingLog),
    }
}
