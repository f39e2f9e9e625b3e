//! The rule of a descriptor, for a proxy.
//!
//! Guarantees:
//! - A proxy decides a rule itself only if its limits do not depend on other descriptors.
//! - A rule with an operator's action is valid until the action ends.
//! - A calendar limit is valid until its window ends.

use std::sync::Arc;

use super::{Entries, check_of};
use crate::config::tree::KeyEntries;
use crate::config::{ChargePolicy, Domain, FallbackMode, Limit, Rule};
use crate::engine::Engine;
use crate::engine::decide::plan::{CheckPlan, LimitPlan};
use crate::kernel::decision::Verdict;
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::{Hits, Nanos};

/// The rule of a descriptor.
#[derive(Clone, Debug)]
pub struct ProxyRule {
    /// The number of the limits in force, as in [`Engine::watch_limits`].
    pub limits_number: u64,
    /// The way to decide requests.
    pub handling: ProxyHandling,
    /// The path of the rule; `None` if no rule matches.
    pub path: Option<Arc<str>>,
    /// `true` if no descriptor with the same keys matches a rule.
    pub any_values: bool,
    /// `true` if the rule never denies.
    pub shadow: bool,
    /// The time for which the rule is valid; `None` until the limits change.
    pub valid_for: Option<Nanos>,
}

/// The way to decide requests of a rule.
#[derive(Clone, Debug)]
pub enum ProxyHandling {
    /// No limit applies.
    Unlimited,
    /// An operator forced this verdict.
    Forced(Verdict),
    /// The proxy decides from leased hits.
    Leased {
        /// The entries of the counters' keys.
        counter: KeyEntries,
        /// The limits.
        limits: Vec<ProxyLimit>,
    },
    /// Each request needs a check.
    Ask,
    /// Each request needs a check of all its descriptors.
    AskTogether,
}

/// A leased limit.
#[derive(Clone, Debug)]
pub struct ProxyLimit {
    /// The limit.
    pub limit: Limit,
    /// The strategy, with the numbers of a boost and the current calendar windows.
    pub strategy: Strategy,
    /// The lease terms.
    pub terms: LeaseTerms,
}

impl Engine {
    /// Returns the rule of a descriptor, or `None` if no configuration is loaded. Cost: one lookup,
    /// and a look at all rules of the domain.
    #[must_use]
    pub fn rule_for_proxy(&self, domain: &str, entries: Entries<'_>) -> Option<ProxyRule> {
        // Read first: a change meanwhile makes the reply old, never too new.
        let limits_number = self.limits_number.current();
        let active = self.active.load();
        let config = active.as_deref()?;
        let check = check_of(domain, entries, Hits(1));
        let plan = self.plan_for_proxy(config, &check);
        let unmatched = || ProxyRule {
            limits_number,
            handling: ProxyHandling::Unlimited,
            path: None,
            any_values: false,
            shadow: false,
            valid_for: None,
        };
        let Some(domain) = config.domains.get(domain) else {
            return Some(ProxyRule { any_values: true, ..unmatched() });
        };
        if domain.tree.lookup_concurrency_limit(entries.iter().copied()).is_some() {
            return Some(ProxyRule { handling: ProxyHandling::Ask, ..unmatched() });
        }
        let Some(rule) = plan.limits.first().and_then(LimitPlan::rule) else {
            let keys = entries.iter().map(|(key, _)| *key);
            let any_values = !domain.tree.may_match_keys(keys);
            return Some(ProxyRule { any_values, ..unmatched() });
        };
        Some(ProxyRule {
            handling: self.handling(domain, rule, &plan, entries),
            path: Some(Arc::clone(&rule.path)),
            shadow: rule.shadow || self.policy.is_shadow,
            valid_for: self.validity(rule, &plan, domain, entries),
            ..unmatched()
        })
    }

    fn handling(
        &self,
        domain: &Domain,
        rule: &Rule,
        plan: &CheckPlan<'_>,
        entries: Entries<'_>,
    ) -> ProxyHandling {
        let depends_on_others = domain.charge != ChargePolicy::Each
            || self.policy.planning.quota_for_all
            || rule.quota
            || !rule.replaces.is_empty()
            || is_replaced_by_another(domain, rule);
        match plan.limits.first() {
            _ if depends_on_others => ProxyHandling::AskTogether,
            Some(LimitPlan::Forced(.., verdict)) => ProxyHandling::Forced(*verdict),
            Some(LimitPlan::Charged(..)) => {
                let counter = domain.tree.rule_and_key(entries.iter().copied());
                match (leased_limits(plan), counter) {
                    (Some(limits), Some((_, counter))) => ProxyHandling::Leased { counter, limits },
                    _ => ProxyHandling::Ask,
                }
            }
            Some(LimitPlan::Unlimited(_)) => ProxyHandling::Unlimited,
            _ => ProxyHandling::Ask,
        }
    }

    /// Returns the time until an operator's action or a calendar window ends.
    fn validity(
        &self,
        rule: &Rule,
        plan: &CheckPlan<'_>,
        domain: &Domain,
        entries: Entries<'_>,
    ) -> Option<Nanos> {
        let now = self.clock.now();
        let key = domain.tree.rule_and_key(entries.iter().copied());
        let key = key.as_ref().and_then(|(_, key)| {
            let pairs = key.iter().map(|(key, value)| (&**key, &**value));
            rule.key_actions_for(&pairs)
        });
        let ends = key.and_then(|key| key.next_end(now)).into_iter();
        let forced = rule.forced_decision.map(|forced| forced.until);
        let windows =
            plan.charges.list.iter().filter_map(|charge| window_end(&charge.strategy, now));
        ends.chain(forced).chain(windows).filter(|end| now < *end).min().map(|end| end.since(now))
    }
}

/// Returns the limits of the plan if all are leased.
fn leased_limits(plan: &CheckPlan<'_>) -> Option<Vec<ProxyLimit>> {
    let limits = plan.limits.iter().map(|limit| match limit {
        LimitPlan::Charged(_, limit) => Some(*limit),
        _ => None,
    });
    let charged = limits.zip(&plan.charges.list).zip(plan.lease_terms());
    let leased = charged.map(|((limit, charge), terms)| {
        // The proxy has no counters of its own, so it cannot count a local share.
        let limit = limit?.clone();
        Some(ProxyLimit { limit, strategy: charge.strategy, terms: *terms? })
    });
    leased.collect::<Option<Vec<_>>>().filter(|limits| !limits.is_empty())
}

impl ProxyLimit {
    /// Returns the verdict without leased hits and without a reply, or `None` if the failure rule
    /// of the proxy decides.
    #[must_use]
    pub const fn verdict_on_failure(&self) -> Option<Verdict> {
        match self.limit.on_store_failure {
            FallbackMode::Allow => Some(Verdict::Allow),
            FallbackMode::Deny => Some(Verdict::Deny),
            FallbackMode::Error | FallbackMode::Local => None,
        }
    }
}

fn is_replaced_by_another(domain: &Domain, rule: &Rule) -> bool {
    let mut replaced = domain.tree.rules().flat_map(|other| other.replaces.iter());
    replaced.any(|name| rule.names().any(|own| own == name))
}

/// Returns the end of the calendar window at `now`.
fn window_end(strategy: &Strategy, now: Nanos) -> Option<Nanos> {
    let Strategy::FixedWindow(window) = strategy else { return None };
    match window.windows() {
        Windows::Calendar { starts } => starts.iter().copied().find(|start| now < *start),
        Windows::Every(_) => None,
    }
}
