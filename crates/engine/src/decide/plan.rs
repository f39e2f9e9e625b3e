//! Plans a check: finds the limits of each descriptor, and their counter keys and charges.
//!
//! Guarantees:
//! - Pure: a plan depends only on configuration, settings, check and instants.
//! - Replaced and unlimited rules are not charged.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::tree::{self, SharedValues};
use crate::config::{
    ChargePolicy, Config, Domain, FallbackMode, Limit, LimitWindow, Rule, RuleLimits,
};
use crate::decide::charge_stats::ChargeStats;
use crate::decide::excess;
use crate::decide::limit_plan::{LimitPlan, enforcement_of};
use crate::kernel::decision::{
    Check, Cost, Descriptor, Enforcement, LimitOverride, Verdict, VoteGroup, combine,
};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::units::Nanos;
use crate::store::{Charge, ChargeMode as ChargeRule, Charges, Placement};

/// The settings that affect how a check is planned.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanSettings {
    /// How counters are named in the store.
    pub keys: KeyNaming,
    /// The effect of a limit that a request carries (an override).
    pub overrides: OverridePolicy,
    /// `true` if every limit is in the quota group.
    pub quota_for_all: bool,
}

/// How counters are named in the store (setting `compat.store.key_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyNaming {
    /// Distinct descriptors have distinct counters.
    #[default]
    Unique,
    /// Fixed windows of the seven units are named as in envoyproxy/ratelimit, including its
    /// collisions. All other counters are named as with `Unique`.
    Envoyproxy,
}

/// The effect of a limit that a request carries (setting `overrides`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverridePolicy {
    /// The override replaces the configured limit.
    #[default]
    Allow,
    /// The override is ignored.
    Deny,
    /// The smaller limit applies, if the override and the configured limit are fixed windows of the
    /// same unit. Otherwise the configured limit applies, or without one the override.
    Max,
}

