//! Plans a check: finds the limit, the counter key and the charge of each descriptor.
//!
//! Guarantees:
//! - Pure: a plan depends only on configuration, settings, check and instants.
//! - Replaced and unlimited rules are not charged.
//!
//! Not covered:
//! - Store calls (see [`super::path`]) and the overall verdict (see [`super::decision`]).

use smallvec::SmallVec;

use super::tally::Counted;
use crate::backend::{Charge, Charges, Home, Rule as ChargeRule};
use crate::config::tree::Shared;
use crate::config::{Charging, Config, Domain, Limit, Mode, OnBackendFailure, Rule, Window};
use crate::kernel::decision::{
    Cost, Descriptor, Group, Override, Question, Shown, Standing, Verdict, combine,
};
use crate::kernel::key::{CounterKey, Counting};
use crate::kernel::lease::Terms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::units::Nanos;

/// The settings of a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planning {
    /// The naming of counters.
    pub keys: CounterKeys,
    /// The effect of a limit carried in a request.
    pub overrides: Overrides,
    /// `true`: every limit is in the quota group.
    pub quota_for_all: bool,
}

/// The naming of counters (setting `counter_keys`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterKeys {
    /// Distinct descriptors have distinct counters.
    #[default]
    Injective,
    /// Fixed windows of the seven units have the key names of envoyproxy/ratelimit,
    /// including its collisions. All other counters are named as with `Injective`.
    Envoyproxy,
}

/// The effect of a limit carried in a request (setting `overrides`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrides {
    /// It replaces the configured limit.
    #[default]
    Allow,
    /// It is ignored.
    Deny,
    /// It can only tighten. Between two fixed windows of the same unit,
    /// the smaller limit applies. A descriptor without a matching rule
    /// gets the override. Otherwise the configured limit applies.
    Max,
}

#[derive(Debug, Default)]
pub(super) struct Plan<'c> {
    /// One part for each descriptor.
    pub(super) parts: SmallVec<[Part<'c>; 2]>,
    pub(super) charges: Charges,
    /// The statistics of each charge; empty if statistics are off.
    pub(super) tally: SmallVec<[Counted; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instants {
    /// The instant for forced decisions, on this process's clock. A second
    /// plan of a check uses the same instant. Otherwise it could have
    /// other charges, and outcomes would be assigned to the wrong ones.
    pub(super) held: Nanos,
    /// The instant for calendar windows.
    pub(super) windows: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'c> {
    /// No rule matches.
    Nothing,
    /// The rule has no limit.
    Unlimited(&'c Rule),
    /// Another rule of the check replaces the matching rule.
    Replaced,
    /// An operator forced this verdict for the rule.
    Frozen(&'c Rule, &'c Limit, Verdict),
    /// The next charge of the plan counts under the rule's limit.
    Charged(&'c Rule, &'c Limit),
    /// The next charge of the plan counts under a limit from the
    /// request. The fallback applies if the store does not reply.
    Override(Override, OnBackendFailure),
}

impl<'c> Part<'c> {
    /// Returns the limit as decisions report it.
    pub(super) fn shown(&self) -> Option<Shown> {
        match self {
            Self::Nothing | Self::Unlimited(_) | Self::Replaced => None,
            Self::Charged(rule, limit) | Self::Frozen(rule, limit, _) => Some(Shown {
                requests: limit.requests,
                unit: limit.window.unit(),
                period: limit.window.length(),
                name: rule.name.clone(),
            }),
            Self::Override(Override { requests, unit }, _) => Some(Shown {
                requests: *requests,
                unit: Some(*unit),
                period: unit.length(),
                name: None,
            }),
        }
    }

    pub(super) fn on_failure(&self) -> Option<OnBackendFailure> {
        match self {
            Self::Nothing | Self::Unlimited(_) | Self::Replaced | Self::Frozen(..) => None,
            Self::Charged(_, limit) => Some(limit.on_backend_failure),
            Self::Override(_, rule) => Some(*rule),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Charged(_, limit) => limit.mode,
            Self::Nothing
            | Self::Unlimited(_)
            | Self::Replaced
            | Self::Frozen(..)
            | Self::Override(..) => Mode::Strict,
        }
    }

    fn terms(&self) -> Option<&'c Terms> {
        match self {
            Self::Charged(_, Limit { mode: Mode::Leased(terms), .. }) => Some(terms),
            _ => None,
        }
    }

    /// Returns the matching rule, unless it is replaced or overridden.
    pub(super) const fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Unlimited(rule) | Self::Charged(rule, _) | Self::Frozen(rule, ..) => Some(rule),
            Self::Nothing | Self::Replaced | Self::Override(..) => None,
        }
    }
}

