//! The block `concurrency`.

use schemars::JsonSchema;

use super::schema;
use super::text_list::{TextList, TextMap};
use crate::diagnostic::{Span, Spanned};

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
    /// The classes of requests, and the part of the limit that each class may fill. Default: one
    /// class, which may fill all of it.
    pub classes: Option<Classes>,
    /// Fair parts of the limit for customers. Default: no parts.
    pub fair: Option<Fair>,
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

/// The classes of requests. A request of a class gets a permit while fewer requests are in flight
/// than its part of the limit, and before waiting requests of later classes.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["by", "up_to"]))]
pub struct Classes {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The key of the entry whose value is the class. It may be in any descriptor of the check; the
    /// first one counts. A request without it, or with another value, has the last class.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
    /// The classes, at most 8, the most important one first. Each has the part of the limit that
    /// requests in flight of all classes may fill: `100%` for the first class, for each other one at
    /// most that of the class before.
    #[schemars(schema_with = "schema::class_parts")]
    pub up_to: Option<Spanned<TextMap>>,
}

/// Fair parts of the limit. A free permit goes to a waiting request of a customer without requests in
/// flight, else of the customer with the fewest ones for its weight. Needs a `queue`.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["by"]))]
pub struct Fair {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The key of the entry whose value is the customer. It may be in any descriptor of the check;
    /// the first one counts. All requests without it are one customer.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
    /// The column of a table (setting `tables`) with the weight of each customer, 1 to 1000, such as
    /// `customers.weight`. All customers without a row are one customer. Default: each customer has
    /// weight 1.
    #[schemars(schema_with = "schema::table_column")]
    pub weight: Option<Spanned<String>>,
    /// The most customers that are counted apart, 1 to 100000. Further ones are one customer. Default:
    /// 10000.
    #[schemars(schema_with = "schema::fair_keys")]
    pub max_keys: Option<Spanned<u32>>,
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
