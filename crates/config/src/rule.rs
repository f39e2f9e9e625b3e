//! The rules and rate limits of a configuration.
//!
//! Guarantees:
//! - A limit whose strategy changes starts a new counter.
//! - A boosted limit keeps its period, strategy, mode and counter.
//!
//! Not covered:
//! - The descriptors that a rule matches (see [`super::tree`]).
//! - Concurrency limits (see [`super::concurrency`]).

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::action::{ActionEffect, BoostSize, ForcedDecision};
use super::calendar::Calendar;
use super::penalty::Penalty;
use super::table_column::TableColumn;
use crate::kernel::decision::Verdict;
use crate::kernel::key::KeyStrategy;
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::{Nanos, Unit};

/// The number of a rule in its configuration, from 0. The rate limit and the concurrency limit of
/// one rule have the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleNumber(pub u32);

/// The limits of a rule.
pub type RuleLimits = SmallVec<[Limit; 1]>;

/// One node of the descriptor tree with `rate_limit` or `rate_limits`: its limits and options.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The number of the rule.
    pub number: RuleNumber,
    /// The limits, which must all allow a check; empty if the rule is `unlimited`.
    pub limits: RuleLimits,
    /// The `name` in `rate_limit`. Decisions report it, and other rules refer to it in `replaces`.
    pub name: Option<Arc<str>>,
    /// The names of the rules and limits that do not apply in a check in which this rule matches.
    pub replaces: Box<[Arc<str>]>,
    /// Shadow mode: the rule decides and is reported, but never denies.
    pub shadow: bool,
    /// `quota_mode`: the rule belongs to the quota group, which denies only if all its limits deny.
    pub quota: bool,
    /// `detailed_metric`: the names of this rule's metrics contain the key and value of every
    /// entry.
    pub detailed_metric: bool,
    /// Free-form data that a check returns to the proxy if this rule does not deny.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The full path of the rule: the domain and the names of all levels, joined by dots. A name is
    /// `key` or `key_value`.
    pub path: Arc<str>,
    /// The file and line of the rule, for the command `explain`.
    pub location: Box<str>,
    /// The forced decision of an operator, if there is one.
    pub forced_decision: Option<ForcedDecision>,
    /// The actions of an operator on single keys of this rule.
    pub key_actions: Vec<KeyActions>,
}

/// A rate limit: the number of requests in a period, and the way to count and decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The name in the list `rate_limits`, which is part of the counter key; `None` for
    /// `rate_limit`.
    pub name: Option<Arc<str>>,
    /// The requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub window: LimitWindow,
    /// The strategy that counts hits, with its parameters.
    pub strategy: Strategy,
    /// The decisions that this replica makes without a store call.
    pub mode: LimitMode,
    /// The fallback of charges to which the store does not reply.
    pub on_store_failure: FallbackMode,
    /// The column of a table with the requests of each id, and the overshoot for each number.
    pub from: Option<Box<TableColumn>>,
    /// The ban of a key that is denied repeatedly.
    pub penalty: Option<Box<Penalty>>,
}

impl Limit {
    /// Returns the part of the counter key that depends on the strategy and window. A limit whose
    /// strategy changes thereby starts a new counter.
    #[must_use]
    pub fn counting(&self) -> KeyStrategy {
        match (&self.strategy, &self.window) {
            (Strategy::Gcra(_), _) => KeyStrategy::Gcra,
            (Strategy::SlidingLog(_), _) => KeyStrategy::SlidingLog,
            (Strategy::SlidingWindow(_), window) => KeyStrategy::SlidingWindow(window.length()),
            (Strategy::FixedWindow(_), LimitWindow::Calendar(unit, _)) => {
                KeyStrategy::Calendar(*unit)
            }
            (Strategy::FixedWindow(_), window) => KeyStrategy::FixedWindow(window.length()),
        }
    }

