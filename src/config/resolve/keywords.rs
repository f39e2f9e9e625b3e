//! The permitted values of the fields of a limits file that have a closed list of values.
//!
//! Guarantees:
//! - The parser, the suggested fixes and the JSON Schema use the same list for a field.
//!
//! Not covered:
//! - The names of the fields (see [`crate::config::raw`]).

use jiff::civil::Weekday;

use crate::config::concurrency::{self, ConcurrencyFallback};
use crate::config::settings::nearest;
use crate::config::{ChargePolicy, FallbackMode, Unit};
use crate::kernel::concurrency::RetryAfterRule;
use crate::kernel::concurrency::adaptive::AdaptiveAlgorithm;
use crate::kernel::coordinator::aggregate::VoteAggregate;

/// The permitted keywords of one field, each with its meaning.
pub(crate) type Keywords<T> = [(&'static str, T)];

/// The keywords of `unit`, as in envoyproxy/ratelimit.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExcessKeyword {
    Charge,
    Refuse,
}

pub(crate) const ON_EXCESS: &Keywords<ExcessKeyword> =
    &[("charge", ExcessKeyword::Charge), ("refuse", ExcessKeyword::Refuse)];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModeKeyword {
    #[default]
    Exact,
    CachedDeny,
    Leased,
}

pub(crate) const MODES: &Keywords<ModeKeyword> = &[
    ("exact", ModeKeyword::Exact),
    ("cached_deny", ModeKeyword::CachedDeny),
    ("leased", ModeKeyword::Leased),
];

/// The keywords of `mode` in a `concurrency` block.
pub(crate) const CONCURRENCY_MODES: &Keywords<concurrency::ConcurrencyMode> = &[
    ("local", concurrency::ConcurrencyMode::Local),
    ("shared", concurrency::ConcurrencyMode::Shared),
    ("strict", concurrency::ConcurrencyMode::Strict),
];

/// The keywords of `on_store_failure` in a `concurrency` block.
pub(crate) const CONCURRENCY_FALLBACKS: &Keywords<ConcurrencyFallback> = &[
    ("deny", ConcurrencyFallback::Deny),
    ("local", ConcurrencyFallback::Local),
    ("allow", ConcurrencyFallback::Allow),
];

/// The keywords of `algorithm`, the algorithm of an adaptive limit.
pub(crate) const ALGORITHMS: &Keywords<AdaptiveAlgorithm> = &[
    ("gradient", AdaptiveAlgorithm::Gradient),
    ("gradient2", AdaptiveAlgorithm::Gradient2),
    ("aimd", AdaptiveAlgorithm::Aimd),
];

/// The keywords of `retry_after` in an `adaptive` block.
pub(crate) const RETRY_AFTER_RULES: &Keywords<RetryAfterRule> =
    &[("ignore", RetryAfterRule::Ignore), ("honour", RetryAfterRule::Honour)];

/// The classes of HTTP statuses in `overloaded_by`.
pub(crate) const STATUS_CLASSES: &Keywords<(u16, u16)> =
    &[("4xx", (400, 499)), ("5xx", (500, 599))];

/// The gRPC codes of errors, by the names of the gRPC specification.
pub(crate) const GRPC_CODES: &Keywords<u8> = &[
    ("CANCELLED", 1),
    ("UNKNOWN", 2),
    ("INVALID_ARGUMENT", 3),
    ("DEADLINE_EXCEEDED", 4),
    ("NOT_FOUND", 5),
    ("ALREADY_EXISTS", 6),
    ("PERMISSION_DENIED", 7),
    ("RESOURCE_EXHAUSTED", 8),
    ("FAILED_PRECONDITION", 9),
    ("ABORTED", 10),
    ("OUT_OF_RANGE", 11),
    ("UNIMPLEMENTED", 12),
    ("INTERNAL", 13),
    ("UNAVAILABLE", 14),
    ("DATA_LOSS", 15),
    ("UNAUTHENTICATED", 16),
];
/// The keywords of `aggregate`, the rule that combines the votes of the replicas.
pub(crate) const VOTE_AGGREGATES: &Keywords<VoteAggregate> =
    &[("median", VoteAggregate::Median), ("min", VoteAggregate::Min)];

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

/// Returns the meaning of a keyword, which must be in exactly this case.
pub(crate) fn parse_keyword<T: Copy>(words: &Keywords<T>, word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|&(_, meaning)| meaning)
}

/// Returns the unit with this name in upper or lower case. A blank before or after the name is
/// invalid.
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

/// Returns a suggested fix for the unknown keyword `word`: the keyword that resembles it most, or
/// else all keywords.
pub(crate) fn suggest<T>(words: &Keywords<T>, word: &str) -> String {
    if let Some(near) = nearest(&word.to_lowercase(), words.iter().map(|&(known, _)| known)) {
        return format!("did you mean `{near}`?");
    }
    let all: Vec<_> = words.iter().map(|(known, _)| format!("`{known}`")).collect();
    format!("use one of {}", all.join(", "))
}
