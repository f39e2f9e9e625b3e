//! Formats rate limits, concurrency limits and budgets as text for logs, the command `explain` and the
//! admin page `/config`.
//!
//! Guarantees:
//! - Two limits with different numbers or keywords have different text descriptions.
//!
//! Not covered:
//! - The hits that a counter has at the moment.

use std::fmt;

use jiff::civil::Time;

use super::budget::{BudgetRule, BudgetWindow};
use super::budget_amount::AmountText;
use super::calendar::WindowStartDay;
use super::concurrency::{
    ConcurrencyFallback, ConcurrencyLimit, DEFAULT_MAX_DURATION, RequesterRule,
};
use super::resolve::keywords;
use super::resolve::overload_answers::AnswerListText;
use super::{Calendar, FallbackMode, Limit, LimitMode, LimitWindow, Rule};
use crate::kernel::budget::Amount;
use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::concurrency::{AdaptivePace, OverloadAnswers, PaceConfig, RetryAfterRule};
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::rate::Strategy;
use crate::kernel::units::{Hits, Unit};

/// A limit of a rule, with the rule's options.
pub(super) struct LimitText<'r>(pub(super) &'r Rule, pub(super) Option<&'r Limit>);

/// Formats the limit and the options: `10 per second, fixed_window, named "x", shadow`.
impl fmt::Display for LimitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rule, limit) = self;
        match limit {
            Some(limit) => limit.fmt(f)?,
            None => f.write_str("unlimited")?,
        }
        if let Some(name) = limit.map_or(rule.name.as_ref(), |limit| rule.name_of(limit)) {
            write!(f, ", named {name:?}")?;
        }
        rule.fmt_options(f)
    }
}

impl Rule {
    fn fmt_options(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.replaces.is_empty() {
            write!(f, ", replaces {:?}", self.replaces)?;
        }
        let marks = [
            (self.shadow, ", shadow"),
            (self.quota, ", quota"),
            (self.detailed_metric, ", detailed metric"),
            (self.metadata.is_some(), ", with metadata"),
        ];
        marks.into_iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, word)| f.write_str(word))
    }
}

/// Formats the limit as `600 per minute, gcra, burst 50`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}, {}", self.requests, self.window, strategy_keyword(&self.strategy))?;
        if let Strategy::Gcra(gcra) = &self.strategy {
            write!(f, ", burst {}", gcra.burst())?;
        }
        if self.strategy.on_excess().is_charge() {
            f.write_str(", on excess charge")?;
        }
        if self.mode != LimitMode::Strict {
            write!(f, ", mode {}", self.mode)?;
        }
        match self.on_store_failure {
            FallbackMode::Error => {}
            failure => write!(f, ", on store failure {failure}")?,
        }
        self.penalty.as_ref().map_or(Ok(()), |penalty| write!(f, ", {penalty}"))
    }
}

/// Formats the period as `minute`, `90s`, or `month from day 15 in Europe/Berlin`.
impl fmt::Display for LimitWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(unit) => unit.fmt(f),
            Self::Per(period) => period.fmt(f),
            Self::Calendar(unit, calendar) => write!(f, "{unit} {calendar}"),
        }
    }
}

/// Formats the mode as `cached_deny`, or `leased, max_overshoot 12`. A percentage in the file is
/// shown as hits.
impl fmt::Display for LimitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strict => keywords::ModeKeyword::Exact.fmt(f),
            Self::CachedDeny => keywords::ModeKeyword::CachedDeny.fmt(f),
            Self::Leased(LeaseTerms { overshoot, sizing: size, .. }) => {
                let hits = match overshoot {
                    Overshoot::AtMost(hits) => *hits,
                    Overshoot::InWindow | Overshoot::Occupying(_) => Hits(0),
                };
                write!(f, "{}, max_overshoot {}", keywords::ModeKeyword::Leased, hits.0)?;
                match size {
                    LeaseSizing::Recent | LeaseSizing::Learned => Ok(()),
                    LeaseSizing::Fixed(hits) => write!(f, ", lease_hits {}", hits.0),
                }
            }
        }
    }
}

