//! The plan of one limit of a check: what it counts and who decides it.

use std::borrow::Cow;

use crate::config::penalty::Penalty;
use crate::config::{FallbackMode, Limit, LimitMode, Rule};
use crate::kernel::decision::{AppliedLimit, Enforcement, LimitOverride, Verdict, VoteGroup};
use crate::kernel::lease::LeaseTerms;

#[derive(Clone, Copy, Debug)]
pub(crate) enum LimitPlan<'c> {
    /// No rule matches.
    NoRule,
    /// The rule has no limit.
    Unlimited(&'c Rule),
    /// Another rule of the check replaces this descriptor's rule (field `replaces`).
    Replaced,
    /// An operator forced this verdict for the rule.
    Forced(&'c Rule, &'c Limit, Verdict),
    /// The next charge of the plan counts under this limit of the rule.
    Charged(&'c Rule, &'c Limit),
    /// The next charge of the plan counts under a limit from the request. The fallback applies if
    /// the store does not reply.
    Override(LimitOverride, FallbackMode),
}

impl<'c> LimitPlan<'c> {
    pub(crate) fn applied_limit(&self) -> Option<AppliedLimit> {
        match self {
            Self::NoRule | Self::Unlimited(_) | Self::Replaced => None,
            Self::Charged(rule, limit) | Self::Forced(rule, limit, _) => Some(AppliedLimit {
                requests: limit.requests,
                unit: limit.window.unit(),
                period: limit.window.length(),
                name: rule.name_of(limit).cloned(),
            }),
            Self::Override(LimitOverride { requests, unit }, _) => Some(AppliedLimit {
                requests: *requests,
                unit: Some(*unit),
                period: unit.length(),
                name: None,
            }),
        }
    }

    /// Returns the path of the limit; `None` as for [`Self::rule`].
    pub(crate) fn path(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Charged(rule, limit) => Some(rule.path_of(limit)),
            _ => self.rule().map(|rule| Cow::Borrowed(&*rule.path)),
        }
    }

    pub(crate) fn fallback(&self) -> Option<FallbackMode> {
        match self {
            Self::NoRule | Self::Unlimited(_) | Self::Replaced | Self::Forced(..) => None,
            Self::Charged(_, limit) => Some(limit.on_store_failure),
            Self::Override(_, rule) => Some(*rule),
        }
    }

    #[inline]
    pub(crate) fn mode(&self) -> LimitMode {
        match self {
            Self::Charged(_, limit) => limit.mode,
            Self::NoRule
            | Self::Unlimited(_)
            | Self::Replaced
            | Self::Forced(..)
            | Self::Override(..) => LimitMode::Strict,
        }
    }

    #[inline]
    pub(crate) fn lease_terms(&self) -> Option<&'c LeaseTerms> {
        match self {
            Self::Charged(_, Limit { mode: LimitMode::Leased(terms), .. }) => Some(terms),
            _ => None,
        }
    }

    /// Returns the penalty of a charged limit.
    #[inline]
    pub(crate) fn penalty(&self) -> Option<&'c Penalty> {
        match self {
            Self::Charged(_, limit) => limit.penalty.as_deref(),
            _ => None,
        }
    }

    /// Returns the matching rule, or `None` if the rule is replaced or overridden.
    #[inline]
    pub(crate) const fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Unlimited(rule) | Self::Charged(rule, _) | Self::Forced(rule, ..) => Some(rule),
            Self::NoRule | Self::Replaced | Self::Override(..) => None,
        }
    }

    #[inline]
    pub(crate) const fn is_charged(&self) -> bool {
        matches!(self, Self::Charged(..) | Self::Override(..))
    }
}

#[inline]
pub(crate) const fn enforcement_of(rule: &Rule) -> Enforcement {
    let group = if rule.quota { VoteGroup::Quota } else { VoteGroup::Enforced };
    Enforcement { group, shadow: rule.shadow }
}
