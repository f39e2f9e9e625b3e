//! Counts the decisions of each rule of a configuration.
//!
//! Guarantees:
//! - Each decision of a rule about a descriptor is counted once.
//! - A decision costs two loads and one atomic addition, without a hash or an allocation.
//! - A reload keeps the counts of all rules that have the same domain and path.
//! - The rules after the first `max_counted_rules` share one counter.
//!
//! Not covered:
//! - Limit overrides, replaced rules and failed checks: no rule decided.
//! - Rules of one domain with equal paths: they share one counter.
//! - Checks in flight during a reload: decisions of a removed rule are lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::Decision;
use crate::config::{Config, RuleNumber};
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::DescriptorDecision;
use crate::telemetry::event::RuleVerdict;
use crate::telemetry::metrics::RuleDecisions;
use crate::top_keys::RuleTopKeys;

/// The domain and the path of the counter for all rules without a separate one. Paths of rules
/// contain a dot.
const OTHER: &str = "other";

/// The counters of all rules of one configuration.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// The counter of each rule. The index is the rule's number.
    by_number: Box<[Arc<RuleCounter>]>,
    /// Each counter once, in the order of the rules.
    counters: Box<[Arc<RuleCounter>]>,
    other: Arc<RuleCounter>,
}

/// A hash of a rule's domain and path, the same in all replicas.
pub type RuleHash = u64;

/// Returns the hash of a rule.
#[must_use]
pub fn rule_hash(domain: &str, path: &str) -> RuleHash {
    // Less than 2^53, because JSON numbers may be read as doubles.
    SipHasher24::new().hash([domain, "\0", path].concat().as_bytes()) >> 12
}

/// The decisions of one rule, and the use of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleActivity {
    /// The number of decisions, by [`RuleVerdict`].
    pub counts: [u64; RuleVerdict::ALL.len()],
    /// The largest share of a limit that a key had used in the last minute, in millionths.
    pub used: u32,
}

impl RuleActivity {
    /// The number of all decisions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().copied().fold(0, u64::saturating_add)
    }

    /// Adds the decisions of another replica. The used share becomes the larger one.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.used = self.used.max(other.used);
    }
}

/// The state of one rule at the end of a step.
#[derive(Debug)]
pub(crate) struct RuleSample {
    pub(crate) key: RuleKey,
    /// The decisions since the start of the process: allowed, denied, denied in shadow mode.
    pub(crate) counts: [u64; 3],
    /// The largest used share in the step, in millionths.
    pub(crate) used: u64,
}

/// The domain and the path of a rule.
pub(crate) type RuleKey = (Box<str>, Box<str>);

/// The counts of one rule, and its top keys.
#[derive(Debug)]
pub(crate) struct RuleCounter {
    domain: Box<str>,
    path: Box<str>,
    counts: [AtomicU64; RuleVerdict::ALL.len()],
    /// The largest used share of a limit since [`RuleCounters::samples`], in millionths.
    used: AtomicU32,
    /// `None` if the rule had no hits, or if other rules need the memory.
    pub(crate) top_keys: ArcSwapOption<RuleTopKeys>,
}

impl RuleCounters {
    /// Creates the counters for `config`. Rules that were in the configuration of `before` keep
    /// their counters.
    pub(crate) fn new(config: &Config, max: u32, before: Option<&Self>) -> Self {
        let old = before.map_or_else(HashMap::new, |before| {
            before.counters.iter().map(|counter| (counter.key(), counter)).collect()
        });
        let new_counter = |(domain, path)| {
            let kept = old.get(&(domain, path)).copied().cloned();
            kept.unwrap_or_else(|| Arc::new(RuleCounter::new(domain, path)))
        };
        let (mut by_path, mut by_number, mut counters) = (HashMap::new(), Vec::new(), Vec::new());
        for key in first_rules(config, max).into_values() {
            let counter = by_path.entry(key).or_insert_with(|| {
                counters.push(new_counter(key));
                counters.len() - 1
            });
            by_number.push(Arc::clone(&counters[*counter]));
        }
        let other = before.map(|before| Arc::clone(&before.other));
        let other = other.unwrap_or_else(|| Arc::new(RuleCounter::new(OTHER, OTHER)));
        Self { by_number: by_number.into(), counters: counters.into(), other }
    }

    /// Counts a decision of the rule `number`.
    pub(crate) fn count(&self, number: RuleNumber, verdict: RuleVerdict) {
        self.count_many(number, verdict, 1);
    }

