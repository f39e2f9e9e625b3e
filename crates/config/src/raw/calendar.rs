//! The block `calendar`.

use schemars::JsonSchema;

use super::schema;
use crate::diagnostic::{Span, Spanned};

/// The calendar windows of a limit or budget.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, extend("required" = ["time_zone"]))]
pub struct Calendar {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The IANA name of the time zone, such as `Europe/Berlin`.
    #[schemars(with = "String")]
    pub time_zone: Option<Spanned<String>>,
    /// The day on which a window starts. Week: 1 (Monday) to 7, or a name. Month: 1 to 31; in
    /// shorter months, the last day. Year: month and day, such as `04-01`.
    #[schemars(schema_with = "schema::starts_on")]
    pub starts_on: Option<Spanned<String>>,
    /// The local time of that day at which a window starts, such as `12:00`. Default: `00:00`.
    #[schemars(schema_with = "schema::starts_at")]
    pub starts_at: Option<Spanned<String>>,
}
