//! Plans a check: finds the limit, the counter key and the charge of each descriptor.
//!
//! Guarantees:
//! - Pure: a plan depends only on configuration, settings, check and instants.
//! - Replaced and unlimited rules are not charged.
//!
//! Not covered:
//! - Store calls (see [`super::path`]) and the overall verdict (see [`super::decision`]).

use smallvec::SmallVec;

use crate::config::tree::SharedValues;
use crate::config::{
    ChargePolicy, Config, Domain, FallbackMode, Limit, LimitMode, LimitWindow, Rule,
};
use crate::engine::decide::rule_stats::ChargeStats;
use crate::kernel::decision::{
    AppliedLimit, Check, Cost, Descriptor, Enforcement, LimitOverride, Verdict, VoteGroup, combine,
};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::units::Nanos;
use crate::store::{Charge, ChargeMode as ChargeRule, Charges, Placement};

/// The settings of a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanSettings {
    /// The key names of counters.
    pub keys: KeyNaming,
    /// The effect of a limit carried in a request.
    pub overrides: OverridePolicy,
    /// `true`: every limit is in the quota group.
    pub quota_for_all: bool,
}

/// The key names of counters (setting `compat.store.key_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyNaming {
    /// Distinct descriptors have distinct counters.
    #[default]
    Unique,
    /// Fixed windows of the seven units have the key names of envoyproxy/ratelimit,
    /// including its collisions. All other counters are named as with `Unique`.
    Envoyproxy,
}

/// The effect of a limit carried in a request (setting `overrides`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverridePolicy {
    /// The override replaces the configured limit.
    #[default]
    Allow,
    /// The override is ignored.
    Deny,
    /// The smaller of the two limits applies, if the override and the configured limit are fixed
    /// windows of the same unit. If no rule matches the descriptor, the override applies. Otherwise
    /// the configured limit applies.
    Max,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct CheckPlan<'c> {
    /// One plan for each descriptor of the check.
    pub(in crate::engine) descriptors: SmallVec<[DescriptorPlan<'c>; 2]>,
    pub(in crate::engine) charges: Charges,
    /// The statistics of each charge; empty if statistics are off.
    pub(in crate::engine) stats: SmallVec<[ChargeStats; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct PlanInstants {
    /// The instant that selects forced decisions, on this process's clock. A second plan of a check
    /// uses the same instant. Otherwise it could have other charges, and the store's outcomes would
    /// be assigned to the wrong ones.
    pub(in crate::engine) forced_at: Nanos,
    /// The instant that selects calendar windows; in a second plan, the store's time.
    pub(in crate::engine) windows_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum DescriptorPlan<'c> {
    /// No rule matches.
    NoRule,
    /// The rule has no limit.
    Unlimited(&'c Rule),
    /// Another rule of the check replaces the matching rule.
    Replaced,
    /// An operator forced this verdict for the rule.
    Forced(&'c Rule, &'c Limit, Verdict),
    /// The plan's next charge belongs to this descriptor; it counts under the limit of the rule.
    Charged(&'c Rule, &'c Limit),
    /// The plan's next charge belongs to this descriptor; it counts under a limit from the request.
    /// The fallback applies if the store does not reply.
    Override(LimitOverride, FallbackMode),
}

impl<'c> DescriptorPlan<'c> {
    /// Returns the limit in the form in which decisions report it.
    pub(in crate::engine) fn applied_limit(&self) -> Option<AppliedLimit> {
        match self {
            Self::NoRule | Self::Unlimited(_) | Self::Replaced => None,
            Self::Charged(rule, limit) | Self::Forced(rule, limit, _) => Some(AppliedLimit {
                requests: limit.requests,
                unit: limit.window.unit(),
                period: limit.window.length(),
                name: rule.name.clone(),
            }),
            Self::Override(LimitOverride { requests, unit }, _) => Some(AppliedLimit {
                requests: *requests,
                unit: Some(*unit),
                period: unit.length(),
                name: None,
            }),
        }
    }

    pub(in crate::engine) fn fallback(&self) -> Option<FallbackMode> {
        match self {
            Self::NoRule | Self::Unlimited(_) | Self::Replaced | Self::Forced(..) => None,
            Self::Charged(_, limit) => Some(limit.on_backend_failure),
            Self::Override(_, rule) => Some(*rule),
        }
    }

    pub(in crate::engine) fn mode(&self) -> LimitMode {
        match self {
            Self::Charged(_, limit) => limit.mode,
            Self::NoRule
            | Self::Unlimited(_)
            | Self::Replaced
            | Self::Forced(..)
            | Self::Override(..) => LimitMode::Strict,
        }
    }

    fn lease_terms(&self) -> Option<&'c LeaseTerms> {
        match self {
            Self::Charged(_, Limit { mode: LimitMode::Leased(terms), .. }) => Some(terms),
            _ => None,
        }
    }

    /// Returns the matching rule, unless it is replaced or overridden.
    pub(in crate::engine) const fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Unlimited(rule) | Self::Charged(rule, _) | Self::Forced(rule, ..) => Some(rule),
            Self::NoRule | Self::Replaced | Self::Override(..) => None,
        }
    }
}

