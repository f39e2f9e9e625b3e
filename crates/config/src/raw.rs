//! Reads a limits file into typed fields with positions. Only the syntax and the types are
//! verified.
//!
//! Guarantees:
//! - Accepts the encodings, keys and scalar types that envoyproxy/ratelimit accepts, and
//!   Sluicegate's own keys.
//! - Finds all problems of a file at once; only a syntax error ends the reading.
//! - A block with an unreadable field is marked as incomplete.
//!
//! Not covered:
//! - The meaning of the fields (see [`super::resolve`]).

mod budget;
mod calendar;
mod concurrency;
mod document;
mod field_name;
mod fields;
mod fixes;
mod foreign;
mod limits_block;
mod metadata;
mod names;
mod pace;
mod penalty;
mod read;
mod schema;
mod text_list;
mod text_map;
mod typed;

use schemars::JsonSchema;

use super::diagnostic::{Span, Spanned};
pub use budget::{Budget, Usage};
pub use calendar::Calendar;
pub use concurrency::{Adaptive, Classes, Concurrency, Fair, Queue, Reject};
pub use pace::{AdaptiveRate, Wait};
pub use penalty::Penalty;
pub use read::{InvalidFile, read, source};
pub use text_list::{TextList, TextMap};

/// The fix for two limits in one descriptor.
pub(super) const TWO_LIMITS_FIX: &str = "for several limits, use the list `rate_limits`";

/// A limits file, which contains one domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["domain"]), transform = schema::parking)]
pub struct File {
    /// `true` if a field, at any depth, could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The domain, which the proxy sends in each check. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub domain: Spanned<String>,
    /// The rules for the first entry of a descriptor.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// The limits that are charged if at least one limit of a check denies. `each`, the default,
    /// charges all limits; `all_or_nothing` charges none.
    #[schemars(schema_with = "schema::charge")]
    pub charge: Option<Spanned<String>>,
    /// The key of an entry. In a Redis Cluster, counters with the same value of this entry are in
    /// one slot, so that one script can charge them together.
    #[schemars(schema_with = "schema::text")]
    pub colocate: Option<Spanned<String>>,
    /// The defaults for every limit of the domain.
    pub defaults: Option<Defaults>,
    /// How the requests of the domain use their budgets.
    pub usage: Option<Usage>,
}

/// The defaults for every limit of a domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Defaults {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The way to count hits: `fixed_window`, `sliding_window`, `sliding_log` or `gcra`.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// The effect of a check for more hits than remain. `charge`: denied and charged in full, so
    /// that the excess delays later checks, and a check of 0 hits is denied while no hit remains.
    /// `refuse`: denied and charged nothing; not for `fixed_window`. Default: `fixed_window` counts
    /// denied hits, the other strategies refuse them.
    #[schemars(schema_with = "schema::on_excess")]
    pub on_excess: Option<Spanned<String>>,
    /// The decision while the store does not answer, of rate limits, concurrency limits and
    /// budgets. Default: `error` for rate limits, as in envoyproxy/ratelimit, and for budgets;
    /// `local` for concurrency limits, also if this is `error`. `local` is `deny` for budgets.
    #[schemars(schema_with = "schema::failure")]
    pub on_store_failure: Option<Spanned<String>>,
    /// The decisions that a replica makes without a store call: none (`exact`), denials that it
    /// remembers (`cached_deny`), or checks that its lease covers (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// For `leased`: the most hits above the limit that the whole fleet may allow, as a number or a
    /// percentage of the limit such as `2%`.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
}

/// One node of the descriptor tree. It may have a rate limit, a concurrency limit and a budget.
#[expect(clippy::struct_excessive_bools, reason = "the language's own switches, each by its name")]
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["key"]))]
pub struct Descriptor {
    /// The position of the node: its first key.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The key that an entry must have, exactly. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub key: Spanned<String>,
    /// The value that an entry must have, exactly, or a pattern if it contains `*`. Without a
    /// value, the rule matches all values that no other rule with this key matches.
    #[schemars(schema_with = "schema::text")]
    pub value: Spanned<String>,
    /// The network of the addresses that an entry must have, such as `10.0.0.0/8`, instead of a
    /// value. The longest prefix that contains an address matches.
    #[schemars(schema_with = "schema::network")]
    pub network: Option<Spanned<String>>,
    /// For `network`: the addresses with one counter. `address`, the default: each has a counter of
    /// its own. `/64`: those with equal first 64 bits. `network`: all.
    #[schemars(schema_with = "schema::counter_per")]
    pub counter_per: Option<Spanned<String>>,
    /// The rate limit of descriptors whose last entry matches here. Without it, they have no rate
    /// limit.
    pub rate_limit: Option<RateLimit>,
    /// Several rate limits, instead of `rate_limit`: at most 8, each with its own counter, period
    /// and name. A check is denied if one of them denies. The default name is `per-` and the
    /// period, such as `per-second`.
    #[schemars(with = "Option<Vec<RateLimit>>")]
    pub rate_limits: Option<Spanned<Vec<RateLimit>>>,
    /// The rules for the next entry of the descriptor.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// The rule counts and reports, but never denies.
    #[schemars(with = "Option<bool>")]
    pub shadow_mode: bool,
    /// Adds the rule to the quota group of a check: the group denies only if all its limits deny.
    #[schemars(with = "Option<bool>")]
    pub quota_mode: bool,
    /// Adds the key and value of every entry of the descriptor, as received, to the names of the
    /// metrics.
    #[schemars(with = "Option<bool>")]
    pub detailed_metric: bool,
    /// Adds the value of this entry, as received, to the names of the metrics.
    #[schemars(with = "Option<bool>")]
    pub value_to_metric: bool,
    /// All values that match the pattern share one counter. Without it, each value has a counter of
    /// its own.
    #[schemars(with = "Option<bool>")]
    pub share_threshold: Spanned<bool>,
    /// Free-form data that a check returns to the proxy unless the descriptor is over its limit.
    #[schemars(schema_with = "schema::metadata")]
    pub metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    /// The limit on requests in flight for descriptors whose last entry matches here, beside or
    /// instead of a rate limit.
    pub concurrency: Option<Concurrency>,
    /// The budget of descriptors that match here, also if further entries follow.
    pub budget: Option<Budget>,
}

