//! Counts the statistics of each rule like envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Hits are counted before the store call, allows and denials after it.
//! - Amounts equal those of envoyproxy/ratelimit if the store returns the value of its counter.
//! - Otherwise the amounts are derived from the verdict and the remaining hits.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::tree::MetricDots;
use crate::config::{Config, Domain};
use crate::decide::charge_stats::ChargeStats;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;
use crate::telemetry::stats::{RuleStats, RuleStatsKey, Stats};

/// Counts the hits of `plan`. Returns the statistics to update after the store call, one for each
/// charge.
pub(crate) fn count_hits(
    stats: &Stats,
    config: &Config,
    check: &Check<'_>,
    plan: &CheckPlan<'_>,
) -> SmallVec<[ChargeStats; 2]> {
    let Some(domain) = config.domains.get(check.domain) else {
        let descriptors = u64::try_from(check.descriptors.len()).unwrap_or(u64::MAX);
        stats.count_unknown_domain(check.domain, descriptors);
        return SmallVec::new();
    };
    let charged = plan.with_descriptors(check).filter(|(limit_plan, _)| limit_plan.is_charged());
    let charge_stats = charged.zip(&plan.charges.list).map(|((limit_plan, descriptor), charge)| {
        let rule = rule_stats(stats, domain, limit_plan, descriptor);
        match descriptor.cost {
            Cost::Charge(Hits(hits)) => rule.hits(hits),
            // The largest refund empties the counter: the number of its hits is unknown.
            Cost::Refund(Hits(EXACT_BOUND..)) => {}
            Cost::Refund(Hits(hits)) => rule.refund(hits),
        }
        // For GCRA, the burst: the remaining hits of a reply are counted from it.
        let limit = charge.strategy.max_at_once();
        let shadow = matches!(limit_plan, LimitPlan::Charged(rule, _) if rule.shadow);
        ChargeStats { rule, limit, shadow }
    });
    charge_stats.collect()
}

fn rule_stats(
    stats: &Stats,
    domain: &Domain,
    limit_plan: &LimitPlan<'_>,
    descriptor: &Descriptor<'_>,
) -> Arc<RuleStats> {
    let entries = || descriptor.entries.iter().copied();
    let dots = if stats.has_replaced_dots() { MetricDots::Replaced } else { MetricDots::Kept };
    if let LimitPlan::Charged(rule, limit) = limit_plan {
        let metric_key = |dots| domain.tree.metric_key(&domain.name, entries(), rule, dots);
        let mut key = metric_key(MetricDots::Kept);
        let is_rule_path = *key == *rule.path;
        if dots == MetricDots::Replaced {
            key = metric_key(dots);
        }
        if let Some(name) = &limit.name {
            key.push('.');
            dots.append(&mut key, name);
        }
        return stats.rule_stats(if is_rule_path {
            RuleStatsKey::FromFile(&key)
        } else {
            RuleStatsKey::FromRequest(&key)
        });
    }
    // A limit override has no rule, so the name of its statistics is the list of entries.
    let mut key = String::from(&*domain.name);
    for (name, value) in entries() {
        let joint = if value.is_empty() { "" } else { "_" };
        key.push('.');
        dots.append(&mut key, name);
        key.push_str(joint);
        dots.append(&mut key, value);
    }
    if descriptor.entries.is_empty() {
        key.push('.');
    }
    stats.rule_stats(RuleStatsKey::FromRequest(&key))
}
