//! Counts the statistics of each rule like envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Hits are counted before the store call, results after it.
//! - Amounts equal those of envoyproxy/ratelimit if the store returns its counter.
//! - Otherwise the amounts are derived from the reply.
//!
//! Not covered:
//! - Names and bounds: see [`crate::telemetry::stats`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::decision::near_from;
use super::degrade::Settled;
use super::plan::{Part, Plan};
use crate::backend::{Held, Outcome};
use crate::config::{Config, Domain};
use crate::kernel::decision::{Cost, Descriptor, Question, Verdict};
use crate::kernel::rate::Step;
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::Hits;
use crate::telemetry::stats::{Key, Rule, Stats, Verdict as Told};

/// The statistics of the rule behind one charge.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    rule: Arc<Rule>,
    limit: u32,
    shadow: bool,
}

/// Counts the hits of `plan`. Returns the statistics of each charge.
pub(super) fn of(
    stats: &Stats,
    config: &Config,
    question: &Question<'_>,
    plan: &Plan<'_>,
) -> SmallVec<[Counted; 2]> {
    let Some(domain) = config.domains.get(question.domain) else {
        let descriptors = u64::try_from(question.descriptors.len()).unwrap_or(u64::MAX);
        stats.unknown_domain(question.domain, descriptors);
        return SmallVec::new();
    };
    let charged =
        plan.parts.iter().zip(&question.descriptors).filter(|(part, _)| part.is_charged());
    let counted = charged.zip(&plan.charges.list).map(|((part, descriptor), charge)| {
        let rule = rule(stats, domain, part, descriptor);
        match descriptor.cost {
            Cost::Charge(Hits(hits)) => rule.hits(hits),
            // The largest refund empties the counter, and the number of its hits is unknown.
            Cost::Refund(Hits(EXACT..)) => {}
            Cost::Refund(Hits(hits)) => rule.refund(hits),
        }
        // For GCRA, the remaining hits belong to the burst.
        let limit = charge.strategy.most();
        let shadow = matches!(part, Part::Charged(rule, _) if rule.shadow);
        Counted { rule, limit, shadow }
    });
    counted.collect()
}

fn rule(stats: &Stats, domain: &Domain, part: &Part<'_>, descriptor: &Descriptor<'_>) -> Arc<Rule> {
    let entries = || descriptor.entries.iter().copied();
    if let Part::Charged(rule, _) = part {
        let made = domain.tree.metric_key(&domain.name, entries(), rule);
        let is_written = *made == *rule.path;
        return stats.rule(if is_written { Key::Written(&made) } else { Key::Made(&made) });
    }
    // A limit override has no rule, so its key is the list of entries.
    let mut key = String::from(&*domain.name);
    for (name, value) in entries() {
        let joint = if value.is_empty() { "" } else { "_" };
        key.extend([".", name, joint, value]);
    }
    if descriptor.entries.is_empty() {
        key.push('.');
    }
    stats.rule(Key::Made(&key))
}

impl Counted {
    pub(super) fn count(&self, cost: Cost, settled: &Settled, near_limit_ratio: f32) {
        let Cost::Charge(Hits(hits)) = cost else { return };
        let limit = u64::from(self.limit);
        let (held, is_remembered) = match settled {
            Settled::NotAsked | Settled::Answered(Outcome::Refunded(_)) => return,
            Settled::Answered(Outcome::Counted(_, Held { held, is_remembered })) => {
                (*held, *is_remembered)
            }
            Settled::Answered(outcome) | Settled::Local(outcome) => {
                (held(*outcome, limit, hits), false)
            }
            Settled::Ruled(Verdict::Admit, _) => (0, false),
            Settled::Ruled(Verdict::Deny, _) => (over(limit, hits), false),
        };
        let near = near_from(self.limit, near_limit_ratio);
        let told = Told { hits, held, limit, near, is_remembered, shadow: self.shadow };
        self.rule.verdict(told);
    }
}

/// Derives the value of the counter from the reply. After a denial the
/// excess is unknown, and the whole charge counts as over the limit.
fn held(outcome: Outcome, limit: u64, hits: u64) -> u64 {
    match outcome {
        Outcome::Stepped(Step::Admit(room)) => limit.saturating_sub(room.remaining.0),
        Outcome::Full(Verdict::Admit) => 0,
        _ => over(limit, hits),
    }
}

const fn over(limit: u64, hits: u64) -> u64 {
    limit.saturating_add(hits).saturating_add(1)
}
