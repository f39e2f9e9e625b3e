//! One file, letter for letter: what was written and where, before anything is judged.
//!
//! Guarantees: accepts exactly the files whose text, key names and scalar types the base language
//! accepts, with both of its passes; finds every problem of a file at once.
//! Leaves out: what the words mean together, which is for [`super::resolve`].

mod metadata;
mod names;
mod typed;
mod word;

use schemars::JsonSchema;

use super::diagnostic::{Diagnostics, Findings, Source, Span, Spanned};
use super::{schema, yaml};

/// Reads one file: `name` is what a person knows it by.
///
/// Gives the file, its text for later places, and the warnings, in the order of the text.
///
/// # Errors
///
/// Every error and warning of the file. After a syntax error there is only that one.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, Source, Diagnostics), Diagnostics> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let file = file(&text, &mut findings);
    let failed = findings.has_errors();
    let source = Source::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    if failed { Err(diagnostics) } else { Ok((file, source, diagnostics)) }
}

/// The text of a file that was read, for places in it. Cost: as much as decoding it takes.
#[must_use]
pub fn source(name: &str, bytes: &[u8]) -> Source {
    Source::new(name, yaml::decode(bytes, &mut Findings::default()))
}

fn file(text: &str, findings: &mut Findings) -> File {
    if findings.has_errors() {
        return File::default();
    }
    let tree = yaml::parse(text, findings);
    if findings.has_errors() {
        return File::default();
    }
    let Some(misfits) = yaml::check(&tree, findings) else { return File::default() };
    let blamed = names::check(&tree, misfits, findings);
    typed::read(&tree, &blamed, findings)
}

/// A whole file: one domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["domain"]), transform = schema::parking)]
pub struct File {
    /// The domain that the proxy asks for. Empty when absent, and then refused.
    #[schemars(schema_with = "schema::text")]
    pub domain: Spanned<String>,
    /// The first level of rules: what the first entry of a descriptor is held against.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// Which of a question's limits are charged when one of them denies: each (the default), or
    /// none unless all admit.
    #[schemars(schema_with = "schema::charge")]
    pub charge: Option<Spanned<String>>,
    /// The key of the entry whose value says where in a Redis Cluster counters live: those of one
    /// value live side by side, so that one step can charge them.
    #[schemars(schema_with = "schema::text")]
    pub colocate: Option<Spanned<String>>,
    /// What every limit of the domain is that does not say otherwise.
    pub defaults: Option<Defaults>,
}

/// `defaults` of a domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Defaults {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// How hits are counted.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// What the caller gets when the store does not answer; by default an error.
    #[schemars(schema_with = "schema::failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// What is answered without asking the store: nothing (`strict`), known denials (`cached_deny`), or
    /// what borrowed hits cover (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// What the fleet may admit above the limit at most, for `leased`: hits, or a percentage of the
    /// limit as in `2%`; 0 is for `fixed_window`, and never passes the limit of a window.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
}

/// One node of the descriptor tree.
#[expect(clippy::struct_excessive_bools, reason = "the language's own switches, each by its name")]
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["key"]))]
pub struct Descriptor {
    /// Where the node stands: its first key.
    #[schemars(skip)]
    pub span: Span,
    /// The key of the entry, letter for letter. Empty when absent, and then refused.
    #[schemars(schema_with = "schema::text")]
    pub key: Spanned<String>,
    /// The value of the entry, letter for letter, or a pattern where it has a `*`. Empty or absent
    /// means any value that no other rule of the level takes.
    #[schemars(schema_with = "schema::text")]
    pub value: Spanned<String>,
    /// The limit of descriptors that end here. Without it what matches here is exempt from rates.
    pub rate_limit: Option<RateLimit>,
    /// The next level of rules, for the entry that follows.
    #[schemars(with = "Option<Vec<Descriptor>>")]
    pub descriptors: Vec<Descriptor>,
    /// Counts and reports, and never denies.
    #[schemars(with = "Option<bool>")]
    pub shadow_mode: bool,
    /// Joins the quota group, which denies only as a whole.
    #[schemars(with = "Option<bool>")]
    pub quota_mode: bool,
    /// Metrics carry the key and value of every entry as they were asked.
    #[schemars(with = "Option<bool>")]
    pub detailed_metric: bool,
    /// Metrics carry the value of this entry as it was asked.
    #[schemars(with = "Option<bool>")]
    pub value_to_metric: bool,
    /// All values that the pattern matches share one counter.
    #[schemars(with = "Option<bool>")]
    pub share_threshold: Spanned<bool>,
    /// Free-form; returned to the proxy when the descriptor is not over its limit.
    #[schemars(schema_with = "schema::metadata")]
    pub metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    /// The ceiling on requests in flight of descriptors that end here, beside or instead of a rate.
    pub concurrency: Option<Concurrency>,
}

