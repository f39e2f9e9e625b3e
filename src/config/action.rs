//! Actions of an operator: a rule or one key is forced to a verdict, or the limit of one key is raised, for a while.
//!
//! Guarantees:
//! - Rules and keys without an action behave as configured.
//! - An action ends by itself at its expiry.
//! - A boosted limit keeps its period, strategy, mode and counter.
//!
//! Not covered:
//! - Verifying that the caller is an operator.
//! - Keeping actions when the configuration is reloaded (see [`crate::engine::actions`]).

use std::num::NonZeroU32;

use super::rule::{Limit, RuleLimits};
use crate::kernel::decision::Verdict;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::FixedWindow;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::Nanos;

/// A verdict that an operator forces on a rule or key, and its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedDecision {
    /// The verdict of every check of the rule or key.
    pub verdict: Verdict,
    /// The expiry, after which the limits decide again.
    pub until: Nanos,
}

/// The size of a boosted limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoostSize {
    /// The limit is multiplied by this factor, from 2 to [`BoostSize::MAX_FACTOR`].
    Factor(u32),
    /// The limit has this number of requests in its period.
    Requests(NonZeroU32),
}

/// The part of the configuration to which an action applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionTarget {
    /// All rules of the domain with this path.
    Rule(Box<str>),
    /// The counters of one descriptor, given as its keys and values.
    Key(Box<[(String, String)]>),
}

/// The effect of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionEffect {
    /// Every check gets this verdict, and is not counted.
    Force(Verdict),
    /// The limits of the key have another size.
    Boost(BoostSize),
}

/// An action that applies until its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The domain of the rule or key.
    pub domain: Box<str>,
    /// The rule or the key.
    pub target: ActionTarget,
    /// The effect.
    pub effect: ActionEffect,
    /// The expiry.
    pub until: Nanos,
}

/// The actions on one key, as its rule stores them.
#[derive(Clone, Debug)]
pub struct KeyActions {
    /// The entries of the counter's key. A pattern with `share_threshold` replaces the values that it matches.
    entries: Box<[(Box<str>, Box<str>)]>,
    forced: Option<ForcedDecision>,
    boosted: Option<(RuleLimits, Nanos)>,
}

impl BoostSize {
    /// The largest factor of a boost.
    pub const MAX_FACTOR: u32 = 1_000;

    /// Parses `x2` or a number of requests. Returns `None` for other texts, and for a factor or number out of range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('x') {
            Some(factor) => {
                let factor = factor.parse().ok()?;
                (2..=Self::MAX_FACTOR).contains(&factor).then_some(Self::Factor(factor))
            }
            None => text.parse().ok().map(Self::Requests),
        }
    }

    /// Returns the boosted number of requests of a limit of `requests`. Saturates at `u32::MAX`.
    #[must_use]
    pub const fn apply(self, requests: u32) -> u32 {
        match self {
            Self::Factor(factor) => requests.saturating_mul(factor),
            Self::Requests(requests) => requests.get(),
        }
    }

    /// Returns the boosted limit. The burst of GCRA grows in the same proportion as the requests, rounded up.
    ///
    /// # Errors
    /// Fails if the strategy cannot count that many requests exactly in the period.
    pub fn boost(self, limit: &Limit) -> Result<Limit, LimitError> {
        let requests = self.apply(limit.requests);
        let strategy = match &limit.strategy {
            Strategy::FixedWindow(window) => FixedWindow::new(requests, *window.windows())
                .map(|boosted| boosted.with_on_excess(window.on_excess()))
                .map(Strategy::FixedWindow)?,
            Strategy::SlidingWindow(window) => SlidingWindow::new(requests, limit.window.length())
                .map(|boosted| boosted.with_on_excess(window.on_excess()))
                .map(Strategy::SlidingWindow)?,
            Strategy::SlidingLog(log) => SlidingLog::new(requests, log.period())
                .map(|boosted| boosted.with_on_excess(log.on_excess()))
                .map(Strategy::SlidingLog)?,
            Strategy::Gcra(gcra) => {
                let burst = scale_burst(gcra.burst(), requests, limit.requests);
                Gcra::with_on_excess(requests, limit.window.length(), burst, gcra.on_excess())
                    .map(Strategy::Gcra)?
            }
        };
        Ok(Limit { requests, strategy, ..limit.clone() })
    }
}

/// Formats the size as [`BoostSize::parse`] reads it.
impl std::fmt::Display for BoostSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Factor(factor) => write!(f, "x{factor}"),
            Self::Requests(requests) => write!(f, "{requests}"),
        }
    }
}

fn scale_burst(burst: u32, requests: u32, before: u32) -> u32 {
    let scaled = u64::from(burst) * u64::from(requests);
    u32::try_from(scaled.div_ceil(u64::from(before.max(1)))).unwrap_or(u32::MAX)
}

impl KeyActions {
    pub(super) fn new(entries: Box<[(Box<str>, Box<str>)]>) -> Self {
        Self { entries, forced: None, boosted: None }
    }

    /// Adds an action for this key. A limit that cannot be boosted keeps its size.
    pub(super) fn add(&mut self, effect: ActionEffect, until: Nanos, limits: &[Limit]) {
        match effect {
            ActionEffect::Force(verdict) => self.forced = Some(ForcedDecision { verdict, until }),
            ActionEffect::Boost(size) => {
                let boosted = |limit: &Limit| size.boost(limit).unwrap_or_else(|_| limit.clone());
                self.boosted = Some((limits.iter().map(boosted).collect(), until));
            }
        }
    }

    pub(super) fn is_for<'e>(&self, mut entries: impl Iterator<Item = (&'e str, &'e str)>) -> bool {
        let mut own = self.entries.iter();
        entries.all(|(key, value)| {
            own.next()
                .is_some_and(|(own_key, own_value)| **own_key == *key && **own_value == *value)
        }) && own.next().is_none()
    }

    /// Returns the verdict that is forced on the key at `now`.
    #[must_use]
    pub fn forced_verdict_at(&self, now: Nanos) -> Option<Verdict> {
        self.forced.filter(|forced| now < forced.until).map(|forced| forced.verdict)
    }

    /// Returns the boosted limits of the key at `now`, in the order of the rule's limits.
    #[must_use]
    pub fn boosted_limits_at(&self, now: Nanos) -> Option<&RuleLimits> {
        self.boosted.as_ref().filter(|(_, until)| now < *until).map(|(limits, _)| limits)
    }
}