/// The rate limit of a rule.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, transform = schema::one_period)]
pub struct RateLimit {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The hits that are allowed in each unit or period. 0 denies everything.
    #[schemars(schema_with = "schema::requests")]
    pub requests_per_unit: Spanned<u32>,
    /// The unit: second, minute, hour, day, week, month or year, in any case. Without `calendar`, a
    /// month has 30 days and a year has 365.
    #[schemars(schema_with = "schema::unit")]
    pub unit: Spanned<String>,
    /// Allows everything and counts nothing. It is used instead of a unit.
    #[schemars(with = "Option<bool>")]
    pub unlimited: Spanned<bool>,
    /// The name of the rule. Decisions report it, and `replaces` refers to it.
    #[schemars(schema_with = "schema::text")]
    pub name: Spanned<String>,
    /// The names of other rules that do not apply in a check in which this rule matches.
    #[schemars(schema_with = "schema::replaces")]
    pub replaces: Vec<Spanned<String>>,
    /// The period, instead of a unit: whole numbers with ms, s, m, h or d, such as `90s` or
    /// `1h30m`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub per: Option<Spanned<String>>,
    /// The way to count hits: `fixed_window`, `sliding_window`, `sliding_log` or `gcra`. Default:
    /// the domain's default, or `fixed_window`.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// For `gcra`: the hits that are allowed at one instant. Default: `requests_per_unit`.
    #[schemars(schema_with = "schema::optional_count")]
    pub burst: Option<Spanned<u32>>,
    /// The effect of a check for more hits than remain. `charge`: denied and charged in full, so
    /// that the excess delays later checks, and a check of 0 hits is denied while no hit remains.
    /// `refuse`: denied and charged nothing; not for `fixed_window`. Default: `fixed_window` counts
    /// denied hits, the other strategies refuse them.
    #[schemars(schema_with = "schema::on_excess")]
    pub on_excess: Option<Spanned<String>>,
    /// The decisions that a replica makes without a store call: none (`exact`), denials that it
    /// remembers (`cached_deny`), or checks that its lease covers (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// For `leased`: the most hits above the limit that the whole fleet may allow, as a number or a
    /// percentage of the limit such as `2%`.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
    /// For `leased`: the hits that a replica borrows at a time. Default: learned from demand.
    #[schemars(schema_with = "schema::optional_count")]
    pub lease_hits: Option<Spanned<u32>>,
    /// The decision while the store does not answer. Default: that of `defaults`, otherwise
    /// `error`, as in envoyproxy/ratelimit.
    #[schemars(schema_with = "schema::failure")]
    pub on_store_failure: Option<Spanned<String>>,
    /// For `fixed_window` per day, week, month or year: windows that follow the calendar of a time
    /// zone.
    pub calendar: Option<Calendar>,
    /// Paces requests, and adapts the rate to the upstream's overload answers. `requests_per_unit` is the
    /// initial rate. Only for requests whose end is reported, as for `concurrency`.
    pub adaptive: Option<AdaptiveRate>,
    /// Paces requests: each waits for its turn. Only for requests whose end is reported, as for
    /// `concurrency`.
    pub wait: Option<Wait>,
    /// The column of a table (setting `tables`) with the number of this limit for each id, such as
    /// `customers.api`. An id without a row has `requests_per_unit`.
    #[schemars(schema_with = "schema::table_column")]
    pub from: Option<Spanned<String>>,
    /// For `from`: the key of the entry whose value is the id. Default: the key of this rule.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
    /// Bans a key that this limit denies repeatedly, at all replicas.
    pub penalty: Option<Penalty>,
}

impl RateLimit {
    /// The field that makes this limit a pace, with its position; `None` if it counts in windows.
    #[must_use]
    pub fn pace_field(&self) -> Option<(&'static str, Span)> {
        let adaptive = self.adaptive.as_ref().map(|block| ("adaptive", block.span));
        adaptive.or_else(|| self.wait.as_ref().map(|block| ("wait", block.span)))
    }
}
