//! Reads a limits file into typed fields with positions, without judging their meaning.
//!
//! Guarantees:
//! - Accepts the text, key names and scalar types that envoyproxy/ratelimit accepts, and no others.
//! - Finds every problem of a file at once, apart from syntax errors.
//!
//! Not covered:
//! - The meaning of the fields: see [`super::resolve`].

mod field_name;
mod metadata;
mod names;
mod typed;

use schemars::JsonSchema;

use super::diagnostic::{Diagnostics, Findings, SourceText, Span, Spanned};
use super::{schema, yaml};

/// Reads one file. Diagnostics show `name` as the name of the file.
///
/// Returns the file, its source for later positions, and the warnings in the order of the text.
///
/// # Errors
///
/// Returns every error and warning of the file. A syntax error is returned alone.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, SourceText, Diagnostics), Diagnostics> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let file = parse_file(&text, &mut findings);
    let failed = findings.has_errors();
    let source = SourceText::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    if failed { Err(diagnostics) } else { Ok((file, source, diagnostics)) }
}

/// Returns the source of a file, for positions in it. The cost is that of decoding the text.
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
    let Some(misfits) = yaml::check(&tree, findings) else { return File::default() };
    let reported = names::check(&tree, misfits, findings);
    typed::read(&tree, &reported, findings)
}

/// A limits file, which contains one domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["domain"]), transform = schema::parking)]
pub struct File {
    /// The domain that the proxy sends. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub domain: Spanned<String>,
    /// The first level of rules. They match the first entry of a descriptor.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// The limits of a check that are charged when one of them denies. `each`,
    /// the default, charges all limits; `all_or_nothing` charges none.
    #[schemars(schema_with = "schema::charge")]
    pub charge: Option<Spanned<String>>,
    /// The key of the entry that places counters in a Redis Cluster. Counters with
    /// the same value of this entry share a slot, so that one script can charge them.
    #[schemars(schema_with = "schema::text")]
    pub colocate: Option<Spanned<String>>,
    /// The defaults for every limit of the domain.
    pub defaults: Option<Defaults>,
}

/// The defaults for every limit of a domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Defaults {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The strategy that counts hits.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// The fallback while the store does not answer. Default: `error`.
    #[schemars(schema_with = "schema::failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// The decisions that need no store call: none (`strict`), remembered
    /// denials (`cached_deny`), or hits that a lease covers (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// The largest overshoot of the fleet, for `leased`: hits, or a percentage of the
    /// limit such as `2%`. 0 needs `fixed_window` and never exceeds the limit of a window.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
}

/// One rule of the descriptor tree.
#[expect(clippy::struct_excessive_bools, reason = "the language's own switches, each by its name")]
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["key"]))]
pub struct Descriptor {
    /// The position of the rule: its first key.
    #[schemars(skip)]
    pub span: Span,
    /// The key of the entry, which must match exactly. It must not be empty.
    #[schemars(schema_with = "schema::text")]
    pub key: Spanned<String>,
    /// The value of the entry, which must match exactly, or a pattern if it contains `*`.
    /// An empty or absent value matches all values that no other rule of the level matches.
    #[schemars(schema_with = "schema::text")]
    pub value: Spanned<String>,
    /// The rate limit of descriptors that end here. Without it they have no rate limit.
    pub rate_limit: Option<RateLimit>,
    /// The next level of rules, for the next entry.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// Counts and reports, but never denies.
    #[schemars(with = "Option<bool>")]
    pub shadow_mode: bool,
    /// Adds the limit to the quota group of a check, which denies only as a whole.
    #[schemars(with = "Option<bool>")]
    pub quota_mode: bool,
    /// Adds the key and value of every entry, as received, to the metrics.
    #[schemars(with = "Option<bool>")]
    pub detailed_metric: bool,
    /// Adds the value of this entry, as received, to the metrics.
    #[schemars(with = "Option<bool>")]
    pub value_to_metric: bool,
    /// Uses one counter for all values that match the pattern.
    #[schemars(with = "Option<bool>")]
    pub share_threshold: Spanned<bool>,
    /// Free-form data, returned to the proxy unless the descriptor is over its limit.
    #[schemars(schema_with = "schema::metadata")]
    pub metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    /// The limit of requests in flight for descriptors
    /// that end here, beside or instead of a rate limit.
    pub concurrency: Option<Concurrency>,
}