impl<'c> Plan<'c> {
    /// Returns the lease settings of each charge; `None` if it is not
    /// leased. A counter with a key of envoyproxy/ratelimit is never leased.
    #[inline]
    pub(super) fn terms(&self) -> impl Iterator<Item = Option<&'c Terms>> {
        let charged = self.parts.iter().filter(|part| part.is_charged());
        let charged = charged.zip(&self.charges.list);
        charged.map(|(part, charge)| part.terms().filter(|_| charge.key.spelling().is_none()))
    }

    /// Plans `question` for the instant `now`. Fills the plan in
    /// place, because moving a plan costs more than making it.
    pub(super) fn fill(
        &mut self,
        config: &'c Config,
        question: &Question<'_>,
        planning: Planning,
        now: Nanos,
    ) {
        self.fill_at(config, question, planning, Instants { held: now, windows: now });
    }

    pub(super) fn fill_at(
        &mut self,
        config: &'c Config,
        question: &Question<'_>,
        planning: Planning,
        at: Instants,
    ) {
        let Some(domain) = config.domains.get(question.domain) else {
            return self.parts.extend(question.descriptors.iter().map(|_| Part::Nothing));
        };
        for descriptor in &question.descriptors {
            self.plan(domain, descriptor, planning, at);
        }
        self.spare_replaced();
        self.charges.rule = self.rule(domain.charge, planning.quota_for_all);
    }

    fn plan(
        &mut self,
        domain: &'c Domain,
        descriptor: &Descriptor<'_>,
        planning: Planning,
        at: Instants,
    ) {
        let ours = match (descriptor.limit, planning.overrides) {
            (None, _) | (Some(_), Overrides::Deny) => None,
            (ours, Overrides::Allow | Overrides::Max) => ours,
        };
        let mut shared = Shared::new();
        let found = domain.tree.find_rule(descriptor.entries.iter().copied(), &mut shared);
        let configured = found.and_then(|rule| rule.limit.as_ref());
        let failing = configured.map_or(domain.on_backend_failure, |it| it.on_backend_failure);
        match (found, ours) {
            (found, Some(limit)) if planning.overrides == Overrides::Allow || found.is_none() => {
                self.charge_override(domain, descriptor, &[], (limit, failing), planning);
            }
            (None, _) => self.parts.push(Part::Nothing),
            (Some(rule), ours) => match &rule.limit {
                None => self.parts.push(Part::Unlimited(rule)),
                Some(limit) => {
                    // A refund is made despite a forced decision:
                    // it changes the counter, not the verdict.
                    if let (Some(verdict), Cost::Charge(_)) =
                        (rule.frozen_at(at.held), descriptor.cost)
                    {
                        return self.parts.push(Part::Frozen(rule, limit, verdict));
                    }
                    if let Some(tighter) = ours.filter(|ours| tightens(*ours, limit)) {
                        let tighter = (tighter, failing);
                        return self
                            .charge_override(domain, descriptor, &shared, tighter, planning);
                    }
                    let matched = (rule, limit, &*shared);
                    self.charge_rule(domain, descriptor, matched, planning, at.windows);
                }
            },
        }
    }

    /// Removes the charges of rules that other rules of the check replace.
    fn spare_replaced(&mut self) {
        let replaces = |part: &Part<'_>| part.rule().is_some_and(|rule| !rule.replaces.is_empty());
        if !self.parts.iter().any(replaces) {
            return;
        }
        let is_replaced = |part: &Part<'_>| match part {
            Part::Charged(rule, _) | Part::Frozen(rule, ..) => is_replaced(rule, &self.parts),
            _ => false,
        };
        let spared: SmallVec<[bool; 2]> = self.parts.iter().map(is_replaced).collect();
        let charged = self.parts.iter().zip(&spared).filter(|(part, _)| part.is_charged());
        let mut spare = charged.map(|(_, spared)| *spared);
        self.charges.list.retain(|_| !spare.next().unwrap_or(false));
        for (part, _) in self.parts.iter_mut().zip(spared).filter(|(_, spared)| *spared) {
            *part = Part::Replaced;
        }
    }
}

impl Part<'_> {
    pub(super) const fn is_charged(&self) -> bool {
        matches!(self, Self::Charged(..) | Self::Override(..))
    }
}

fn tightens(limit: Override, configured: &Limit) -> bool {
    configured.window == Window::Unit(limit.unit)
        && matches!(configured.strategy, Strategy::FixedWindow(_))
        && limit.requests < configured.requests
}

