//! The keywords of limits files, for fields with a closed list of values.
//!
//! Guarantees:
//! - One list per field serves the parser, the suggested fixes and the schema.
//!
//! Not covered:
//! - Field names (see [`crate::config::raw`]).

use jiff::civil::Weekday;

use crate::config::concurrency::{self, ConcurrencyFallback};
use crate::config::settings::nearest;
use crate::config::{ChargePolicy, FallbackMode, Unit};
use crate::kernel::concurrency::adaptive::AdaptiveAlgorithm;

/// A closed list of keywords and their meanings.
pub(crate) type Keywords<T> = [(&'static str, T)];

/// The units of envoyproxy/ratelimit.
pub(crate) const UNITS: &Keywords<Unit> = &[
    ("second", Unit::Second),
    ("minute", Unit::Minute),
    ("hour", Unit::Hour),
    ("day", Unit::Day),
    ("week", Unit::Week),
    ("month", Unit::Month),
    ("year", Unit::Year),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StrategyKeyword {
    #[default]
    FixedWindow,
    Gcra,
    SlidingWindow,
    SlidingLog,
}

pub(crate) const STRATEGIES: &Keywords<StrategyKeyword> = &[
    ("fixed_window", StrategyKeyword::FixedWindow),
    ("gcra", StrategyKeyword::Gcra),
    ("sliding_window", StrategyKeyword::SlidingWindow),
    ("sliding_log", StrategyKeyword::SlidingLog),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModeKeyword {
    #[default]
    Strict,
    CachedDeny,
    Leased,
}

pub(crate) const MODES: &Keywords<ModeKeyword> = &[
    ("strict", ModeKeyword::Strict),
    ("cached_deny", ModeKeyword::CachedDeny),
    ("leased", ModeKeyword::Leased),
];

/// `mode` of a concurrency limit.
pub(crate) const CONCURRENCY_MODES: &Keywords<concurrency::ConcurrencyMode> = &[
    ("local", concurrency::ConcurrencyMode::Local),
    ("leased", concurrency::ConcurrencyMode::Leased),
    ("strict", concurrency::ConcurrencyMode::Strict),
];

/// `on_backend_failure` of a concurrency limit.
pub(crate) const CONCURRENCY_FALLBACKS: &Keywords<ConcurrencyFallback> = &[
    ("deny", ConcurrencyFallback::Deny),
    ("local", ConcurrencyFallback::Local),
    ("allow", ConcurrencyFallback::Allow),
];

/// `policy` of a concurrency limit.
pub(crate) const ALGORITHMS: &Keywords<AdaptiveAlgorithm> = &[
    ("gradient", AdaptiveAlgorithm::Gradient),
    ("gradient2", AdaptiveAlgorithm::Gradient2),
    ("aimd", AdaptiveAlgorithm::Aimd),
];

pub(crate) const FALLBACK_MODES: &Keywords<FallbackMode> = &[
    ("error", FallbackMode::Error),
    ("allow", FallbackMode::Allow),
    ("deny", FallbackMode::Deny),
    ("local", FallbackMode::Local),
];

pub(crate) const CHARGE_POLICIES: &Keywords<ChargePolicy> =
    &[("each", ChargePolicy::Each), ("all_or_nothing", ChargePolicy::AllOrNothing)];

pub(crate) const WEEKDAYS: &Keywords<Weekday> = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// Returns the meaning of a keyword; case-sensitive.
pub(crate) fn parse_keyword<T: Copy>(words: &Keywords<T>, word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|&(_, meaning)| meaning)
}

/// Returns the unit with this name, in any case. Does not trim blanks.
pub(crate) fn parse_unit(word: &str) -> Option<Unit> {
    let upper = word.to_uppercase();
    UNITS.iter().find(|(known, _)| known.to_uppercase() == upper).map(|&(_, unit)| unit)
}

impl std::fmt::Display for StrategyKeyword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(keyword_of(STRATEGIES, *self))
    }
}

impl std::fmt::Display for ModeKeyword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(keyword_of(MODES, *self))
    }
}

pub(crate) fn keyword_of<T: Copy + PartialEq>(words: &Keywords<T>, meaning: T) -> &'static str {
    words.iter().find(|(_, known)| *known == meaning).map_or("", |&(word, _)| word)
}

/// Suggests the nearest keyword, or else lists all.
pub(crate) fn suggest<T>(words: &Keywords<T>, word: &str) -> String {
    if let Some(near) = nearest(&word.to_lowercase(), words.iter().map(|&(known, _)| known)) {
        return format!("did you mean `{near}`?");
    }
    let all: Vec<_> = words.iter().map(|(known, _)| format!("`{known}`")).collect();
    format!("one of {}", all.join(", "))
}
