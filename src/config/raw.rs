//! Reads a limits file into typed fields with positions. Verifies only syntax and types.
//!
//! Guarantees:
//! - Accepts the encodings, keys and scalar types that envoyproxy/ratelimit accepts, and
//!   Sluicegate's own keys.
//! - Finds all problems of a file at once, unless there is a syntax error.

mod field_name;
mod metadata;
mod names;
mod typed;

use schemars::JsonSchema;

use super::diagnostic::{Diagnostics, Findings, SourceText, Span, Spanned};
use super::{schema, yaml};

/// Reads the limits file `name`. Returns its fields, its text (which converts positions to lines),
/// and its warnings in the order of their positions.
///
/// # Errors
/// Returns every error and warning of the file, or only the syntax error if there is one.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, SourceText, Diagnostics), Diagnostics> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let file = parse_file(&text, &mut findings);
    let has_errors = findings.has_errors();
    let source = SourceText::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    if has_errors { Err(diagnostics) } else { Ok((file, source, diagnostics)) }
}

/// Returns the text of a limits file, which converts positions to lines. Cost: decoding the text.
#[must_use]
pub fn source(name: &str, bytes: &[u8]) -> SourceText {
    SourceText::new(name, yaml::decode(bytes, &mut Findings::default()))
}

fn parse_file(text: &str, findings: &mut Findings) -> File {
    if findings.has_errors() {
        return File::default();
    }
    let tree = yaml::parse(text, findings);
    if findings.has_errors() {
        return File::default();
    }
    let Some(tag_errors) = yaml::check_structure(&tree, findings) else { return File::default() };
    let reported = names::check_keys(&tree, tag_errors, findings);
    typed::read_file(&tree, &reported, findings)
}

/// A limits file, which contains one domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["domain"]), transform = schema::allow_anchor_metadata)]
pub struct File {
    /// The domain, which the proxy sends in each check. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub domain: Spanned<String>,
    /// The rules for the first entry of a descriptor.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// The limits that are charged if a limit of the check denies: all (`each`, the default) or
    /// none (`all_or_nothing`).
    #[schemars(schema_with = "schema::charge")]
    pub charge: Option<Spanned<String>>,
    /// The key of an entry. In a Redis Cluster, counters with the same value of this entry share a
    /// slot, so that one script can charge them together.
    #[schemars(schema_with = "schema::text")]
    pub colocate: Option<Spanned<String>>,
    /// The defaults for every limit of the domain.
    pub defaults: Option<Defaults>,
}

/// The defaults for every limit of a domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Defaults {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The way to count hits: `fixed_window`, `sliding_window`, `sliding_log` or `gcra`.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// The decision while the store does not answer. Default: `error`.
    #[schemars(schema_with = "schema::rate_limit_fallback")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// The decisions that a replica makes without a store call: none (`strict`), denials that it
    /// remembers (`cached_deny`), or checks that its lease covers (`leased`).
    #[schemars(schema_with = "schema::rate_limit_mode")]
    pub mode: Option<Spanned<String>>,
    /// For `leased`: the most hits above the limit that the whole fleet may allow, as a number or a
    /// percentage of the limit such as `2%`. 0 needs `fixed_window`, and then no window exceeds the
    /// limit.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
}

/// One node of the descriptor tree. It may have a rate limit and a concurrency limit.
#[expect(clippy::struct_excessive_bools, reason = "the fields of the file format")]
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["key"]))]
pub struct Descriptor {
    /// The position of the node: its first key.
    #[schemars(skip)]
    pub span: Span,
    /// The key that an entry must have, exactly. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub key: Spanned<String>,
    /// The value that an entry must have, exactly, or a pattern if it contains `*`. Without a
    /// value, the rule matches all values that no other rule with this key matches.
    #[schemars(schema_with = "schema::text")]
    pub value: Spanned<String>,
    /// The rate limit of descriptors whose last entry matches this rule.
    pub rate_limit: Option<RateLimit>,
    /// The rules for the next entry of the descriptor.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// Shadow mode: the rule counts and reports, but never denies.
    #[schemars(with = "Option<bool>")]
    pub shadow_mode: bool,
    /// Adds the rule to the quota group of a check: the group denies only if all its limits deny.
    #[schemars(with = "Option<bool>")]
    pub quota_mode: bool,
    /// Adds the key and value of every entry of the descriptor to the names of the metrics.
    #[schemars(with = "Option<bool>")]
    pub detailed_metric: bool,
    /// Adds the value of this entry to the names of the metrics.
    #[schemars(with = "Option<bool>")]
    pub value_to_metric: bool,
    /// `true` if all values that match the pattern share one counter. By default, each value has
    /// its own counter.
    #[schemars(with = "Option<bool>")]
    pub share_threshold: Spanned<bool>,
    /// Free-form data that the reply to the proxy contains unless this rule denies.
    #[schemars(schema_with = "schema::metadata")]
    pub metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    /// The limit on requests in flight for descriptors whose last entry matches this rule.
    pub concurrency: Option<Concurrency>,
}

