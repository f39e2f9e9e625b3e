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
mod document;
mod field_name;
mod fields;
mod fixes;
mod foreign;
mod limits_block;
mod metadata;
mod names;
mod read;
mod schema;
mod text_list;
mod typed;

use schemars::JsonSchema;

use super::diagnostic::{Span, Spanned};
pub use budget::{Budget, Usage};
pub use calendar::Calendar;
pub use read::{InvalidFile, read, source};
pub use text_list::TextList;

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
    /// The column of a table (setting `tables`) with the number of this limit for each id, such as
    /// `customers.api`. An id without a row has `requests_per_unit`.
    #[schemars(schema_with = "schema::table_column")]
    pub from: Option<Spanned<String>>,
    /// For `from`: the key of the entry whose value is the id. Default: the key of this rule.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
}

/// A limit on requests in flight.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["limit"]))]
pub struct Concurrency {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The largest number of requests in flight. With `adaptive`, this is the initial limit.
    #[schemars(schema_with = "schema::at_least_one")]
    pub limit: Option<Spanned<u32>>,
    /// Adapts the limit to measured latency.
    pub adaptive: Option<Adaptive>,
    /// The replicas to which the limit applies. `shared`, the default with a shared store: the
    /// whole fleet, split into shares. `strict`, for limits too small to split: the whole fleet,
    /// with a store call for each request. `local`: each replica has the whole limit for itself.
    #[schemars(schema_with = "schema::concurrency_mode")]
    pub mode: Option<Spanned<String>>,
    /// The limit of a replica whose share expired because the store does not answer. `deny`: 0.
    /// `local`: at most its last fair share. `allow`: the whole limit for this replica. Default:
    /// that of `defaults`, otherwise `local`.
    #[schemars(schema_with = "schema::concurrency_failure")]
    pub on_store_failure: Option<Spanned<String>>,
    /// The queue of requests that wait for a permit. Default: no queue.
    pub queue: Option<Queue>,
    /// The time after which a permit is free again if its release never arrives. Default: 60s.
    #[schemars(schema_with = "schema::optional_duration")]
    pub max_duration: Option<Spanned<String>>,
    /// The response to a request that gets no permit.
    pub reject: Option<Reject>,
    /// The column of a table (setting `tables`) with the number of this limit for each id, such as
    /// `customers.api`. An id without a row has `limit`.
    #[schemars(schema_with = "schema::table_column")]
    pub from: Option<Spanned<String>>,
    /// For `from`: the key of the entry whose value is the id. Default: the key of this rule.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
}

/// Adapts a concurrency limit to measured latency.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Adaptive {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The algorithm that computes the limit: `gradient`, `gradient2` or `aimd`. Default:
    /// `gradient`.
    #[schemars(schema_with = "schema::algorithm")]
    pub algorithm: Option<Spanned<String>>,
    /// The lower bound of the limit. Default: 1.
    #[schemars(schema_with = "schema::optional_count")]
    pub min: Option<Spanned<u32>>,
    /// The upper bound of the limit. Default: 1000, or `limit` if that is larger.
    #[schemars(schema_with = "schema::optional_count")]
    pub max: Option<Spanned<u32>>,
    /// The answers of the upstream that lower the limit: HTTP statuses from 400 to 599, `4xx`,
    /// `5xx`, and gRPC codes by name. Other 429, 5xx and gRPC errors do not count. Default: 429,
    /// `5xx`, `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    #[schemars(schema_with = "schema::overloaded_by")]
    pub overloaded_by: Option<Spanned<TextList>>,
    /// The header of such an answer that pauses the growth of the limit. `retry_after`: the limit
    /// does not grow for that time, at most 60 s. Default: `none`.
    #[schemars(schema_with = "schema::paused_by")]
    pub paused_by: Option<Spanned<String>>,
    /// The mean latency that requests must not exceed, `1ms` to `1h`: above it the limit falls, and
    /// above nine tenths of it the limit does not grow. Default: none.
    #[schemars(schema_with = "schema::optional_duration")]
    pub target: Option<Spanned<String>>,
    /// The multiple of the min RTT above which the limit falls, 1.05 to 10. Default: 1.3 for
    /// `gradient`, otherwise 2.
    #[schemars(schema_with = "schema::tolerance")]
    pub tolerance: Option<Spanned<String>>,
    /// The requests that one update adds to the limit, 1 to 1000; not for `gradient`. Default: 1
    /// for `aimd`, the square root of the limit for `gradient2`.
    #[schemars(schema_with = "schema::increase")]
    pub increase: Option<Spanned<u32>>,
    /// The factor by which an overload lowers the limit, 0.1 to 0.99; not for `gradient`. Default:
    /// 0.9 for `aimd`, 0.5 for `gradient2`.
    #[schemars(schema_with = "schema::decrease")]
    pub decrease: Option<Spanned<String>>,
    /// The duration of one window of samples, `10ms` to `1m`, after which the limit changes.
    /// Default: about one round trip of the requests in flight.
    #[schemars(schema_with = "schema::optional_duration")]
    pub window: Option<Spanned<String>>,
    /// The weight of the newest value in the smoothed limit, 0.05 to 1; only for `gradient2`.
    /// Default: 0.2.
    #[schemars(schema_with = "schema::smoothing")]
    pub smoothing: Option<Spanned<String>>,
    /// The time between two min RTT probes, `1s` to `1h`. Default: from 64 round trips, so that
    /// probes cost about 2 % of the goodput.
    #[schemars(schema_with = "schema::optional_duration")]
    pub probe_interval: Option<Spanned<String>>,
    /// The part of the capacity that a min RTT probe leaves unused, 0.3 to 0.9. Default: 0.3.
    #[schemars(schema_with = "schema::probe_depth")]
    pub probe_depth: Option<Spanned<String>>,
    /// The change of the limit, from the changes for which replicas vote: the lower `median`, or
    /// the smallest (`min`). Default: `median`.
    #[schemars(schema_with = "schema::aggregate")]
    pub aggregate: Option<Spanned<String>>,
}

/// The queue of requests that wait for a permit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["size", "timeout"]))]
pub struct Queue {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The largest number of requests that wait at once.
    #[schemars(schema_with = "schema::at_least_one")]
    pub size: Option<Spanned<u32>>,
    /// The longest time that a request waits; then it is rejected.
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<Spanned<String>>,
}

/// The response to a request that a concurrency limit rejects.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Reject {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The HTTP status. Default: 503.
    #[schemars(schema_with = "schema::status")]
    pub status: Option<Spanned<u32>>,
    /// The time in the `Retry-After` header, rounded up to whole seconds. Default: no header.
    #[schemars(schema_with = "schema::optional_duration")]
    pub retry_after: Option<Spanned<String>>,
    /// The response body. Default: empty.
    #[schemars(schema_with = "schema::text")]
    pub body: Option<Spanned<String>>,
}