fn is_replaced(rule: &Rule, parts: &[Part<'_>]) -> bool {
    let Some(name) = &rule.name else { return false };
    parts.iter().filter_map(Part::rule).any(|other| other.replaces.contains(name))
}

impl<'c> Plan<'c> {
    /// Adds the part and the charge of a limit that is configured.
    // The charge is pushed in one piece, and only the key is written in
    // place: a value that was written piece by piece is slow to move.
    fn charge_rule(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        (rule, limit, shared): (&'c Rule, &'c Limit, &[(usize, &str)]),
        planning: Planning,
        now: Nanos,
    ) {
        let entries = || counted_under(descriptor, shared);
        // envoyproxy/ratelimit has only the seven units.
        let keys = match limit.window {
            Window::Unit(_) => planning.keys,
            Window::Per(_) | Window::Calendar(..) => CounterKeys::Injective,
        };
        let home = home(domain, entries());
        let (key, standing) = (CounterKey::EMPTY, standing(rule));
        let (strategy, cost) = (limit.strategy_at(now), descriptor.cost);
        let per_second = limit.window.length() == Nanos::SECOND;
        self.charges.list.push(Charge { key, home, strategy, cost, standing, per_second });
        if let Some(charge) = self.charges.list.last_mut() {
            write_name(&mut charge.key, domain, entries(), limit.counting(), keys);
        }
        self.parts.push(Part::Charged(rule, limit));
    }

    /// Adds the part and the charge of a limit from the request.
    fn charge_override(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        shared: &[(usize, &str)],
        (limit, failing): (Override, OnBackendFailure),
        planning: Planning,
    ) {
        let period = limit.unit.length();
        // All seven units are valid periods. An invalid one would mean no limit.
        let Ok(window) = FixedWindow::new(limit.requests, Windows::Every(period)) else {
            return self.parts.push(Part::Nothing);
        };
        let entries = || counted_under(descriptor, shared);
        let mut key = CounterKey::EMPTY;
        write_name(&mut key, domain, entries(), Counting::FixedWindow(period), planning.keys);
        let (home, cost) = (home(domain, entries()), descriptor.cost);
        let (strategy, standing) = (Strategy::FixedWindow(window), Standing::default());
        let per_second = period == Nanos::SECOND;
        self.charges.list.push(Charge { key, home, strategy, cost, standing, per_second });
        self.parts.push(Part::Override(limit, failing));
    }

    /// Returns the vote of each descriptor. Descriptors with a
    /// charge vote `charged`, or not at all if it is `None`.
    fn votes(
        &self,
        charged: Option<Verdict>,
    ) -> impl Iterator<Item = (Group, Verdict)> + use<'_, 'c> {
        let mut list = self.charges.list.iter();
        self.parts.iter().filter_map(move |part| match part {
            Part::Nothing | Part::Replaced => Some((Group::Enforced, Verdict::Admit)),
            Part::Unlimited(_) => Some((Group::Aside, Verdict::Admit)),
            Part::Frozen(rule, _, verdict) => {
                let standing = standing(rule);
                Some((standing.group, standing.verdict(*verdict == Verdict::Deny)))
            }
            Part::Charged(..) | Part::Override(..) => {
                let group = list.next()?.standing.group;
                charged.map(|verdict| (group, verdict))
            }
        })
    }

    /// Returns `true` if forced decisions deny the check, for any state of the counters.
    pub(super) fn is_denied(&self, quota_for_all: bool) -> bool {
        combine(self.votes(Some(Verdict::Admit)), quota_for_all) == Verdict::Deny
    }

    fn rule(&self, charging: Charging, quota_for_all: bool) -> ChargeRule {
        let passes = |(group, verdict)| {
            let in_quota = group == Group::Quota || quota_for_all && group == Group::Enforced;
            in_quota && verdict == Verdict::Admit
        };
        match charging {
            Charging::Each => ChargeRule::Each,
            // The check is denied, so no counter is charged.
            Charging::AllOrNothing if self.is_denied(quota_for_all) => ChargeRule::Ask,
            Charging::AllOrNothing => {
                ChargeRule::AllOrNothing { quota_for_all, rescued: self.votes(None).any(passes) }
            }
        }
    }
}

/// Returns the entries that name the counter of `descriptor`. A
/// pattern replaces a value that shares its counter with other values.
fn counted_under<'a>(
    descriptor: &'a Descriptor<'_>,
    shared: &'a [(usize, &str)],
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    descriptor.entries.iter().enumerate().map(|(position, &(key, value))| {
        let pattern = shared.iter().find(|(at, _)| *at == position);
        (key, pattern.map_or(value, |(_, pattern)| *pattern))
    })
}

pub(super) const fn standing(rule: &Rule) -> Standing {
    let group = if rule.quota { Group::Quota } else { Group::Enforced };
    Standing { group, shadow: rule.shadow }
}

/// Returns the place of a counter in a store of several nodes. As in its key, patterns replace
/// shared values. An all-or-nothing domain without `colocate` is on one node, for one atomic step.
#[inline]
fn home<'a>(domain: &Domain, mut entries: impl Iterator<Item = (&'a str, &'a str)>) -> Home {
    let Some(key) = &domain.colocate else {
        return match domain.charge {
            Charging::Each => Home::Itself,
            Charging::AllOrNothing => Home::of_all(&domain.name),
        };
    };
    let entry = entries.find(|(name, _)| *name == &**key);
    entry.map_or(Home::Itself, |(_, value)| Home::beside(&domain.name, value))
}

#[inline]
fn write_name<'a>(
    key: &mut CounterKey,
    domain: &Domain,
    entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    counting: Counting,
    keys: CounterKeys,
) {
    match (keys, counting) {
        (CounterKeys::Envoyproxy, Counting::FixedWindow(_)) => {
            key.write_joined(&domain.name, entries, counting);
        }
        _ => key.write_injective(&domain.name, entries, counting),
    }
}
