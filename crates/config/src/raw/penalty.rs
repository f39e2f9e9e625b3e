//! The block `penalty` of a rate limit.

use schemars::JsonSchema;

use super::schema;
use crate::diagnostic::{Span, Spanned};

/// The ban of a key that the limit denies repeatedly.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["after", "within", "for"]))]
pub struct Penalty {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The denial with this number begins the ban, 1 to 10000.
    #[schemars(schema_with = "schema::strikes")]
    pub after: Option<Spanned<u32>>,
    /// The time in which the denials are counted, 1s to 30d.
    #[schemars(schema_with = "schema::duration")]
    pub within: Option<Spanned<String>>,
    /// The length of the ban, 1s to 30d.
    #[schemars(rename = "for", schema_with = "schema::duration")]
    pub length: Option<Spanned<String>>,
    /// The HTTP status of requests that the ban denies. Default: 429. Envoy's rate limit filter sends its
    /// own `rate_limited_status` instead.
    #[schemars(schema_with = "schema::status")]
    pub status: Option<Spanned<u32>>,
}