impl fmt::Display for FallbackMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(keywords::keyword_of(keywords::FALLBACK_MODES, *self))
    }
}

/// Formats the start of the calendar's windows as `from day 15 at 12:00 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_midnight = self.start_time == Time::midnight();
        match self.start_day {
            WindowStartDay::Day if is_midnight => f.write_str("from midnight")?,
            WindowStartDay::Day => f.write_str("from")?,
            WindowStartDay::Week(day) => {
                write!(f, "from {}", keywords::keyword_of(keywords::WEEKDAYS, day))?;
            }
            WindowStartDay::Month(31) => f.write_str("from its last day")?,
            WindowStartDay::Month(day) => write!(f, "from day {day}")?,
            WindowStartDay::Year { month, day } => write!(f, "from {month:02}-{day:02}")?,
        }
        let (hour, minute) = (self.start_time.hour(), self.start_time.minute());
        match self.start_day {
            _ if is_midnight => {}
            WindowStartDay::Day => write!(f, " {hour:02}:{minute:02}")?,
            _ => write!(f, " at {hour:02}:{minute:02}")?,
        }
        write!(f, " in {}", self.time_zone.iana_name().unwrap_or("UTC"))
    }
}

/// Returns the keyword of a strategy in a limits file: `gcra` or `fixed_window`, for example.
#[must_use]
pub fn strategy_keyword(strategy: &Strategy) -> &'static str {
    use keywords::StrategyKeyword::{FixedWindow, Gcra, SlidingLog, SlidingWindow};
    let word = match strategy {
        Strategy::Gcra(_) => Gcra,
        Strategy::FixedWindow(_) => FixedWindow,
        Strategy::SlidingWindow(_) => SlidingWindow,
        Strategy::SlidingLog(_) => SlidingLog,
    };
    keywords::keyword_of(keywords::STRATEGIES, word)
}

/// A budget with the amount that applies: the rule's own, or that of a table. Without an amount,
/// the budget is unlimited.
pub(super) struct BudgetText<'r>(pub(super) &'r BudgetRule, pub(super) Option<Amount>);

/// Formats the budget as `500 usd per month from day 1 in Europe/Berlin, warns at 80%, 100%`, or as
/// `prepaid, in usd`.
impl fmt::Display for BudgetText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rule, amount) = self;
        match (&rule.window, amount) {
            (BudgetWindow::Prepaid, _) => write!(f, "prepaid, in {}", rule.unit)?,
            (BudgetWindow::Each(_), None) => f.write_str("unlimited")?,
            (BudgetWindow::Each(window), Some(amount)) => {
                write!(f, "{} per {window}", AmountText(*amount, rule.unit))?;
            }
        }
        for (number, percent) in rule.warn_at.iter().enumerate() {
            let before = if number == 0 { ", warns at" } else { "," };
            write!(f, "{before} {percent}%")?;
        }
        if rule.on_store_failure != FallbackMode::Error {
            write!(f, ", on store failure {}", rule.on_store_failure)?;
        }
        f.write_str(if rule.shadow { ", shadow" } else { "" })
    }
}

impl fmt::Display for BudgetRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BudgetText(self, Some(self.amount)).fmt(f)
    }
}