/// `rate_limit` of a node.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, transform = schema::one_period)]
pub struct RateLimit {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// How many hits per unit or period. 0 denies everything.
    #[schemars(schema_with = "schema::requests")]
    pub requests_per_unit: Spanned<u32>,
    /// The unit, in any case. A month has 30 days and a year 365, unless a calendar is given.
    #[schemars(schema_with = "schema::unit")]
    pub unit: Spanned<String>,
    /// Admits everything and counts nothing; instead of a unit.
    #[schemars(with = "Option<bool>")]
    pub unlimited: Spanned<bool>,
    /// The name that answers show and `replaces` refers to.
    #[schemars(schema_with = "schema::text")]
    pub name: Spanned<String>,
    /// The names of rules that this one takes out of the same question.
    #[schemars(schema_with = "schema::replaces")]
    pub replaces: Vec<Spanned<String>>,
    /// The period, instead of a unit: whole numbers with ms, s, m, h or d, as in `90s` or `1h30m`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub per: Option<Spanned<String>>,
    /// How hits are counted; `fixed_window` unless the defaults say otherwise.
    #[schemars(schema_with = "schema::strategy")]
    pub strategy: Option<Spanned<String>>,
    /// Hits admitted at one instant, for `gcra`; `requests_per_unit` where it is absent.
    #[schemars(schema_with = "schema::optional_count")]
    pub burst: Option<Spanned<u32>>,
    /// What is answered without asking the store: nothing (`strict`), known denials (`cached_deny`), or
    /// what borrowed hits cover (`leased`).
    #[schemars(schema_with = "schema::mode")]
    pub mode: Option<Spanned<String>>,
    /// What the fleet may admit above the limit at most, for `leased`: hits, or a percentage of the
    /// limit as in `2%`; 0 is for `fixed_window`, and never passes the limit of a window.
    #[schemars(schema_with = "schema::overshoot")]
    pub max_overshoot: Option<Spanned<String>>,
    /// Hits that a replica borrows at a time, for `leased`; learned from demand where it is absent.
    #[schemars(schema_with = "schema::optional_count")]
    pub lease_hits: Option<Spanned<u32>>,
    /// What the caller gets when the store does not answer; by default an error.
    #[schemars(schema_with = "schema::failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// Windows of a calendar, for `fixed_window` per day, week, month or year.
    pub calendar: Option<Calendar>,
}

/// `calendar` of a limit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["time_zone"]))]
pub struct Calendar {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// The name of the time zone, as in `Europe/Berlin`.
    #[schemars(with = "String")]
    pub time_zone: Option<Spanned<String>>,
    /// The day that a window starts on: a week's from 1 (Monday) to 7 or by name, a month's from 1
    /// to 31 (31 is its last), a year's as month and day, `04-01`.
    #[schemars(schema_with = "schema::starts_on")]
    pub starts_on: Option<Spanned<String>>,
}

/// `concurrency` of a node.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["limit"]))]
pub struct Concurrency {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// How many requests may be in flight; with `adaptive`, at first.
    #[schemars(schema_with = "schema::at_least_one")]
    pub limit: Option<Spanned<u32>>,
    /// Infers the ceiling from latency.
    pub adaptive: Option<Adaptive>,
    /// Over which replicas the ceiling is held: `leased`, one for all that share a store, the default
    /// where there is one; `strict`, one for all as well, with a call to the store for each request, for
    /// ceilings too small to be shared out; `local`, each its own.
    #[schemars(schema_with = "schema::ceiling_mode")]
    pub mode: Option<Spanned<String>>,
    /// What one without a share may have in flight while the store does not answer: `deny`, nothing;
    /// `local`, its last fair part; `allow`, what it holds to be right alone.
    #[schemars(schema_with = "schema::ceiling_failure")]
    pub on_backend_failure: Option<Spanned<String>>,
    /// Who may wait for a place; nobody without it.
    pub queue: Option<Queue>,
    /// How long a place is kept where its release may never come; 60s where it is absent.
    #[schemars(schema_with = "schema::optional_duration")]
    pub max_duration: Option<Spanned<String>>,
    /// What one who is turned away is answered.
    pub reject: Option<Reject>,
}

/// `adaptive` of a ceiling.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Adaptive {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// By which law; `gradient` where it is absent.
    #[schemars(schema_with = "schema::policy")]
    pub policy: Option<Spanned<String>>,
    /// The ceiling is never below; 1 where it is absent.
    #[schemars(schema_with = "schema::optional_count")]
    pub min: Option<Spanned<u32>>,
    /// The ceiling is never above; 1000, or `limit` where that is more, where it is absent.
    #[schemars(schema_with = "schema::optional_count")]
    pub max: Option<Spanned<u32>>,
}

/// `queue` of a ceiling.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["size", "timeout"]))]
pub struct Queue {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// How many may wait at once.
    #[schemars(schema_with = "schema::at_least_one")]
    pub size: Option<Spanned<u32>>,
    /// How long one may wait.
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<Spanned<String>>,
}

/// `reject` of a ceiling.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Reject {
    /// Where the block stands.
    #[schemars(skip)]
    pub span: Span,
    /// The HTTP status; 503 where it is absent.
    #[schemars(schema_with = "schema::status")]
    pub status: Option<Spanned<u32>>,
    /// What `Retry-After` says, in whole seconds, rounded up; no header where it is absent.
    #[schemars(schema_with = "schema::optional_duration")]
    pub retry_after: Option<Spanned<String>>,
    /// The body; none where it is absent.
    #[schemars(schema_with = "schema::text")]
    pub body: Option<Spanned<String>>,
}
