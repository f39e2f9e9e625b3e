//! The permitted values of the fields of a limits file that have a closed list of values.
//!
//! Guarantees:
//! - The parser, the suggested fixes and the JSON Schema use the same list for a field.
//!
//! Not covered:
//! - The names of the fields (see [`crate::raw`]).

use jiff::civil::Weekday;

use crate::budget::Estimate;
use crate::concurrency::{self, ConcurrencyFallback};
use crate::kernel::budget::OnExpiry;
use crate::kernel::concurrency::RetryAfterRule;
use crate::kernel::concurrency::adaptive::AdaptiveAlgorithm;
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::settings::nearest;
use crate::{ChargePolicy, FallbackMode, Unit};

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

/// The keywords of `algorithm` in the `adaptive` block of a rate limit.
pub(crate) const RATE_ALGORITHMS: &Keywords<()> = &[("aimd", ())];

/// The keywords of `paused_by` in an `adaptive` block.
pub(crate) const RETRY_AFTER_RULES: &Keywords<RetryAfterRule> =
    &[("none", RetryAfterRule::Ignore), ("retry_after", RetryAfterRule::Honour)];

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

/// The keywords of `estimate`, beside numbers of tokens.
pub(crate) const ESTIMATES: &Keywords<Estimate> =
    &[("max_tokens", Estimate::MaxTokens), ("learn", Estimate::Learn)];

/// The keywords of `on_expiry`.
pub(crate) const ON_EXPIRY: &Keywords<OnExpiry> =
    &[("charge", OnExpiry::Charge), ("release", OnExpiry::Release)];

/// The keywords of `on_store_failure` in a `budget` block. A replica alone does not know what
/// others spent, so `local` is none of them.
pub(crate) const BUDGET_FALLBACKS: &Keywords<FallbackMode> =
    &[("error", FallbackMode::Error), ("allow", FallbackMode::Allow), ("deny", FallbackMode::Deny)];

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

/// The keywords of other products, and ours with the same meaning. A word with several meanings has
/// a row for each; the field decides.
pub(crate) static SYNONYMS: &[(&[&str], &str)] = &[
    (&["token_bucket", "leaky_bucket", "tokenbucket", "leakybucket", "bucket"], "gcra"),
    (&["generic_cell_rate_algorithm", "greedy", "smooth"], "gcra"),
    (&["rolling_window", "sliding", "rolling", "sliding_window_counter"], "sliding_window"),
    (&["sliding_counter", "sliding_windows"], "sliding_window"),
    (&["sliding_window_log", "moving_window", "exact", "log"], "sliding_log"),
    (&["fixed", "window", "fixed_windows", "counter", "interval", "intervally"], "fixed_window"),
    (&["s", "sec", "secs", "seconds", "per_second"], "second"),
    (&["m", "min", "mins", "minutes", "per_minute", "minutely"], "minute"),
    (&["h", "hr", "hrs", "hours", "per_hour", "hourly"], "hour"),
    (&["d", "days", "per_day", "daily"], "day"),
    (&["w", "weeks", "per_week", "weekly"], "week"),
    (&["mo", "months", "per_month", "monthly"], "month"),
    (&["y", "years", "per_year", "yearly", "annually"], "year"),
    (&["open", "fail_open", "failopen", "ignore", "pass", "permit", "accept"], "allow"),
    (&["closed", "fail_closed", "failclosed", "block", "reject", "refuse"], "deny"),
    (&["fail", "500"], "error"),
    (&["memory", "in_memory", "in-memory"], "local"),
    (&["redis", "cluster", "global", "sync", "exact"], "strict"),
    (&["async", "eventual", "lazy", "batched", "local", "approximate"], "leased"),
    (&["cached", "deny_cache"], "cached_deny"),
    (&["global", "fleet", "distributed"], "shared"),
    (&["vegas", "gradient_2"], "gradient2"),
    (&["additive", "tcp"], "aimd"),
    (&["drain", "drain_over_limit", "count"], "charge"),
    (&["learned", "auto", "adaptive", "dynamic"], "learn"),
    (&["max_output_tokens", "max_completion_tokens", "max"], "max_tokens"),
    (&["spend", "consume", "keep"], "charge"),
    (&["refund", "return", "cancel", "free"], "release"),
    (&["mon"], "monday"),
    (&["tue", "tues"], "tuesday"),
    (&["wed"], "wednesday"),
    (&["thu", "thurs"], "thursday"),
    (&["fri"], "friday"),
    (&["sat"], "saturday"),
    (&["sun"], "sunday"),
];

/// Returns the keyword of `words` with the meaning of another product's word. `word` is in lower
/// case.
pub(crate) fn synonym<T>(words: &Keywords<T>, word: &str) -> Option<&'static str> {
    let rows = SYNONYMS.iter().filter(|(others, _)| others.contains(&word));
    let mut ours = rows.map(|&(_, ours)| ours);
    ours.find(|ours| words.iter().any(|(known, _)| known == ours))
}

/// Returns the unit that a word or an abbreviation such as `s` or `minutes` names.
pub(crate) fn unit_of(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let own = UNITS.iter().map(|&(known, _)| known).find(|known| *known == word);
    own.or_else(|| synonym(UNITS, &word))
}

/// Returns a suggested fix for the unknown keyword `word`: the keyword with its meaning, the one
/// that resembles it most, or else all keywords.
pub(crate) fn suggest<T>(words: &Keywords<T>, word: &str) -> String {
    let lower = word.trim().to_lowercase();
    let meant = synonym(words, &lower.replace(['-', ' '], "_"));
    if let Some(near) = meant.or_else(|| nearest(&lower, words.iter().map(|&(known, _)| known))) {
        return format!("did you mean `{near}`?");
    }
    let all: Vec<_> = words.iter().map(|(known, _)| format!("`{known}`")).collect();
    format!("use one of {}", all.join(", "))
}
