//! The statistics of one charge, with the amounts of envoyproxy/ratelimit.

use crate::decide::charge_decision::ChargeDecision;
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::Hits;
use crate::store::{ChargeOutcome, CounterHits};
use crate::telemetry::stats::{RuleCharge, RuleStats};
use std::sync::Arc;

/// The rule statistics to update for one charge.
#[derive(Clone, Debug)]
pub(crate) struct ChargeStats {
    pub(crate) rule: Arc<RuleStats>,
    pub(crate) limit: u32,
    pub(crate) shadow: bool,
}

impl ChargeStats {
    pub(crate) fn count(
        &self,
        cost: Cost,
        charge_decision: &ChargeDecision,
        near_limit_ratio: f32,
    ) {
        let Cost::Charge(Hits(hits)) = cost else { return };
        let limit = u64::from(self.limit);
        let (counter, is_cached_denial) = match charge_decision {
            ChargeDecision::NotCharged | ChargeDecision::Store(ChargeOutcome::Refunded(_)) => {
                return;
            }
            ChargeDecision::Store(ChargeOutcome::Counted(
                _,
                CounterHits { hits: counter_hits, is_cached_denial },
            )) => (*counter_hits, *is_cached_denial),
            ChargeDecision::Store(outcome) | ChargeDecision::Local(outcome) => {
                (counter_value(*outcome, limit, hits), false)
            }
            ChargeDecision::Fallback(Verdict::Allow, _) => (0, false),
            ChargeDecision::Fallback(Verdict::Deny, _) | ChargeDecision::Banned(_) => {
                (over_limit_value(limit, hits), false)
            }
        };
        let near_limit = near_limit_threshold(self.limit, near_limit_ratio);
        let rule_charge = RuleCharge {
            hits,
            counter,
            limit,
            near_limit,
            is_cached_denial,
            is_shadow: self.shadow,
        };
        self.rule.count_result(rule_charge);
    }
}

/// Derives the counter's value from `outcome`. After a denial the value is unknown, so the whole
/// charge counts as over the limit.
fn counter_value(outcome: ChargeOutcome, limit: u64, hits: u64) -> u64 {
    match outcome {
        ChargeOutcome::Decided(CounterDecision::Allow(room)) => {
            limit.saturating_sub(room.remaining.0)
        }
        ChargeOutcome::StoreFull(Verdict::Allow) => 0,
        _ => over_limit_value(limit, hits),
    }
}

const fn over_limit_value(limit: u64, hits: u64) -> u64 {
    limit.saturating_add(hits).saturating_add(1)
}

/// Returns the hits above which a limit is nearly used up, with the 32-bit floats of
/// envoyproxy/ratelimit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "envoyproxy/ratelimit rounds down; a ratio is 0 to 1"
)]
#[inline]
pub(crate) fn near_limit_threshold(limit: u32, ratio: f32) -> u64 {
    (limit as f32 * ratio) as u64
}
