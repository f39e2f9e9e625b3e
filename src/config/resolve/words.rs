//! The keywords of limits files, for fields with a closed list of values.
//!
//! Guarantees:
//! - One list per field serves the parser, the suggested fixes and the schema.
//!
//! Not covered:
//! - Field names (see [`crate::config::raw`]).

use jiff::civil::Weekday;

use crate::config::concurrency::{self, OnFailure};
use crate::config::settings::nearest;
use crate::config::{Charging, OnBackendFailure, Unit};
use crate::kernel::concurrency::policy::Law;

/// A closed list of keywords and their meanings.
pub(crate) type Words<T> = [(&'static str, T)];

/// The units of envoyproxy/ratelimit.
pub(crate) const UNITS: &Words<Unit> = &[
    ("second", Unit::Second),
    ("minute", Unit::Minute),
    ("hour", Unit::Hour),
    ("day", Unit::Day),
    ("week", Unit::Week),
    ("month", Unit::Month),
    ("year", Unit::Year),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StrategyWord {
    #[default]
    FixedWindow,
    Gcra,
    SlidingWindow,
    SlidingLog,
}

pub(crate) const STRATEGIES: &Words<StrategyWord> = &[
    ("fixed_window", StrategyWord::FixedWindow),
    ("gcra", StrategyWord::Gcra),
    ("sliding_window", StrategyWord::SlidingWindow),
    ("sliding_log", StrategyWord::SlidingLog),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModeWord {
    #[default]
    Strict,
    CachedDeny,
    Leased,
}

pub(crate) const MODES: &Words<ModeWord> = &[
    ("strict", ModeWord::Strict),
    ("cached_deny", ModeWord::CachedDeny),
    ("leased", ModeWord::Leased),
];

/// `mode` of a concurrency limit.
pub(crate) const CEILING_MODES: &Words<concurrency::Mode> = &[
    ("local", concurrency::Mode::Local),
    ("leased", concurrency::Mode::Leased),
    ("strict", concurrency::Mode::Strict),
];

/// `on_backend_failure` of a concurrency limit.
pub(crate) const CEILING_FAILURES: &Words<OnFailure> =
    &[("deny", OnFailure::Deny), ("local", OnFailure::Local), ("allow", OnFailure::Allow)];

/// `policy` of a concurrency limit.
pub(crate) const POLICIES: &Words<Law> =
    &[("gradient", Law::Gradient), ("gradient2", Law::Gradient2), ("aimd", Law::Aimd)];

pub(crate) const FAILURES: &Words<OnBackendFailure> = &[
    ("error", OnBackendFailure::Error),
    ("allow", OnBackendFailure::Allow),
    ("deny", OnBackendFailure::Deny),
    ("local", OnBackendFailure::Local),
];

pub(crate) const CHARGES: &Words<Charging> =
    &[("each", Charging::Each), ("all_or_nothing", Charging::AllOrNothing)];

pub(crate) const WEEKDAYS: &Words<Weekday> = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// Returns the meaning of a keyword; case-sensitive.
pub(crate) fn meaning<T: Copy>(words: &Words<T>, word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|&(_, meaning)| meaning)
}

/// Returns the unit with this name, in any case. Does not trim blanks.
pub(crate) fn unit(word: &str) -> Option<Unit> {
    let upper = word.to_uppercase();
    UNITS.iter().find(|(known, _)| known.to_uppercase() == upper).map(|&(_, unit)| unit)
}

impl std::fmt::Display for StrategyWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(name(STRATEGIES, *self))
    }
}

impl std::fmt::Display for ModeWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(name(MODES, *self))
    }
}

pub(crate) fn name<T: Copy + PartialEq>(words: &Words<T>, meaning: T) -> &'static str {
    words.iter().find(|(_, known)| *known == meaning).map_or("", |&(word, _)| word)
}

/// Suggests the nearest keyword, or else lists all.
pub(crate) fn cure<T>(words: &Words<T>, word: &str) -> String {
    if let Some(near) = nearest(&word.to_lowercase(), words.iter().map(|&(known, _)| known)) {
        return format!("did you mean `{near}`?");
    }
    let all: Vec<_> = words.iter().map(|(known, _)| format!("`{known}`")).collect();
    format!("one of {}", all.join(", "))
}
