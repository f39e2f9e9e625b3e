//! Formats rate limits as text for logs, the command `explain` and the admin page `/config`.
//!
//! Guarantees:
//! - Two limits with different numbers or keywords have different text descriptions.

use std::fmt;

use super::calendar::WindowStartDay;
use super::resolve::keywords;
use super::{Calendar, FallbackMode, Limit, LimitMode, LimitWindow, Rule};
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Hits;

/// Formats the rule's limit and options: `10 per second, fixed_window, named "x", shadow`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            Some(limit) => limit.fmt(f)?,
            None => f.write_str("unlimited")?,
        }
        if let Some(name) = &self.name {
            write!(f, ", named {name:?}")?;
        }
        if !self.replaces.is_empty() {
            write!(f, ", replaces {:?}", self.replaces)?;
        }
        let flags = [
            (self.shadow, ", shadow"),
            (self.quota, ", quota"),
            (self.detailed_metric, ", detailed metric"),
            (self.metadata.is_some(), ", with metadata"),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, text)| f.write_str(text))
    }
}

/// Formats the limit as `600 per minute, gcra, burst 50`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}, {}", self.requests, self.window, strategy_keyword(&self.strategy))?;
        if let Strategy::Gcra(gcra) = &self.strategy {
            write!(f, ", burst {}", gcra.burst())?;
        }
        if self.mode != LimitMode::Strict {
            write!(f, ", mode {}", self.mode)?;
        }
        match self.on_backend_failure {
            FallbackMode::Error => Ok(()),
            fallback => write!(f, ", on backend failure {fallback}"),
        }
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

/// Formats the mode as `cached_deny` or `leased, max_overshoot 12`, where 12 is a number of hits.
impl fmt::Display for LimitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strict => keywords::ModeKeyword::Strict.fmt(f),
            Self::CachedDeny => keywords::ModeKeyword::CachedDeny.fmt(f),
            Self::Leased(LeaseTerms { overshoot, sizing, .. }) => {
                let hits = match overshoot {
                    Overshoot::AtMost(hits) => *hits,
                    Overshoot::InWindow => Hits(0),
                };
                write!(f, "{}, max_overshoot {}", keywords::ModeKeyword::Leased, hits.0)?;
                match sizing {
                    LeaseSizing::Learned => Ok(()),
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

/// Formats the start of the calendar's windows as `from day 15 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.time_zone.iana_name().unwrap_or("UTC");
        match self.start_day {
            WindowStartDay::Day => write!(f, "from midnight in {zone}"),
            WindowStartDay::Week(day) => {
                write!(f, "from {} in {zone}", keywords::keyword_of(keywords::WEEKDAYS, day))
            }
            WindowStartDay::Month(31) => write!(f, "from its last day in {zone}"),
            WindowStartDay::Month(day) => write!(f, "from day {day} in {zone}"),
            WindowStartDay::Year { month, day } => write!(f, "from {month:02}-{day:02} in {zone}"),
        }
    }
}

/// Returns the keyword of a strategy in a limits file: `gcra` or `fixed_window`, for example.
#[must_use]
pub fn strategy_keyword(strategy: &Strategy) -> &'static str {
    use keywords::StrategyKeyword::{FixedWindow, Gcra, SlidingLog, SlidingWindow};
    let keyword = match strategy {
        Strategy::Gcra(_) => Gcra,
        Strategy::FixedWindow(_) => FixedWindow,
        Strategy::SlidingWindow(_) => SlidingWindow,
        Strategy::SlidingLog(_) => SlidingLog,
    };
    keywords::keyword_of(keywords::STRATEGIES, keyword)
}