/// The rate limit of a rule.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, transform = schema::require_one_period)]
pub struct RateLimit {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The hits that are allowed in each unit or period. 0 denies everything.
    #[schemars(schema_with = "schema::requests")]
    pub requests_per_unit: Spanned<u32>,
    /// The unit: second, minute, hour, day, week, month or year, in any case. Without `calendar`, a
    /// month has 30 days and a year has 365.
    #[schemars(schema_with = "schema::unit")]
    pub unit: Spanned<String>,
    /// `true`, instead of a unit, to allow everything and count nothing.
    #[schemars(with = "Option<bool>")]
    pub unlimited: Spanned<bool>,
    /// The name of the rule. Decisions report it, and `replaces` refers to it.
    #[schemars(schema_with = "schema::text")]
    pub name: Spanned<String>,
    /// The names of other rules that do not apply to a check that this rule matches.
    #[schemars(schema_with = "schema::replaces")]
    pub replaces: Vec<Spanned<String>>,
    /// The period, instead of a unit, such as `250ms`, `90s`, `1h30m` or `7d`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub per: Option<Spanned<String>>,
    /// The way to count hits: `fixed_window`, `sliding_window`, `sliding_log` or `gcra`. Default:
    /// the domain's default, or `fixed_window`.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// For `gcra`: the hits that are allowed at one instant. Default: `requests_per_unit`.
    #[schemars(schema_with = "schema::optional_count")]
    pub burst: Option<Spanned<u32>>,
    /// The decisions that a replica makes without a store call: none (`strict`), denials that it
    /// remembers (`cached_deny`), or checks that its lease covers (`leased`).
    #[schemars(schema_with = "schema::rate_limit_mode")]
    pub mode: Option<Spanned<String>>,
    /// For `leased`: the most hits above the limit that the whole fleet may allow, as a number or a
    /// percentage of the limit such as `2%`. 0 needs `fixed_window`, and then no window exceeds the
    /// limit.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
    /// For `leased`: the hits that a replica borrows at a time. Default: learned from demand.
    #[schemars(schema_with = "schema::optional_count")]
    pub lease_hits: Option<Spanned<u32>>,
    /// The decision while the store does not answer. Default: `error`.
    #[schemars(schema_with = "schema::rate_limit_fallback")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// For `fixed_window` per day, week, month or year: windows that follow the calendar of a time
    /// zone.
    pub calendar: Option<Calendar>,
}

/// The calendar windows of a limit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["time_zone"]))]
pub struct Calendar {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The IANA name of the time zone, such as `Europe/Berlin`.
    #[schemars(with = "String")]
    pub time_zone: Option<Spanned<String>>,
    /// The day on which a window starts. Week: 1 (Monday) to 7, or a name. Month: 1 to 31; in
    /// shorter months, the last day. Year: month and day, such as `04-01`.
    #[schemars(schema_with = "schema::starts_on")]
    pub starts_on: Option<Spanned<String>>,
}

/// A limit on requests in flight.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["limit"]))]
pub struct Concurrency {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The largest number of requests in flight. With `adaptive`, this is the initial limit.
    #[schemars(schema_with = "schema::at_least_one")]
    pub limit: Option<Spanned<u32>>,
    /// Adapts the limit to measured latency.
    pub adaptive: Option<Adaptive>,
    /// The scope of the limit. `leased`, the default with a shared store: the whole fleet, split
    /// into shares. `strict`, for limits too small to split: the whole fleet, with a store call for
    /// each request. `local`: each replica has the whole limit for itself.
    #[schemars(schema_with = "schema::concurrency_mode")]
    pub mode: Option<Spanned<String>>,
    /// The limit of a replica whose share expired because the store does not answer. `deny`: 0.
    /// `local`: at most its last fair share. `allow`: the whole limit for this replica.
    #[schemars(schema_with = "schema::concurrency_fallback")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// The queue of requests that wait for a permit. Default: no queue.
    pub queue: Option<Queue>,
    /// The lifetime of a permit whose release never arrives. Default: 60s.
    #[schemars(schema_with = "schema::optional_duration")]
    pub max_duration: Option<Spanned<String>>,
    /// The response to a request that gets no permit.
    pub reject: Option<Reject>,
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
    #[schemars(schema_with = "schema::adaptive_policy")]
    pub policy: Option<Spanned<String>>,
    /// The lower bound of the limit. Default: 1.
    #[schemars(schema_with = "schema::optional_count")]
    pub min: Option<Spanned<u32>>,
    /// The upper bound of the limit. Default: 1000, or `limit` if that is larger.
    #[schemars(schema_with = "schema::optional_count")]
    pub max: Option<Spanned<u32>>,
}

/// The queue of requests that wait for a permit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["size", "timeout"]))]
pub struct Queue {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The largest number of waiting requests.
    #[schemars(schema_with = "schema::at_least_one")]
    pub size: Option<Spanned<u32>>,
    /// The longest wait. Then the request is rejected.
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
