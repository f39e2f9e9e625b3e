//! Chooses how a proxy handles the descriptors of a rule.
//!
//! Guarantees:
//! - A proxy decides a rule itself only if its limits depend on no other descriptor.
//! - Forced decisions and boosts apply until their end.
//!
//! Not covered:
//! - Limits that a request carries.

use std::sync::Arc;

use super::ProxyConnection;
use super::concurrency::customer_weights;
use super::counter::one_descriptor;
use crate::Engine;
use crate::config::tree::KeyEntries;
use crate::config::{ChargePolicy, Domain, FallbackMode, Limit, LimitWindow, Rule};
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::Verdict;
use crate::kernel::lease::LeaseTerms;
use crate::kernel::proxy_rule::{ProxyHandling, ProxyLimit, ProxyRule, TableRow};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::{Hits, Nanos};

type Entries<'e> = &'e [(&'e str, &'e str)];

/// A descriptor's rule, its plan, and the rest of its domain.
struct PlannedRule<'a, 'c> {
    domain: &'c Domain,
    rule: &'c Rule,
    plan: &'a CheckPlan<'c>,
    quota_for_all: bool,
}

/// The attempts to read a rule while its tables change.
const MAX_ATTEMPTS: usize = 3;

impl Engine {
    /// Returns the rule of a descriptor for a proxy, which then hears of changes of its rows. Without
    /// a configuration, the handling is [`ProxyHandling::Ask`].
    #[must_use]
    pub fn proxy_rule(
        &self,
        proxy: &ProxyConnection,
        domain: &str,
        entries: Entries<'_>,
    ) -> ProxyRule {
        let mut rule = self.current_rule(domain, entries);
        for _ in 1..MAX_ATTEMPTS {
            proxy.add_rows(&rule.rows);
            // A change before the rows were added was not announced to this proxy.
            if rule.rows.is_empty() || rule.limits == self.proxies.limits() {
                return rule;
            }
            rule = self.current_rule(domain, entries);
        }
        proxy.add_rows(&rule.rows);
        ProxyRule {
            valid_for: Some(rule.valid_for.unwrap_or(Nanos::SECOND).min(Nanos::SECOND)),
            ..rule
        }
    }

    fn current_rule(&self, domain: &str, entries: Entries<'_>) -> ProxyRule {
        // Before the configuration: then a change in between is announced after this reply.
        let limits = self.proxies.limits();
        let (active, now) = (self.active.load(), self.clock.now());
        let Some(config) = active.as_deref() else {
            return ProxyRule::unmatched(ProxyHandling::Ask, limits);
        };
        let Some(domain) = config.domains.get(domain) else {
            let unlimited = ProxyRule::unmatched(ProxyHandling::Unlimited, limits);
            return ProxyRule { is_for_any_values: true, ..unlimited };
        };
        let concurrency = self.proxy_concurrency_limit((config, domain), entries);
        let (weights, weight_rows) = customer_weights(config, domain, entries, now);
        let (weights, rows) = (weights.into(), rows_of(domain, entries, weight_rows));
        let rows_end = rows.iter().filter_map(|row| config.tables.next_end(row, now)).min();
        let shadow_end = self.shadow_end().filter(|end| *end != Nanos(u64::MAX));
        let Some((rule, counter)) = domain.tree.rule_and_key(entries.iter().copied()) else {
            let valid_for = shadow_end.into_iter().chain(rows_end).min().map(|at| at.since(now));
            let unmatched = unmatched_rule(domain, entries, limits);
            return ProxyRule { valid_for, concurrency, rows, weights, ..unmatched };
        };
        let check = one_descriptor(&domain.name, entries, Hits(0));
        let mut plan = CheckPlan::default();
        let planning = self.policy.planning;
        plan.fill(config, &check, planning, now);
        let quota_for_all = planning.quota_for_all;
        let planned = PlannedRule { domain, rule, plan: &plan, quota_for_all };
        ProxyRule {
            valid_for: next_change(rule, &counter, &plan, now)
                .into_iter()
                .chain(shadow_end)
                .chain(rows_end)
                .min()
                .map(|at| at.since(now)),
            path: Some(Arc::clone(&rule.path)),
            is_shadow: rule.shadow || self.is_shadow(),
            counter,
            concurrency,
            rows,
            weights,
            ..ProxyRule::unmatched(planned.handling(), limits)
        }
    }
}