impl<'c> CheckPlan<'c> {
    /// Returns the lease settings of each charge; `None` if its limit is not leased. A counter with
    /// a key of envoyproxy/ratelimit is never leased.
    #[inline]
    pub(in crate::engine) fn lease_terms(&self) -> impl Iterator<Item = Option<&'c LeaseTerms>> {
        let charged = self.descriptors.iter().filter(|part| part.is_charged());
        let charged = charged.zip(&self.charges.list);
        charged.map(|(part, charge)| {
            part.lease_terms().filter(|_| charge.key.compatible_bytes().is_none())
        })
    }

    /// Plans a check for the instant `now`. Fills the plan in place, because moving a plan costs
    /// more than making it.
    pub(in crate::engine) fn fill(
        &mut self,
        config: &'c Config,
        question: &Check<'_>,
        planning: PlanSettings,
        now: Nanos,
    ) {
        self.fill_at(config, question, planning, PlanInstants { forced_at: now, windows_at: now });
    }

    pub(in crate::engine) fn fill_at(
        &mut self,
        config: &'c Config,
        question: &Check<'_>,
        planning: PlanSettings,
        at: PlanInstants,
    ) {
        let Some(domain) = config.domains.get(question.domain) else {
            return self
                .descriptors
                .extend(question.descriptors.iter().map(|_| DescriptorPlan::NoRule));
        };
        for descriptor in &question.descriptors {
            self.plan_descriptor(domain, descriptor, planning, at);
        }
        self.remove_replaced();
        self.charges.mode = self.charge_mode(domain.charge, planning.quota_for_all);
    }

    fn plan_descriptor(
        &mut self,
        domain: &'c Domain,
        descriptor: &Descriptor<'_>,
        planning: PlanSettings,
        at: PlanInstants,
    ) {
        let requested = match (descriptor.limit, planning.overrides) {
            (None, _) | (Some(_), OverridePolicy::Deny) => None,
            (ours, OverridePolicy::Allow | OverridePolicy::Max) => ours,
        };
        let mut shared_values = SharedValues::new();
        let found = domain.tree.find_rule(descriptor.entries.iter().copied(), &mut shared_values);
        let configured = found.and_then(|rule| rule.limit.as_ref());
        let fallback = configured.map_or(domain.on_backend_failure, |it| it.on_backend_failure);
        match (found, requested) {
            (found, Some(limit))
                if planning.overrides == OverridePolicy::Allow || found.is_none() =>
            {
                self.charge_override(domain, descriptor, &[], (limit, fallback), planning);
            }
            (None, _) => self.descriptors.push(DescriptorPlan::NoRule),
            (Some(rule), ours) => match &rule.limit {
                None => self.descriptors.push(DescriptorPlan::Unlimited(rule)),
                Some(limit) => {
                    // A refund is made despite a forced decision:
                    // it changes the counter, not the verdict.
                    if let (Some(verdict), Cost::Charge(_)) =
                        (rule.forced_verdict_at(at.forced_at), descriptor.cost)
                    {
                        return self.descriptors.push(DescriptorPlan::Forced(rule, limit, verdict));
                    }
                    if let Some(tighter) = ours.filter(|ours| is_tighter(*ours, limit)) {
                        let limit_and_fallback = (tighter, fallback);
                        return self.charge_override(
                            domain,
                            descriptor,
                            &shared_values,
                            limit_and_fallback,
                            planning,
                        );
                    }
                    let matched = (rule, limit, &*shared_values);
                    self.charge_rule(domain, descriptor, matched, planning, at.windows_at);
                }
            },
        }
    }

    /// Removes the charges under rules that other rules of the check replace (field `replaces`).
    fn remove_replaced(&mut self) {
        let has_replacements =
            |part: &DescriptorPlan<'_>| part.rule().is_some_and(|rule| !rule.replaces.is_empty());
        if !self.descriptors.iter().any(has_replacements) {
            return;
        }
        let is_dropped = |part: &DescriptorPlan<'_>| match part {
            DescriptorPlan::Charged(rule, _) | DescriptorPlan::Forced(rule, ..) => {
                is_replaced(rule, &self.descriptors)
            }
            _ => false,
        };
        let replaced: SmallVec<[bool; 2]> = self.descriptors.iter().map(is_dropped).collect();
        let charged = self.descriptors.iter().zip(&replaced).filter(|(part, _)| part.is_charged());
        let mut next_replaced = charged.map(|(_, spared)| *spared);
        self.charges.list.retain(|_| !next_replaced.next().unwrap_or(false));
        for (part, _) in self.descriptors.iter_mut().zip(replaced).filter(|(_, spared)| *spared) {
            *part = DescriptorPlan::Replaced;
        }
    }
}