/// The rate limit of a rule.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, transform = schema::one_period)]
pub struct RateLimit {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The hits per unit or period. 0 denies everything.
    #[schemars(schema_with = "schema::requests")]
    pub requests_per_unit: Spanned<u32>,
    /// The unit, in upper or lower case. Without a
    /// calendar, a month has 30 days and a year has 365.
    #[schemars(schema_with = "schema::unit")]
    pub unit: Spanned<String>,
    /// Allows everything and counts nothing. It replaces the unit.
    #[schemars(with = "Option<bool>")]
    pub unlimited: Spanned<bool>,
    /// The name that decisions show and `replaces` refers to.
    #[schemars(schema_with = "schema::text")]
    pub name: Spanned<String>,
    /// The names of rules that this rule removes from the same check.
    #[schemars(schema_with = "schema::replaces")]
    pub replaces: Vec<Spanned<String>>,
    /// The period, instead of a unit: whole numbers
    /// with ms, s, m, h or d, such as `90s` or `1h30m`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub per: Option<Spanned<String>>,
    /// The strategy that counts hits. Default: the domain's default, or `fixed_window`.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// The hits that are allowed at one instant, for `gcra`. Default: `requests_per_unit`.
    #[schemars(schema_with = "schema::optional_count")]
    pub burst: Option<Spanned<u32>>,
    /// The decisions that need no store call: none (`strict`), remembered
    /// denials (`cached_deny`), or hits that a lease covers (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// The largest overshoot of the fleet, for `leased`: hits, or a percentage of the
    /// limit such as `2%`. 0 needs `fixed_window` and never exceeds the limit of a window.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
    /// The hits that a replica borrows at a time, for `leased`. Default: learned from demand.
    #[schemars(schema_with = "schema::optional_count")]
    pub lease_hits: Option<Spanned<u32>>,
    /// The fallback while the store does not answer. Default: `error`.
    #[schemars(schema_with = "schema::failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// Calendar windows, for `fixed_window` per day, week, month or year.
    pub calendar: Option<Calendar>,
}

/// The calendar windows of a limit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["time_zone"]))]
pub struct Calendar {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The name of the time zone, such as `Europe/Berlin`.
    #[schemars(with = "String")]
    pub time_zone: Option<Spanned<String>>,
    /// The day on which a window starts. Week: 1 (Monday) to 7, or a name. Month:
    /// 1 to 31, where 31 is the last day. Year: month and day, such as `04-01`.
    #[schemars(schema_with = "schema::starts_on")]
    pub starts_on: Option<Spanned<String>>,
}

/// The concurrency limit of a rule.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["limit"]))]
pub struct Concurrency {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The largest number of requests in flight. With `adaptive`, this is the initial limit.
    #[schemars(schema_with = "schema::at_least_one")]
    pub limit: Option<Spanned<u32>>,
    /// Infers the limit from latency.
    pub adaptive: Option<Adaptive>,
    /// The replicas that share the limit. `leased`, the default with a shared store: all
    /// replicas, by shares. `strict`: all replicas, with a store call for each request,
    /// for limits too small to divide. `local`: each replica has its own limit.
    #[schemars(schema_with = "schema::ceiling_mode")]
    pub mode: Option<Spanned<String>>,
    /// The limit of a replica without a share while the store does not answer. `deny`:
    /// 0. `local`: its last fair share. `allow`: the limit that it would use alone.
    #[schemars(schema_with = "schema::ceiling_failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// The queue of requests that wait for a permit. Default: no queue.
    pub queue: Option<Queue>,
    /// The lifetime of a permit whose release may never arrive. Default: 60s.
    #[schemars(schema_with = "schema::optional_duration")]
    pub max_duration: Option<Spanned<String>>,
    /// The response to a rejected request.
    pub reject: Option<Reject>,
}

/// The inference of a concurrency limit from latency.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Adaptive {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The algorithm. Default: `gradient`.
    #[schemars(schema_with = "schema::policy")]
    pub policy: Option<Spanned<String>>,
    /// The smallest limit. Default: 1.
    #[schemars(schema_with = "schema::optional_count")]
    pub min: Option<Spanned<u32>>,
    /// The largest limit. Default: 1000, or `limit` if that is larger.
    #[schemars(schema_with = "schema::optional_count")]
    pub max: Option<Spanned<u32>>,
}

/// The queue of a concurrency limit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["size", "timeout"]))]
pub struct Queue {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The largest number of waiting requests.
    #[schemars(schema_with = "schema::at_least_one")]
    pub size: Option<Spanned<u32>>,
    /// The longest wait of a request.
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<Spanned<String>>,
}

/// The response to a request that a concurrency limit rejects.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Reject {
    /// The position of the block.
    #[schemars(skip)]
    pub span: Span,
    /// The HTTP status. Default: 503.
    #[schemars(schema_with = "schema::status")]
    pub status: Option<Spanned<u32>>,
    /// The time in the `Retry-After` header, rounded up to whole seconds. Default: no header.
    #[schemars(schema_with = "schema::optional_duration")]
    pub retry_after: Option<Spanned<String>>,
    /// The body. Default: empty.
    #[schemars(schema_with = "schema::text")]
    pub body: Option<Spanned<String>>,
}