/// Returns the rows of tables that the limits of a descriptor read, and those of its weights.
fn rows_of(domain: &Domain, entries: Entries<'_>, weights: Vec<TableRow>) -> Box<[TableRow]> {
    let rule = domain.tree.rule_and_key(entries.iter().copied()).map(|(rule, _)| rule);
    let rates = rule.into_iter().flat_map(|rule| &rule.limits).map(|limit| &limit.from);
    let permits = domain.tree.lookup_concurrency_limit(entries.iter().copied());
    let permits = permits.iter().map(|found| &found.limit.from);
    let columns = rates.chain(permits).flatten();
    let mut rows: Vec<_> = columns.map(|column| column.row_of(entries)).chain(weights).collect();
    rows.dedup();
    rows.into()
}

fn unmatched_rule(domain: &Domain, entries: Entries<'_>, limits: u64) -> ProxyRule {
    let keys: Vec<_> = entries.iter().map(|(key, _)| *key).collect();
    let is_for_any_values = !domain.tree.may_limit_keys(&keys);
    ProxyRule { is_for_any_values, ..ProxyRule::unmatched(ProxyHandling::Unlimited, limits) }
}

impl PlannedRule<'_, '_> {
    fn handling(&self) -> ProxyHandling {
        match self.plan.limits.first() {
            None | Some(LimitPlan::NoRule | LimitPlan::Unlimited(_)) => ProxyHandling::Unlimited,
            Some(_) if self.depends_on_others() => ProxyHandling::AskTogether,
            Some(LimitPlan::Forced(_, _, verdict)) => ProxyHandling::Forced(*verdict),
            Some(_) if self.affects_others() => ProxyHandling::AskTogether,
            Some(_) if !self.is_leased() => ProxyHandling::Ask,
            Some(_) => ProxyHandling::Leased(leased_limits(self.plan)),
        }
    }

    /// Returns `true` if another descriptor can turn a denial of this rule into an allowed request.
    fn depends_on_others(&self) -> bool {
        let Self { domain, rule, plan, quota_for_all } = self;
        let is_replaced = |other: &Rule| {
            other.replaces.iter().any(|replaced| rule.names().any(|name| name == replaced))
        };
        *quota_for_all
            || rule.quota
            || plan.limits.iter().any(|limit| matches!(limit, LimitPlan::Replaced))
            || rule.names().next().is_some() && domain.tree.rules().any(is_replaced)
    }

    /// Returns `true` if this rule changes which limits of the request are charged.
    fn affects_others(&self) -> bool {
        let has_penalty = self.rule.limits.iter().any(|limit| limit.penalty.is_some());
        self.domain.charge == ChargePolicy::AllOrNothing
            || !self.rule.replaces.is_empty()
            || has_penalty
    }

    fn is_leased(&self) -> bool {
        self.plan.lease_terms().all(|terms| terms.is_some())
    }
}

fn leased_limits(plan: &CheckPlan<'_>) -> Box<[ProxyLimit]> {
    let charges = plan.limits.iter().zip(&plan.charges.list).zip(plan.lease_terms());
    let limits = charges.filter_map(|((limit, charge), terms)| {
        let LimitPlan::Charged(_, limit) = limit else { return None };
        Some(leased_limit(limit, charge.strategy, *terms?))
    });
    limits.collect()
}

fn leased_limit(limit: &Limit, strategy: Strategy, terms: LeaseTerms) -> ProxyLimit {
    ProxyLimit {
        name: limit.name.clone(),
        requests: limit.requests,
        period: limit.window.length(),
        strategy,
        terms,
        // A proxy has no local share, so its own failure rule decides.
        on_failure: match limit.on_store_failure {
            FallbackMode::Error | FallbackMode::Local => None,
            FallbackMode::Allow => Some(Verdict::Allow),
            FallbackMode::Deny => Some(Verdict::Deny),
        },
    }
}

/// Returns the instant at which an action ends or a calendar window starts, if there is one.
fn next_change(
    rule: &Rule,
    counter: &KeyEntries,
    plan: &CheckPlan<'_>,
    now: Nanos,
) -> Option<Nanos> {
    let entries = counter.iter().map(|(key, value)| (&**key, &**value));
    let key_end = rule.key_actions_for(&entries).and_then(|key| key.next_end(now));
    let rule_end = rule.forced_decision.map(|forced| forced.until).filter(|until| now < *until);
    let charged = plan.limits.iter().filter(|limit| limit.is_charged());
    let windows = charged.zip(&plan.charges.list).filter_map(|(limit, charge)| {
        let LimitPlan::Charged(_, Limit { window: LimitWindow::Calendar(..), .. }) = limit else {
            return None;
        };
        next_window(&charge.strategy)
    });
    windows.chain(key_end).chain(rule_end).min()
}

const fn next_window(strategy: &Strategy) -> Option<Nanos> {
    let Strategy::FixedWindow(window) = strategy else { return None };
    match window.windows() {
        Windows::Calendar { starts: [_, _, next, _] } => Some(*next),
        Windows::Every(_) => None,
    }
}