    /// Returns the strategy. For a calendar limit, it has the windows around the instant `now`.
    #[must_use]
    pub fn strategy_at(&self, now: Nanos) -> Strategy {
        match (&self.strategy, &self.window) {
            (Strategy::FixedWindow(window), LimitWindow::Calendar(_, calendar)) => {
                let starts = calendar.cached_starts_around(now);
                FixedWindow::new(window.limit(), Windows::Calendar { starts })
                    .map(|limit| limit.with_on_excess(window.on_excess()))
                    .map_or(self.strategy, Strategy::FixedWindow)
            }
            (strategy, _) => *strategy,
        }
    }

    /// Returns this limit with another size.
    ///
    /// # Errors
    /// As [`Limit::resized`].
    pub fn boosted(&self, size: BoostSize) -> Result<Self, LimitError> {
        self.resized(size.apply(self.requests))
    }

    /// Returns this limit for another number of requests. The burst of GCRA grows in the same
    /// proportion as the requests, rounded up.
    ///
    /// # Errors
    /// Fails if the strategy cannot count that many requests exactly in the period.
    pub fn resized(&self, requests: u32) -> Result<Self, LimitError> {
        let period = self.window.length();
        let strategy = match &self.strategy {
            Strategy::FixedWindow(window) => Strategy::FixedWindow(
                FixedWindow::new(requests, *window.windows())?.with_on_excess(window.on_excess()),
            ),
            Strategy::SlidingWindow(window) => Strategy::SlidingWindow(
                SlidingWindow::new(requests, period)?.with_on_excess(window.on_excess()),
            ),
            Strategy::SlidingLog(log) => Strategy::SlidingLog(
                SlidingLog::new(requests, period)?.with_on_excess(log.on_excess()),
            ),
            Strategy::Gcra(gcra) => {
                let burst = scale_burst(gcra.burst(), requests, self.requests);
                Strategy::Gcra(Gcra::with_on_excess(requests, period, burst, gcra.on_excess())?)
            }
        };
        let from = None;
        Ok(Self { requests, strategy, from, ..self.clone() })
    }
}

fn scale_burst(burst: u32, requests: u32, before: u32) -> u32 {
    let scaled = u64::from(burst) * u64::from(requests);
    u32::try_from(scaled.div_ceil(u64::from(before.max(1)))).unwrap_or(u32::MAX)
}

impl KeyActions {
    const fn new(entries: Box<[(Box<str>, Box<str>)]>) -> Self {
        Self { entries, forced: None, boosted: None }
    }

    /// Adds an action for this key. After a reload, a limit may be larger than its boost, or one of
    /// several; it then keeps its size.
    fn add(&mut self, effect: ActionEffect, until: Nanos, limits: &[Limit]) {
        match effect {
            ActionEffect::Force(verdict) => self.forced = Some(ForcedDecision { verdict, until }),
            // An action of a table, which has no rule.
            ActionEffect::Set(_) => {}
            ActionEffect::Boost(size) => {
                let is_ambiguous = matches!(size, BoostSize::Requests(_)) && limits.len() != 1;
                let boosted = |limit: &Limit| {
                    let is_larger = limit.requests < size.apply(limit.requests);
                    let boosted = limit.boosted(size).ok();
                    boosted.filter(|_| is_larger && !is_ambiguous).unwrap_or_else(|| limit.clone())
                };
                self.boosted = Some((limits.iter().map(boosted).collect(), until));
            }
        }
    }

    fn is_for<'e>(&self, mut entries: impl Iterator<Item = (&'e str, &'e str)>) -> bool {
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

    /// Returns the first instant after `now` at which an action on the key ends.
    #[must_use]
    pub fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let forced = self.forced.map(|forced| forced.until);
        let boosted = self.boosted.as_ref().map(|(_, until)| *until);
        forced.into_iter().chain(boosted).filter(|until| now < *until).min()
    }

    /// Returns the boosted limits of the key at `now`, in the order of the rule's limits.
    #[must_use]
    pub fn boosted_limits_at(&self, now: Nanos) -> Option<&RuleLimits> {
        self.boosted.as_ref().filter(|(_, until)| now < *until).map(|(limits, _)| limits)
    }
}