    /// Counts `decisions` equal decisions of the rule `number`.
    pub(crate) fn count_many(&self, number: RuleNumber, verdict: RuleVerdict, decisions: u64) {
        let counter = self.by_number.get(number.0 as usize).unwrap_or(&self.other);
        counter.counts[verdict as usize].fetch_add(decisions, Relaxed);
    }

    /// Returns the counter of the rule `number`. `None` if it shares the counter of other rules.
    pub(crate) fn counter(&self, number: RuleNumber) -> Option<&Arc<RuleCounter>> {
        self.by_number.get(number.0 as usize)
    }

    /// Counts the decisions of the rules of a check.
    pub(crate) fn count_decision(&self, plan: &CheckPlan<'_>, decision: &Decision) {
        for (rule, status) in plan.rules().zip(&decision.statuses) {
            if let Some(rule) = rule {
                self.count(rule.number, verdict_of(&status.decision, decision.is_shadowed));
            }
        }
    }

    /// Returns the state of all rules for the history, and starts a new measurement of used shares.
    pub(crate) fn samples(&self) -> Vec<RuleSample> {
        let sample = |counter: &Arc<RuleCounter>| {
            let [allow, deny, shadow_deny, fallback_allow, fallback_deny] = counter.totals().counts;
            RuleSample {
                key: (counter.domain.clone(), counter.path.clone()),
                counts: [allow + fallback_allow, deny + fallback_deny, shadow_deny],
                used: counter.used.swap(0, Relaxed).into(),
            }
        };
        self.counters.iter().map(sample).collect()
    }

    /// Returns the decisions and the used share of all rules.
    pub(crate) fn activity(&self) -> impl Iterator<Item = ((&str, &str), RuleActivity)> {
        self.counters.iter().map(|counter| {
            let used = counter.used.load(Relaxed);
            (counter.key(), RuleActivity { counts: counter.totals().counts, used })
        })
    }

    /// Returns the counts of all rules. Rules without a separate counter are summed as [`OTHER`].
    pub(crate) fn totals(&self) -> Vec<RuleDecisions> {
        let counters = self.counters.iter().chain([&self.other]);
        counters.map(|counter| counter.totals()).collect()
    }
}

impl RuleCounter {
    pub(crate) fn new(domain: &str, path: &str) -> Self {
        Self {
            domain: domain.into(),
            path: path.into(),
            counts: Default::default(),
            used: AtomicU32::new(0),
            top_keys: ArcSwapOption::empty(),
        }
    }

    /// Records that a key has used `used` of a limit that allows `most`.
    pub(crate) fn record_used(&self, used: u64, most: u64) {
        let millionths = u128::from(used).saturating_mul(1_000_000).checked_div(most.into());
        let millionths = millionths.unwrap_or(0).min(1_000_000);
        let millionths = u32::try_from(millionths).unwrap_or(0);
        // Most decisions only read: a write would move the cache line between the cores.
        if self.used.load(Relaxed) < millionths {
            self.used.fetch_max(millionths, Relaxed);
        }
    }

    /// Returns the domain and the path of the rule.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.domain, &self.path)
    }

    fn totals(&self) -> RuleDecisions {
        let counts = self.counts.each_ref().map(|count| count.load(Relaxed));
        RuleDecisions { domain: self.domain.clone(), path: self.path.clone(), counts }
    }
}

/// Returns the domain and the path of the first `max` rules, by number.
fn first_rules(config: &Config, max: u32) -> BTreeMap<RuleNumber, (&str, &str)> {
    let mut rules = BTreeMap::new();
    for domain in config.domains.values() {
        let rates = domain.tree.rules().map(|rule| (rule.number, &*rule.path));
        let limits = domain.tree.concurrency_limits().map(|limit| (limit.number, &*limit.path));
        let budgets = domain.tree.budgets().map(|budget| (budget.number, &*budget.path));
        let first = rates.chain(limits).chain(budgets).filter(|(number, _)| number.0 < max);
        rules.extend(first.map(|(number, path)| (number, (&*domain.name, path))));
    }
    rules
}

const fn verdict_of(decision: &DescriptorDecision, is_shadowed: bool) -> RuleVerdict {
    let is_shadow = is_shadowed || decision.enforcement.shadow;
    match (decision.is_denied, decision.reason.is_fallback()) {
        (true, _) if is_shadow => RuleVerdict::ShadowDeny,
        (true, true) => RuleVerdict::FallbackDeny,
        (true, false) => RuleVerdict::Deny,
        (false, true) => RuleVerdict::FallbackAllow,
        (false, false) => RuleVerdict::Allow,
    }
}