#[derive(Debug, Default)]
pub(crate) struct CheckPlan<'c> {
    /// The limits of all descriptors, in the order of the check.
    pub(crate) limits: SmallVec<[LimitPlan<'c>; 2]>,
    /// The number of limits of each descriptor, up to the last list. Each later descriptor has one.
    pub(crate) counts: SmallVec<[u8; 8]>,
    pub(crate) charges: Charges,
    /// One element for each charge; empty if statistics are off.
    pub(crate) stats: SmallVec<[ChargeStats; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInstants {
    /// The instant that selects forced decisions, on this process's clock. A second plan of a check
    /// uses the same instant, so that it has the same charges.
    pub(crate) forced_at: Nanos,
    /// The instant that selects calendar windows; in a second plan, the store's time.
    pub(crate) windows_at: Nanos,
}

impl<'c> CheckPlan<'c> {
    /// Returns the lease terms of each charge, or `None` if its limit is not leased. A counter
    /// named as in envoyproxy/ratelimit is never leased.
    #[inline]
    pub(crate) fn lease_terms(&self) -> impl Iterator<Item = Option<&'c LeaseTerms>> {
        let charged = self.limits.iter().filter(|descriptor| descriptor.is_charged());
        let charged = charged.zip(&self.charges.list);
        charged.map(|(descriptor, charge)| {
            descriptor.lease_terms().filter(|_| charge.key.compatible_bytes().is_none())
        })
    }

    /// Plans `check` for the instant `now`. Fills the plan in place, because moving a plan costs
    /// more than making it.
    pub(crate) fn fill(
        &mut self,
        config: &'c Config,
        check: &Check<'_>,
        planning: PlanSettings,
        now: Nanos,
    ) {
        self.fill_at(config, check, planning, PlanInstants { forced_at: now, windows_at: now });
    }

    pub(crate) fn fill_at(
        &mut self,
        config: &'c Config,
        check: &Check<'_>,
        planning: PlanSettings,
        instants: PlanInstants,
    ) {
        let Some(domain) = config.domains.get(check.domain) else {
            return self.limits.extend(check.descriptors.iter().map(|_| LimitPlan::NoRule));
        };
        for (index, descriptor) in check.descriptors.iter().enumerate() {
            let planned = self.limits.len();
            self.plan_descriptor((config, domain), descriptor, planning, instants);
            let count = self.limits.len() - planned;
            if count != 1 {
                self.group_last(count, index);
            }
        }
        self.remove_replaced();
        self.charges.mode = self.charge_mode(domain.charge, planning.quota_for_all);
    }

    fn plan_descriptor(
        &mut self,
        (config, domain): (&'c Config, &'c Domain),
        descriptor: &Descriptor<'_>,
        planning: PlanSettings,
        instants: PlanInstants,
    ) {
        let override_limit = match (descriptor.limit, planning.overrides) {
            (None, _) | (Some(_), OverridePolicy::Deny) => None,
            (override_limit, OverridePolicy::Allow | OverridePolicy::Max) => override_limit,
        };
        let mut shared_values = SharedValues::new();
        let matching_rule =
            domain.tree.find_rule(descriptor.entries.iter().copied(), &mut shared_values);
        let configured = matching_rule.and_then(|rule| rule.limits.first());
        let fallback = configured.map_or(domain.on_store_failure, |limit| limit.on_store_failure);
        match (matching_rule, override_limit) {
            (matching_rule, Some(limit))
                if planning.overrides == OverridePolicy::Allow || matching_rule.is_none() =>
            {
                shared_values.clear();
                tree::hash_long_values(descriptor.entries.iter().copied(), &mut shared_values);
                let given = (limit, fallback, None);
                self.charge_override(domain, descriptor, &shared_values, given, planning);
            }
            (None, _) => self.limits.push(LimitPlan::NoRule),
            (Some(rule), override_limit) => {
                let (forced_verdict, limits) =
                    actions_at(rule, descriptor, &shared_values, instants.forced_at);
                // A refund is made despite a forced decision, because it changes only the counter.
                if let (Some(verdict), Cost::Charge(_), Some(limit)) =
                    (forced_verdict, descriptor.cost, configured)
                {
                    return self.limits.push(LimitPlan::Forced(rule, limit, verdict));
                }
                if rule.limits.is_empty() {
                    return self.limits.push(LimitPlan::Unlimited(rule));
                }
                for limit in limits {
                    let Some(limit) =
                        self.limit_from_table(config, (rule, limit), descriptor, instants)
                    else {
                        continue;
                    };
                    let matched = (rule, limit, &*shared_values);
                    if let Some(tighter) = override_limit.filter(|given| is_tighter(*given, limit))
                    {
                        let given = (tighter, limit.on_store_failure, limit.name.as_deref());
                        self.charge_override(domain, descriptor, &shared_values, given, planning);
                    } else {
                        let now = instants.windows_at;
                        self.charge_rule(domain, descriptor, matched, planning, now);
                    }
                }
            }
        }
    }

    /// Removes the charges of rules that other rules of the check replace (field `replaces`).
    fn remove_replaced(&mut self) {
        let has_replacements = |descriptor: &LimitPlan<'_>| {
            descriptor.rule().is_some_and(|rule| !rule.replaces.is_empty())
        };
        if !self.limits.iter().any(has_replacements) {
            return;
        }
        let is_dropped = |descriptor: &LimitPlan<'_>| match descriptor {
            LimitPlan::Charged(rule, limit) | LimitPlan::Forced(rule, limit, _) => {
                is_replaced(rule.name_of(limit), &self.limits)
            }
            _ => false,
        };
        let replaced: SmallVec<[bool; 2]> = self.limits.iter().map(is_dropped).collect();
        let charged =
            self.limits.iter().zip(&replaced).filter(|(descriptor, _)| descriptor.is_charged());
        let mut next_replaced = charged.map(|(_, is_replaced)| *is_replaced);
        self.charges.list.retain(|_| !next_replaced.next().unwrap_or(false));
        for (descriptor, _) in
            self.limits.iter_mut().zip(replaced).filter(|(_, is_replaced)| *is_replaced)
        {
            *descriptor = LimitPlan::Replaced;
        }
    }
}

fn is_tighter(limit: LimitOverride, configured: &Limit) -> bool {
    configured.window == LimitWindow::Unit(limit.unit)
        && matches!(configured.strategy, Strategy::FixedWindow(_))
        && limit.requests < configured.requests
}

