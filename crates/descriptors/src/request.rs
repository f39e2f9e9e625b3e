//! The attributes of a request that hooks read.
//!
//! Not covered:
//! - Reading them, which each protocol does (see `edge` in the service).

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::ClientAddress;

/// The attributes of a request that hooks read.
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Returns the first value of the header with this lower-case name. Values that a client
    /// repeats later do not change it.
    pub first_header_value: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// Returns all values of the header with this lower-case name, joined by commas.
    pub joined_header_values: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// The request path with its query string.
    pub path: &'a str,
    /// The client's address.
    pub remote_address: Option<ClientAddress<'a>>,
    /// Returns the text at a location in the dynamic metadata.
    pub metadata: &'a dyn Fn(&MetadataKey) -> Option<Cow<'a, str>>,
}

/// A location in Envoy's dynamic metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataKey {
    /// The metadata namespace, usually the name of an Envoy filter.
    pub key: String,
    /// The names of the nested fields that lead to the text.
    pub path: Vec<PathSegment>,
}

/// One field name of a metadata path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathSegment {
    /// The name of the field.
    pub key: String,
}