/// The actions of an operator on one key of a rule.
#[derive(Clone, Debug)]
pub struct KeyActions {
    /// The entries of the counter's key. A pattern with `share_threshold` replaces the values that it
    /// matches.
    entries: Box<[(Box<str>, Box<str>)]>,
    forced: Option<ForcedDecision>,
    /// The boosted limits and their expiry.
    boosted: Option<(RuleLimits, Nanos)>,
}

/// The period over which a limit counts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitWindow {
    /// A `unit`. Windows of the strategy, if it has any, are aligned to the Unix epoch.
    Unit(Unit),
    /// A period `per`. Windows of the strategy, if it has any, are aligned to the Unix epoch.
    Per(Nanos),
    /// Calendar days, weeks, months or years in a time zone.
    Calendar(Unit, Arc<Calendar>),
}

impl LimitWindow {
    /// Returns the length of the period. A calendar month counts as 30 days, a calendar year as
    /// 365.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => unit.length(),
            Self::Per(length) => *length,
        }
    }

    /// Returns the unit of the period, or `None` for a period given by `per`.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => Some(*unit),
            Self::Per(_) => None,
        }
    }
}

/// The decisions that this replica makes without a store call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// No decisions: every check makes a store call.
    #[default]
    Strict,
    /// Denials that the deny cache remembers until their retry-after.
    CachedDeny,
    /// Checks that the balance of a lease covers. The terms bound the size and duration of leases.
    Leased(LeaseTerms),
}

/// The decision of a charge to which the store does not reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackMode {
    /// The check is an error. Envoy then allows or denies, by its option `failure_mode_deny`.
    #[default]
    Error,
    /// The charge is allowed.
    Allow,
    /// The charge is denied.
    Deny,
    /// The charge is counted in memory against this replica's local share of the limit.
    Local,
}

/// The limits of a check that are charged if at least one of them denies it (field `charge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargePolicy {
    /// Each limit is charged, even if another denies.
    #[default]
    Each,
    /// A limit is charged only if all limits of the check allow it (all-or-nothing).
    AllOrNothing,
}

impl Rule {
    /// Returns the name that decisions report for `limit`, one of this rule's limits.
    #[must_use]
    pub fn name_of<'r>(&'r self, limit: &'r Limit) -> Option<&'r Arc<str>> {
        limit.name.as_ref().or(self.name.as_ref())
    }

    /// Returns the path of `limit`: the rule's path and, in a list `rate_limits`, the limit's name.
    #[must_use]
    pub fn path_of(&self, limit: &Limit) -> Cow<'_, str> {
        match &limit.name {
            None => Cow::Borrowed(&self.path),
            Some(name) => Cow::Owned(format!("{}.{name}", self.path)),
        }
    }

    /// Returns the names by which `replaces` of other rules can refer to this rule.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.name.iter().chain(self.limits.iter().filter_map(|limit| limit.name.as_ref()))
    }

    /// Returns the verdict that an operator forces on the rule at `now`, or `None` if there is none.
    #[must_use]
    pub fn forced_verdict_at(&self, now: Nanos) -> Option<Verdict> {
        self.forced_decision.filter(|forced| now < forced.until).map(|forced| forced.verdict)
    }

    /// Returns the actions on the key with these entries. Cost: one comparison for each key with an
    /// action.
    #[must_use]
    pub fn key_actions_for<'e>(
        &self,
        entries: &(impl Iterator<Item = (&'e str, &'e str)> + Clone),
    ) -> Option<&KeyActions> {
        self.key_actions.iter().find(|key| key.is_for(entries.clone()))
    }

    pub(super) fn add_key_action(
        &mut self,
        entries: &[(Box<str>, Box<str>)],
        effect: ActionEffect,
        until: Nanos,
    ) {
        let borrowed = || entries.iter().map(|(key, value)| (&**key, &**value));
        let known = self.key_actions.iter().position(|key| key.is_for(borrowed()));
        let index = known.unwrap_or_else(|| {
            self.key_actions.push(KeyActions::new(entries.into()));
            self.key_actions.len() - 1
        });
        if let Some(key) = self.key_actions.get_mut(index) {
            key.add(effect, until, &self.limits);
        }
    }
}