fn is_replaced(name: Option<&Arc<str>>, limits: &[LimitPlan<'_>]) -> bool {
    let Some(name) = name else { return false };
    limits.iter().filter_map(LimitPlan::rule).any(|other| other.replaces.contains(name))
}

impl<'c> CheckPlan<'c> {
    /// Adds the plan of one limit of a rule, and its charge.
    // The charge is pushed whole and only the key is written in place: a value that was built field
    // by field is slow to move.
    fn charge_rule(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        (rule, limit, shared_values): (&'c Rule, &'c Limit, &[(usize, Cow<'_, str>)]),
        planning: PlanSettings,
        now: Nanos,
    ) {
        let entries = || counter_entries(descriptor, shared_values);
        // envoyproxy/ratelimit has counter names only for the seven units. It has no lists, and no
        // limits that charge excess hits in every charge mode.
        let key_naming = match limit.window {
            LimitWindow::Unit(_)
                if limit.name.is_none() && !limit.strategy.on_excess().is_charge() =>
            {
                planning.keys
            }
            LimitWindow::Unit(_) | LimitWindow::Per(_) | LimitWindow::Calendar(..) => {
                KeyNaming::Unique
            }
        };
        let placement = placement_of(domain, entries());
        let (key, standing) = (CounterKey::EMPTY, enforcement_of(rule));
        let (strategy, cost) = (limit.strategy_at(now), descriptor.cost);
        let per_second = limit.window.length() == Nanos::SECOND;
        self.charges.list.push(Charge { key, placement, strategy, cost, standing, per_second });
        if let Some(charge) = self.charges.list.last_mut() {
            let counting = (limit.counting(), limit.name.as_deref());
            write_key(&mut charge.key, domain, (descriptor, shared_values), counting, key_naming);
        }
        self.limits.push(LimitPlan::Charged(rule, limit));
    }

    /// Adds the plan of a limit from the request, and its charge.
    fn charge_override(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        shared_values: &[(usize, Cow<'_, str>)],
        (limit, fallback, name): (LimitOverride, FallbackMode, Option<&str>),
        planning: PlanSettings,
    ) {
        let period = limit.unit.length();
        // Cannot fail, because all seven units are valid periods.
        let Ok(window) = FixedWindow::new(limit.requests, Windows::Every(period)) else {
            return self.limits.push(LimitPlan::NoRule);
        };
        let entries = || counter_entries(descriptor, shared_values);
        let mut key = CounterKey::EMPTY;
        let counting = (KeyStrategy::FixedWindow(period), name);
        write_key(&mut key, domain, (descriptor, shared_values), counting, planning.keys);
        let (placement, cost) = (placement_of(domain, entries()), descriptor.cost);
        let (strategy, standing) = (Strategy::FixedWindow(window), Enforcement::default());
        let per_second = period == Nanos::SECOND;
        self.charges.list.push(Charge { key, placement, strategy, cost, standing, per_second });
        self.limits.push(LimitPlan::Override(limit, fallback));
    }

    /// Returns the vote of each limit. Limits with a charge vote `charged_verdict`, or not at all if
    /// it is `None`.
    fn votes(
        &self,
        charged_verdict: Option<Verdict>,
    ) -> impl Iterator<Item = (VoteGroup, Verdict)> + use<'_, 'c> {
        let mut charges = self.charges.list.iter();
        self.limits.iter().filter_map(move |descriptor| match descriptor {
            LimitPlan::NoRule | LimitPlan::Replaced => Some((VoteGroup::Enforced, Verdict::Allow)),
            LimitPlan::Unlimited(_) => Some((VoteGroup::Unlimited, Verdict::Allow)),
            LimitPlan::Forced(rule, _, verdict) => {
                let standing = enforcement_of(rule);
                Some((standing.group, standing.enforced_verdict(*verdict == Verdict::Deny)))
            }
            LimitPlan::Charged(..) | LimitPlan::Override(..) => {
                let group = charges.next()?.standing.group;
                charged_verdict.map(|verdict| (group, verdict))
            }
        })
    }

    /// Returns `true` if forced decisions alone deny the check.
    pub(crate) fn has_forced_denial(&self, quota_for_all: bool) -> bool {
        combine(self.votes(Some(Verdict::Allow)), quota_for_all) == Verdict::Deny
    }

    fn charge_mode(&self, policy: ChargePolicy, quota_for_all: bool) -> ChargeRule {
        let is_quota_allow = |(group, verdict)| {
            let in_quota =
                group == VoteGroup::Quota || quota_for_all && group == VoteGroup::Enforced;
            in_quota && verdict == Verdict::Allow
        };
        match policy {
            ChargePolicy::Each => ChargeRule::Each,
            // One store call instead of two.
            ChargePolicy::AllOrNothing if excess::charges_all(&self.charges.list) => {
                ChargeRule::Each
            }
            // The check is denied, so no counter is charged.
            ChargePolicy::AllOrNothing if self.has_forced_denial(quota_for_all) => {
                ChargeRule::Preview
            }
            ChargePolicy::AllOrNothing => ChargeRule::AllOrNothing {
                quota_for_all,
                quota_cannot_deny: self.votes(None).any(is_quota_allow),
            },
        }
    }
}

/// Returns the verdict that an operator forces on a descriptor of `rule`, and the limits that apply to it. An action on
/// the key takes precedence over one on the rule.
#[inline]
fn actions_at<'c>(
    rule: &'c Rule,
    descriptor: &Descriptor<'_>,
    shared_values: &[(usize, Cow<'_, str>)],
    now: Nanos,
) -> (Option<Verdict>, &'c RuleLimits) {
    let forced_rule = rule.forced_verdict_at(now);
    if rule.key_actions.is_empty() {
        return (forced_rule, &rule.limits);
    }
    let key = rule.key_actions_for(&counter_entries(descriptor, shared_values));
    let forced_key = key.and_then(|key| key.forced_verdict_at(now));
    let boosted = key.and_then(|key| key.boosted_limits_at(now));
    (forced_key.or(forced_rule), boosted.unwrap_or(&rule.limits))
}

/// Returns the entries of `descriptor` for its counter key. A value that shares its counter with
/// other values, or that is long, is replaced by the text in `shared_values`, a list of entry index
/// and text.
fn counter_entries<'a>(
    descriptor: &'a Descriptor<'_>,
    shared_values: &'a [(usize, Cow<'_, str>)],
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    tree::counter_entries(descriptor.entries.iter().copied(), shared_values)
}

/// Returns the placement of a counter in Redis Cluster. All counters of an all-or-nothing domain
/// without `colocate` are on one node, so that one script charges them atomically.
#[inline]
fn placement_of<'a>(
    domain: &Domain,
    mut entries: impl Iterator<Item = (&'a str, &'a str)>,
) -> Placement {
    let Some(colocate_key) = &domain.colocate else {
        return match domain.charge {
            ChargePolicy::Each => Placement::ByKey,
            ChargePolicy::AllOrNothing => Placement::by_domain(&domain.name),
        };
    };
    let entry = entries.find(|(name, _)| *name == &**colocate_key);
    entry.map_or(Placement::ByKey, |(_, value)| Placement::by_value(&domain.name, value))
}

#[inline]
fn write_key<'a>(
    key: &mut CounterKey,
    domain: &Domain,
    (descriptor, shared_values): (&'a Descriptor<'_>, &'a [(usize, Cow<'_, str>)]),
    (strategy, name_in_list): (KeyStrategy, Option<&'a str>),
    key_naming: KeyNaming,
) {
    let entries = counter_entries(descriptor, shared_values);
    match (name_in_list, key_naming, strategy) {
        (Some(name), ..) => key.write_of_list(&domain.name, entries, strategy, name),
        (None, KeyNaming::Envoyproxy, KeyStrategy::FixedWindow(_)) => {
            // envoyproxy/ratelimit writes long values in full.
            let is_pattern = |(_, text): &&(usize, Cow<'_, str>)| matches!(text, Cow::Borrowed(_));
            let patterns: SharedValues<'_> =
                shared_values.iter().filter(is_pattern).cloned().collect();
            let entries = counter_entries(descriptor, &patterns);
            key.write_compatible(&domain.name, entries, strategy);
        }
        (None, ..) => key.write_unique(&domain.name, entries, strategy),
    }
}