/// Formats the limit as `64 in flight, gradient from 8 to 512, queue of 100 for 300ms, rejected
/// with 503`.
impl fmt::Display for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimiterConfig { limit, adaptive, queue: waiting, overloaded_by, retry_after, .. } =
            &self.rules;
        match &self.rules.pace {
            Some(pace) => write_pace(f, *limit, pace)?,
            None => write!(f, "{limit} in flight")?,
        }
        if let Some(adaptive) = adaptive {
            write_adaptive(f, adaptive)?;
        }
        if self.aggregate != VoteAggregate::default() {
            let aggregate = keywords::keyword_of(keywords::VOTE_AGGREGATES, self.aggregate);
            write!(f, ", aggregate {aggregate}")?;
        }
        if *overloaded_by != OverloadAnswers::DEFAULT {
            write!(f, ", overloaded by [{}]", AnswerListText(overloaded_by))?;
        }
        if *retry_after != RetryAfterRule::default() {
            let rule = keywords::keyword_of(keywords::RETRY_AFTER_RULES, *retry_after);
            write!(f, ", paused by {rule}")?;
        }
        if let Some(QueueConfig { size, timeout }) = waiting {
            write!(f, ", queue of {size} for {timeout}")?;
        }
        if let Some(rule) = &self.requesters {
            write_requesters(f, rule, &self.rules)?;
        }
        if let Some(mode) = self.mode {
            write!(f, ", mode {}", keywords::keyword_of(keywords::CONCURRENCY_MODES, mode))?;
        }
        if self.on_store_failure != ConcurrencyFallback::default() {
            let failure =
                keywords::keyword_of(keywords::CONCURRENCY_FALLBACKS, self.on_store_failure);
            write!(f, ", on store failure {failure}")?;
        }
        if self.max_duration != DEFAULT_MAX_DURATION {
            write!(f, ", at most {}", self.max_duration)?;
        }
        write!(f, ", rejected with {}", self.reject)?;
        f.write_str(if self.shadow { ", shadow" } else { "" })
    }
}

/// Formats a pace as `10 per second one by one, aimd from 1 to 500, increase 1, decrease 0.8`.
fn write_pace(f: &mut fmt::Formatter<'_>, rate: u32, pace: &PaceConfig) -> fmt::Result {
    let units = [Unit::Second, Unit::Minute, Unit::Hour];
    match units.into_iter().find(|unit| unit.length() == pace.unit) {
        Some(unit) => write!(f, "{rate} per {unit}")?,
        None => write!(f, "{rate} per {}", pace.unit)?,
    }
    f.write_str(" one by one")?;
    match &pace.adaptive {
        Some(AdaptivePace { min, max, increase, decrease }) => {
            write!(f, ", aimd from {min} to {max}, increase {increase}, decrease {decrease}")
        }
        None => Ok(()),
    }
}

/// Formats classes and fair parts as `, classes by "tier" (critical 100%, batch 50%), fair by "customer"
/// of at most 10000, weight of customers.weight`.
fn write_requesters(
    f: &mut fmt::Formatter<'_>,
    rule: &RequesterRule,
    numbers: &LimiterConfig,
) -> fmt::Result {
    if let Some(key) = &rule.keys.class {
        write!(f, ", classes by {key:?}")?;
        let parts = rule.keys.class_names.iter().zip(numbers.classes.percents());
        for (number, (name, percent)) in parts.enumerate() {
            let before = if number == 0 { " (" } else { ", " };
            write!(f, "{before}{name} {percent}%")?;
        }
        f.write_str(")")?;
    }
    if let (Some(key), Some(keys)) = (&rule.keys.customer, numbers.fair_keys) {
        write!(f, ", fair by {key:?} of at most {keys}")?;
    }
    match &rule.weight {
        Some(column) => write!(f, ", weight of {column}"),
        None => Ok(()),
    }
}

/// Formats an adaptive limit as `, aimd from 8 to 512, target 200ms, increase 2`.
fn write_adaptive(f: &mut fmt::Formatter<'_>, adaptive: &AdaptiveConfig) -> fmt::Result {
    let AdaptiveConfig { algorithm, min, max, tuning } = adaptive;
    let algorithm = keywords::keyword_of(keywords::ALGORITHMS, *algorithm);
    write!(f, ", {algorithm} from {min} to {max}")?;
    let parameters: [(&str, Option<&dyn fmt::Display>); 8] = [
        ("target", tuning.target.as_ref().map(|it| it as _)),
        ("tolerance", tuning.tolerance.as_ref().map(|it| it as _)),
        ("increase", tuning.increase.as_ref().map(|it| it as _)),
        ("decrease", tuning.decrease.as_ref().map(|it| it as _)),
        ("window", tuning.window.as_ref().map(|it| it as _)),
        ("smoothing", tuning.smoothing.as_ref().map(|it| it as _)),
        ("probe interval", tuning.probe_interval.as_ref().map(|it| it as _)),
        ("probe depth", tuning.probe_depth.as_ref().map(|it| it as _)),
    ];
    let set = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
    set.into_iter().try_for_each(|(name, value)| write!(f, ", {name} {value}"))
}
