//! From a question to what is to be charged: per descriptor its limit, its key and its standing.
//!
//! Guarantees: pure; the plan of a question depends on the configuration, the question and the
//! instant alone; a replaced rule is not charged, an unlimited one never is.
//! Leaves out: asking the backend and combining verdicts (`decide`).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Charge, Charges, Home, Rule as ChargeRule};
use crate::config::tree::Match;
use crate::config::{Charging, Config, Domain, Limit, Mode, OnBackendFailure, Rule, Window};
use crate::kernel::decision::{Descriptor, Group, Override, Question, Reason, Shown, Standing};
use crate::kernel::key::{CounterKey, Counting};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::units::Nanos;

/// How the plan is made, from the settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planning {
    /// How counters are named.
    pub keys: CounterKeys,
    /// What a limit carried in a request may do.
    pub overrides: Overrides,
    /// Every limit is in the quota group.
    pub quota_for_all: bool,
}

/// How counters are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterKeys {
    /// Distinct descriptors have distinct counters.
    #[default]
    Injective,
    /// Fixed windows of the seven units are named as the reference names them, with its collisions.
    Envoyproxy,
}

/// What a limit carried in a request may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrides {
    /// It takes the place of whatever is configured.
    #[default]
    Allow,
    /// It is ignored.
    Deny,
    /// It only tightens: of two fixed windows of one unit the smaller rules; a descriptor that
    /// matches no rule takes it; anything else keeps what is configured.
    Max,
}

/// What is to be done for a question.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// One per descriptor.
    pub(super) parts: SmallVec<[Part; 2]>,
    /// What goes to the backend.
    pub(super) charges: Charges,
}

/// What is to be done for one descriptor.
#[derive(Debug)]
pub(super) enum Part {
    /// Nothing is counted.
    Settled(Reason, Group),
    /// The next charge in order answers it.
    Charged {
        shown: Shown,
        metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
        /// What may be answered without asking the store.
        mode: Mode,
        /// What the caller gets when the store does not answer.
        on_failure: OnBackendFailure,
    },
}

impl Plan {
    /// Plans `question` at the instant `now`. Filled in place: a plan is large, and moving it about
    /// would cost more than making it.
    pub(super) fn fill(
        &mut self,
        config: &Config,
        question: &Question<'_>,
        planning: Planning,
        now: Nanos,
    ) {
        let Some(domain) = config.domains.get(question.domain) else {
            let nothing = question.descriptors.iter().map(|_| Part::NO_LIMIT);
            return self.parts.extend(nothing);
        };
        let found: SmallVec<[Found<'_>; 2]> =
            question.descriptors.iter().map(|d| Found::of(domain, d, planning.overrides)).collect();
        for (descriptor, each) in question.descriptors.iter().zip(&found) {
            let part = match each {
                Found::Nothing => Part::NO_LIMIT,
                Found::Unlimited(_) => Part::Settled(Reason::Unlimited, Group::Aside),
                Found::Rule(matched, _) if is_replaced(matched.rule, &found) => {
                    Part::Settled(Reason::Replaced, Group::Enforced)
                }
                Found::Rule(matched, limit) => {
                    self.charge_rule(domain, descriptor, matched, limit, planning, now)
                }
                Found::Override(limit) => {
                    self.charge_override(domain, descriptor, *limit, planning)
                }
            };
            self.parts.push(part);
        }
        self.charges.rule = self.rule(domain.charge, planning.quota_for_all);
    }
}

impl Part {
    const NO_LIMIT: Self = Self::Settled(Reason::NoLimit, Group::Enforced);
}

/// What a descriptor was found to be under.
enum Found<'c> {
    Nothing,
    Unlimited(&'c Rule),
    Rule(Match<'c>, &'c Limit),
    Override(Override),
}

impl<'c> Found<'c> {
    fn of(domain: &'c Domain, descriptor: &Descriptor<'_>, overrides: Overrides) -> Self {
        match (descriptor.limit, overrides) {
            (Some(limit), Overrides::Allow) => Self::Override(limit),
            (None, _) | (_, Overrides::Deny) => Self::configured(domain, descriptor),
            (Some(limit), Overrides::Max) => match Self::configured(domain, descriptor) {
                Self::Nothing => Self::Override(limit),
                Self::Rule(_, configured) if tightens(limit, configured) => Self::Override(limit),
                configured => configured,
            },
        }
    }

    fn configured(domain: &'c Domain, descriptor: &Descriptor<'_>) -> Self {
        match domain.tree.lookup(descriptor.entries.iter().copied()) {
            None => Self::Nothing,
            Some(matched) => match &matched.rule.limit {
                None => Self::Unlimited(matched.rule),
                Some(limit) => Self::Rule(matched, limit),
            },
        }
    }

    const fn rule(&self) -> Option<&'c Rule> {
        match self {
            Self::Unlimited(rule) => Some(rule),
            Self::Rule(matched, _) => Some(matched.rule),
            Self::Nothing | Self::Override(_) => None,
        }
    }
}