impl DescriptorPlan<'_> {
    pub(in crate::engine) const fn is_charged(&self) -> bool {
        matches!(self, Self::Charged(..) | Self::Override(..))
    }
}

fn is_tighter(limit: LimitOverride, configured: &Limit) -> bool {
    configured.window == LimitWindow::Unit(limit.unit)
        && matches!(configured.strategy, Strategy::FixedWindow(_))
        && limit.requests < configured.requests
}

fn is_replaced(rule: &Rule, parts: &[DescriptorPlan<'_>]) -> bool {
    let Some(name) = &rule.name else { return false };
    parts.iter().filter_map(DescriptorPlan::rule).any(|other| other.replaces.contains(name))
}

impl<'c> CheckPlan<'c> {
    /// Adds a descriptor's plan and its charge under the limit of a rule.
    // The charge is pushed in one piece, and only the key is written in
    // place: a value that was written piece by piece is slow to move.
    fn charge_rule(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        (rule, limit, shared_values): (&'c Rule, &'c Limit, &[(usize, &str)]),
        planning: PlanSettings,
        now: Nanos,
    ) {
        let entries = || counter_entries(descriptor, shared_values);
        // envoyproxy/ratelimit has only the seven units.
        let keys = match limit.window {
            LimitWindow::Unit(_) => planning.keys,
            LimitWindow::Per(_) | LimitWindow::Calendar(..) => KeyNaming::Unique,
        };
        let placement = placement_of(domain, entries());
        let (key, standing) = (CounterKey::EMPTY, enforcement_of(rule));
        let (strategy, cost) = (limit.strategy_at(now), descriptor.cost);
        let per_second = limit.window.length() == Nanos::SECOND;
        self.charges.list.push(Charge { key, placement, strategy, cost, standing, per_second });
        if let Some(charge) = self.charges.list.last_mut() {
            write_key(&mut charge.key, domain, entries(), limit.counting(), keys);
        }
        self.descriptors.push(DescriptorPlan::Charged(rule, limit));
    }

    /// Adds a descriptor's plan and its charge under a limit from the request.
    fn charge_override(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        shared: &[(usize, &str)],
        (limit, fallback): (LimitOverride, FallbackMode),
        planning: PlanSettings,
    ) {
        let period = limit.unit.length();
        // All seven units are valid periods, so this cannot fail. An invalid period would mean no
        // limit.
        let Ok(window) = FixedWindow::new(limit.requests, Windows::Every(period)) else {
            return self.descriptors.push(DescriptorPlan::NoRule);
        };
        let entries = || counter_entries(descriptor, shared);
        let mut key = CounterKey::EMPTY;
        write_key(&mut key, domain, entries(), KeyStrategy::FixedWindow(period), planning.keys);
        let (placement, cost) = (placement_of(domain, entries()), descriptor.cost);
        let (strategy, standing) = (Strategy::FixedWindow(window), Enforcement::default());
        let per_second = period == Nanos::SECOND;
        self.charges.list.push(Charge { key, placement, strategy, cost, standing, per_second });
        self.descriptors.push(DescriptorPlan::Override(limit, fallback));
    }

    /// Returns the group and the verdict of each descriptor. `charged` is the verdict of all
    /// descriptors with a charge; they are omitted if it is `None`.
    fn votes(
        &self,
        charged: Option<Verdict>,
    ) -> impl Iterator<Item = (VoteGroup, Verdict)> + use<'_, 'c> {
        let mut list = self.charges.list.iter();
        self.descriptors.iter().filter_map(move |part| match part {
            DescriptorPlan::NoRule | DescriptorPlan::Replaced => {
                Some((VoteGroup::Enforced, Verdict::Allow))
            }
            DescriptorPlan::Unlimited(_) => Some((VoteGroup::Unlimited, Verdict::Allow)),
            DescriptorPlan::Forced(rule, _, verdict) => {
                let standing = enforcement_of(rule);
                Some((standing.group, standing.enforced_verdict(*verdict == Verdict::Deny)))
            }
            DescriptorPlan::Charged(..) | DescriptorPlan::Override(..) => {
                let group = list.next()?.standing.group;
                charged.map(|verdict| (group, verdict))
            }
        })
    }

    /// Returns `true` if forced decisions deny the check, for any state of the counters.
    pub(in crate::engine) fn has_forced_denial(&self, quota_for_all: bool) -> bool {
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

/// Returns the entries of `descriptor` for its counter key. A pattern of the rule replaces each
/// value that shares its counter with other values.
fn counter_entries<'a>(
    descriptor: &'a Descriptor<'_>,
    shared: &'a [(usize, &str)],
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    descriptor.entries.iter().enumerate().map(|(position, &(key, value))| {
        let pattern = shared.iter().find(|(at, _)| *at == position);
        (key, pattern.map_or(value, |(_, pattern)| *pattern))
    })
}

pub(in crate::engine) const fn enforcement_of(rule: &Rule) -> Enforcement {
    let group = if rule.quota { VoteGroup::Quota } else { VoteGroup::Enforced };
    Enforcement { group, shadow: rule.shadow }
}

/// Returns the placement of a counter in Redis Cluster. As in the counter key, patterns replace
/// shared values. All counters of an all-or-nothing domain without `colocate` are on one node, so
/// that one script charges them atomically.
#[inline]
fn placement_of<'a>(
    domain: &Domain,
    mut entries: impl Iterator<Item = (&'a str, &'a str)>,
) -> Placement {
    let Some(key) = &domain.colocate else {
        return match domain.charge {
            ChargePolicy::Each => Placement::ByKey,
            ChargePolicy::AllOrNothing => Placement::by_domain(&domain.name),
        };
    };
    let entry = entries.find(|(name, _)| *name == &**key);
    entry.map_or(Placement::ByKey, |(_, value)| Placement::by_value(&domain.name, value))
}

#[inline]
fn write_key<'a>(
    key: &mut CounterKey,
    domain: &Domain,
    entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    strategy: KeyStrategy,
    keys: KeyNaming,
) {
    match (keys, strategy) {
        (KeyNaming::Envoyproxy, KeyStrategy::FixedWindow(_)) => {
            key.write_compatible(&domain.name, entries, strategy);
        }
        _ => key.write_unique(&domain.name, entries, strategy),
    }
}
