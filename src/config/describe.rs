//! Formats limits as text, for logs, `explain` and `/config`.
//!
//! Guarantees:
//! - Limits that differ in a number or a keyword have different descriptions.
//!
//! Not covered:
//! - The state of counters.

use std::fmt;

use super::calendar::Starts;
use super::resolve::words;
use super::{Calendar, Limit, Mode, OnBackendFailure, Rule, Unit, Window};
use crate::kernel::lease::sizer::Size;
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Hits;

/// The limit and the options of the rule: `10 per second, fixed_window, named "x", shadow`.
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
        let marks = [
            (self.shadow, ", shadow"),
            (self.quota, ", quota"),
            (self.detailed_metric, ", detailed metric"),
            (self.metadata.is_some(), ", with metadata"),
        ];
        marks.into_iter().filter(|(said, _)| *said).try_for_each(|(_, word)| f.write_str(word))
    }
}

/// `600 per minute, gcra, burst 50`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}, {}", self.requests, self.window, strategy_word(&self.strategy))?;
        if let Strategy::Gcra(gcra) = &self.strategy {
            write!(f, ", burst {}", gcra.burst())?;
        }
        if self.mode != Mode::Strict {
            write!(f, ", mode {}", self.mode)?;
        }
        match self.on_backend_failure {
            OnBackendFailure::Error => Ok(()),
            failure => write!(f, ", on backend failure {failure}"),
        }
    }
}

/// `minute`, `90s`, or `month from day 15 in Europe/Berlin`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(unit) => unit.fmt(f),
            Self::Per(period) => period.fmt(f),
            Self::Calendar(unit, calendar) => write!(f, "{unit} {calendar}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(words::name(words::UNITS, *self))
    }
}

/// `cached_deny`, or `leased, max_overshoot 12`. A percentage is shown in hits.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strict => words::ModeWord::Strict.fmt(f),
            Self::CachedDeny => words::ModeWord::CachedDeny.fmt(f),
            Self::Leased(Terms { overshoot, size, .. }) => {
                let hits = match overshoot {
                    Overshoot::AtMost(hits) => *hits,
                    Overshoot::InWindow => Hits(0),
                };
                write!(f, "{}, max_overshoot {}", words::ModeWord::Leased, hits.0)?;
                match size {
                    Size::Learned => Ok(()),
                    Size::Fixed(hits) => write!(f, ", lease_hits {}", hits.0),
                }
            }
        }
    }
}

impl fmt::Display for OnBackendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(words::name(words::FAILURES, *self))
    }
}

/// `from day 15 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.time_zone.iana_name().unwrap_or("UTC");
        match self.starts {
            Starts::Day => write!(f, "from midnight in {zone}"),
            Starts::Week(day) => {
                write!(f, "from {} in {zone}", words::name(words::WEEKDAYS, day))
            }
            Starts::Month(31) => write!(f, "from its last day in {zone}"),
            Starts::Month(day) => write!(f, "from day {day} in {zone}"),
            Starts::Year { month, day } => write!(f, "from {month:02}-{day:02} in {zone}"),
        }
    }
}

/// Returns the `strategy` keyword of a limits file.
#[must_use]
pub fn strategy_word(strategy: &Strategy) -> &'static str {
    use words::StrategyWord::{FixedWindow, Gcra, SlidingLog, SlidingWindow};
    let word = match strategy {
        Strategy::Gcra(_) => Gcra,
        Strategy::FixedWindow(_) => FixedWindow,
        Strategy::SlidingWindow(_) => SlidingWindow,
        Strategy::SlidingLog(_) => SlidingLog,
    };
    words::name(words::STRATEGIES, word)
}