fn tightens(limit: Override, configured: &Limit) -> bool {
    configured.window == Window::Unit(limit.unit)
        && matches!(configured.strategy, Strategy::FixedWindow(_))
        && limit.requests < configured.requests
}

fn is_replaced(rule: &Rule, found: &[Found<'_>]) -> bool {
    let Some(name) = &rule.name else { return false };
    found.iter().filter_map(Found::rule).any(|other| other.replaces.contains(name))
}

impl Plan {
    fn charge_rule(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        matched: &Match<'_>,
        limit: &Limit,
        planning: Planning,
        now: Nanos,
    ) -> Part {
        let Match { rule, shared } = matched;
        let entries = descriptor.entries.iter().enumerate().map(|(position, &(key, value))| {
            let pattern = shared.iter().find(|(at, _)| *at == position);
            (key, pattern.map_or(value, |(_, pattern)| *pattern))
        });
        let home = home(domain, entries.clone());
        let key = name(domain, entries, limit.counting(), planning.keys);
        let group = if rule.quota { Group::Quota } else { Group::Enforced };
        let standing = Standing { group, shadow: rule.shadow };
        let (strategy, cost) = (limit.strategy_at(now), descriptor.cost);
        self.charges.list.push(Charge { key, home, strategy, cost, standing });
        let shown = Shown {
            requests: limit.requests,
            unit: limit.window.unit(),
            period: limit.window.length(),
            name: rule.name.clone(),
        };
        let (mode, on_failure) = (limit.mode, limit.on_backend_failure);
        Part::Charged { shown, metadata: rule.metadata.clone(), mode, on_failure }
    }

    fn charge_override(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        limit: Override,
        planning: Planning,
    ) -> Part {
        let Override { requests, unit } = limit;
        let period = unit.length();
        let counting = Counting::FixedWindow(period);
        let entries = || descriptor.entries.iter().copied();
        let key = name(domain, entries(), counting, planning.keys);
        let shown = Shown { requests, unit: Some(unit), period, name: None };
        match FixedWindow::new(requests, Windows::Every(period)) {
            Ok(window) => {
                let strategy = Strategy::FixedWindow(window);
                let (home, cost) = (home(domain, entries()), descriptor.cost);
                let standing = Standing::default();
                self.charges.list.push(Charge { key, home, strategy, cost, standing });
                let (mode, on_failure) = (Mode::Strict, OnBackendFailure::default());
                Part::Charged { shown, metadata: None, mode, on_failure }
            }
            // The seven units all make windows; a limit that did not would be no limit.
            Err(_) => Part::Settled(Reason::NoLimit, Group::Enforced),
        }
    }

    fn rule(&self, charging: Charging, quota_for_all: bool) -> ChargeRule {
        let passes = |part: &Part| matches!(part, Part::Settled(_, Group::Enforced));
        match charging {
            Charging::Each => ChargeRule::Each,
            Charging::AllOrNothing => ChargeRule::AllOrNothing {
                quota_for_all,
                rescued: quota_for_all && self.parts.iter().any(passes),
            },
        }
    }
}

/// Where the counter of `entries` lives: shared patterns stand in for what was asked, as in its key.
/// A domain that is charged as a whole and says nothing else lives in one place, for one step.
fn home<'a>(domain: &Domain, mut entries: impl Iterator<Item = (&'a str, &'a str)>) -> Home {
    let Some(key) = &domain.colocate else {
        return match domain.charge {
            Charging::Each => Home::Itself,
            Charging::AllOrNothing => Home::beside(&domain.name, ""),
        };
    };
    let entry = entries.find(|(name, _)| *name == &**key);
    entry.map_or(Home::Itself, |(_, value)| Home::beside(&domain.name, value))
}

fn name<'a>(
    domain: &Domain,
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    counting: Counting,
    keys: CounterKeys,
) -> CounterKey {
    match (keys, counting) {
        (CounterKeys::Envoyproxy, Counting::FixedWindow(_)) => {
            CounterKey::joined(&domain.name, entries, counting)
        }
        _ => CounterKey::injective(&domain.name, entries, counting),
    }
}

#[cfg(test)]
mod tests {
    use super::{Domain, Home, home};
    use crate::config::load;
    use crate::kernel::units::Revision;

    fn domain(head: &str) -> Domain {
        let text = format!("domain: d\n{head}descriptors: [{{key: tenant}}]\n");
        let (config, _) = load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        config.domains.into_values().next().unwrap()
    }

    #[test]
    fn counters_live_by_themselves_or_where_the_domain_says() {
        let entries = || [("user", "u"), ("tenant", "t"), ("tenant", "other")].into_iter();
        let [each, whole] = ["", "charge: all_or_nothing\n"].map(domain);
        assert_eq!(home(&each, entries()), Home::Itself);
        assert_eq!(home(&whole, entries()), Home::beside("d", ""));
        for head in ["colocate: tenant\n", "colocate: tenant\ncharge: all_or_nothing\n"] {
            let by_tenant = domain(head);
            assert_eq!(home(&by_tenant, entries()), Home::beside("d", "t"));
            assert_eq!(home(&by_tenant, entries().take(1)), Home::Itself);
        }
    }
}
