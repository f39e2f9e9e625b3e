//! The permitted values of enumerated fields of a limits file, such as `strategy`.
//!
//! Guarantees:
//! - The parser, the suggested fixes and the JSON Schema use the same list for a field.

use jiff::civil::Weekday;

use crate::config::concurrency::{self, ConcurrencyFallback};
use crate::config::settings::nearest;
use crate::config::{ChargePolicy, FallbackMode, Unit};
use crate::kernel::concurrency::adaptive::AdaptiveAlgorithm;

/// The permitted keywords of one field, each with its meaning.
pub(crate) type Keywords<T> = [(&'static str, T)];

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

pub(crate) const CONCURRENCY_MODES: &Keywords<concurrency::ConcurrencyMode> = &[
    ("local", concurrency::ConcurrencyMode::Local),
    ("leased", concurrency::ConcurrencyMode::Leased),
    ("strict", concurrency::ConcurrencyMode::Strict),
];

pub(crate) const CONCURRENCY_FALLBACKS: &Keywords<ConcurrencyFallback> = &[
    ("deny", ConcurrencyFallback::Deny),
    ("local", ConcurrencyFallback::Local),
    ("allow", ConcurrencyFallback::Allow),
];

/// The keywords of `policy`, the algorithm of an adaptive limit.
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

pub(crate) fn parse_keyword<T: Copy>(keywords: &Keywords<T>, text: &str) -> Option<T> {
    keywords.iter().find(|(keyword, _)| *keyword == text).map(|&(_, meaning)| meaning)
}

/// Returns the unit with the name `text`, in any case and without blanks around it.
pub(crate) fn parse_unit(text: &str) -> Option<Unit> {
    let upper = text.to_uppercase();
    UNITS.iter().find(|(name, _)| name.to_uppercase() == upper).map(|&(_, unit)| unit)
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

pub(crate) fn keyword_of<T: Copy + PartialEq>(keywords: &Keywords<T>, value: T) -> &'static str {
    keywords.iter().find(|(_, meaning)| *meaning == value).map_or("", |&(keyword, _)| keyword)
}

/// Returns the suggested fix for the unknown keyword `text`: a similar keyword, or else all.
pub(crate) fn suggest<T>(keywords: &Keywords<T>, text: &str) -> String {
    let known = keywords.iter().map(|&(keyword, _)| keyword);
    if let Some(similar) = nearest(&text.to_lowercase(), known) {
        return format!("did you mean `{similar}`?");
    }
    let all: Vec<_> = keywords.iter().map(|(keyword, _)| format!("`{keyword}`")).collect();
    format!("one of {}", all.join(", "))
}
