//! The blocks `adaptive` and `wait` of a rate limit.

use schemars::JsonSchema;

use super::schema;
use super::text_list::TextList;
use crate::diagnostic::{Span, Spanned};

/// Adapts the rate at which requests start to the overload answers of the upstream. Each replica and
/// proxy has a rate of its own.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct AdaptiveRate {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// The algorithm: `aimd`, which adds to the rate after successes, and multiplies it after an
    /// overload answer. Default: `aimd`.
    #[schemars(schema_with = "schema::rate_algorithm")]
    pub algorithm: Option<Spanned<String>>,
    /// The lower bound of the rate, in requests per unit. Default: 1.
    #[schemars(schema_with = "schema::optional_count")]
    pub min: Option<Spanned<u32>>,
    /// The upper bound of the rate, in requests per unit. Default: 1000, or `requests_per_unit` if that
    /// is larger.
    #[schemars(schema_with = "schema::optional_count")]
    pub max: Option<Spanned<u32>>,
    /// The requests per unit that are added in one unit of time, while the rate is used. Default: 1.
    #[schemars(schema_with = "schema::optional_count")]
    pub increase: Option<Spanned<u32>>,
    /// An overload answer multiplies the rate by this factor, 0.1 to 0.99. Default: 0.8.
    #[schemars(schema_with = "schema::decrease")]
    pub decrease: Option<Spanned<String>>,
    /// The answers of the upstream that lower the rate: HTTP statuses from 400 to 599, `4xx`, `5xx`, and
    /// gRPC codes by name. Default: 429, `5xx`, `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    #[schemars(schema_with = "schema::overloaded_by")]
    pub overloaded_by: Option<Spanned<TextList>>,
    /// The header of such an answer that pauses the growth of the rate. `retry_after`: the rate does not
    /// grow for that time, at most 60 s. Default: `none`.
    #[schemars(schema_with = "schema::paused_by")]
    pub paused_by: Option<Spanned<String>>,
}

/// Lets requests wait for their turn, instead of denying them. Requests start one by one, an interval
/// apart.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["at_most", "queue"]))]
pub struct Wait {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The longest time that a request waits; then it is rejected.
    #[schemars(schema_with = "schema::duration")]
    pub at_most: Option<Spanned<String>>,
    /// The largest number of requests that wait at once.
    #[schemars(schema_with = "schema::at_least_one")]
    pub queue: Option<Spanned<u32>>,
}
