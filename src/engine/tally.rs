//! What each rule did, as the reference counts it.
//!
//! Guarantees: hits are counted before the store is asked, what became of them after; amounts are the reference's
//! where the store says what its counter holds, and otherwise what the answer alone tells.
//! Leaves out: names and bounds, which are for [`crate::telemetry::stats`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::decide::near_from;
use super::degrade::Settled;
use super::plan::{Part, Plan};
use crate::backend::{Held, Outcome};
use crate::config::{Config, Domain};
use crate::kernel::decision::{Cost, Descriptor, Question, Verdict};
use crate::kernel::rate::Step;
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::Hits;
use crate::telemetry::stats::{Key, Rule, Stats, Verdict as Told};

/// Where what comes of one charge is counted.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    rule: Arc<Rule>,
    limit: u32,
    shadow: bool,
}

/// One for each charge of `plan`.
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
            // More than any counter holds: it is emptied, and nobody knows of how many.
            Cost::Refund(Hits(EXACT..)) => {}
            Cost::Refund(Hits(hits)) => rule.refund(hits),
        }
        // What a GCRA has left is of its burst.
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
    // A limit that the question brought: the entries as they came.
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
    /// Counts what became of a charge.
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

/// What a counter must hold for what was answered; of one that denies it is not known how far it is over, and the
/// whole charge counts as over.
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
