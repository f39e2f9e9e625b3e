//! Builds descriptors for hooks without them, from Envoy's rate limit actions in `server.yaml`.
//!
//! Guarantees:
//! - Actions are pure and have the meaning of Envoy's actions of the same name.
//! - An action with a missing input drops its whole descriptor, as in Envoy.
//! - Regular expressions take time linear in the text.
//!
//! Not covered:
//! - Extracting request attributes, which each edge does.
//! - Using the descriptors.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod matcher;

pub use matcher::{HeaderMatcher, Range, RegexPattern, StringMatch};

/// The hooks by name. A request without a hook name uses the first hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks(pub Vec<Hook>);

/// The domain and the descriptors that one hook sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// The name that routes and NGINX use.
    pub name: String,
    /// The domain of the checks.
    pub domain: String,
    /// One list of actions for each descriptor.
    pub descriptors: Vec<Vec<Action>>,
}

/// Creates one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// A constant value.
    GenericKey {
        /// The entry's key.
        #[serde(default = "generic_key")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
    },
    /// The value of a request header; the first value if the header is repeated.
    RequestHeaders {
        /// The name of the header.
        header_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// If the header is missing, skip only this entry instead of the whole descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// The client address that the proxy trusts, with the key `remote_address`.
    RemoteAddress {},
    /// A constant value, if the headers match.
    HeaderValueMatch {
        /// The entry's key.
        #[serde(default = "header_match")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
        /// `true` if the headers must match, `false` if they must not.
        #[serde(default = "yes")]
        expect_match: bool,
        /// The matchers, which must all match.
        headers: Vec<HeaderMatcher>,
    },
    /// The value of a query parameter, percent-decoded.
    QueryParameters {
        /// The name of the parameter; the first value counts if it is repeated.
        query_parameter_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// If the parameter is missing, skip only this entry instead of the whole descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// A text in the request's dynamic metadata. NGINX has no metadata.
    Metadata {
        /// The entry's key.
        descriptor_key: String,
        /// The location of the text.
        metadata_key: MetadataKey,
        /// The value if the metadata has no text there.
        #[serde(default)]
        default_value: Option<String>,
        /// Without a text or a default, skip only this entry instead of the whole descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
}

/// A location in dynamic metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataKey {
    /// The namespace, usually the name of a filter.
    pub key: String,
    /// The path of fields to the text.
    pub path: Vec<PathSegment>,
}

/// One field of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathSegment {
    /// The name of the field.
    pub key: String,
}

fn generic_key() -> String {
    "generic_key".to_owned()
}

fn header_match() -> String {
    "header_match".to_owned()
}

const fn yes() -> bool {
    true
}

/// The attributes of a request that hooks read.
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Returns the first value of a header by its lower-case name.
    /// A client that repeats the header cannot change this value.
    pub first_header_value: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// Returns all values of a header by its lower-case name, joined by commas.
    pub joined_header_values: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// The path with its query.
    pub path: &'a str,
    /// The client's address without a port.
    pub remote_address: Option<&'a str>,
    /// Returns the text at a location in dynamic metadata.
    pub metadata: &'a dyn Fn(&MetadataKey) -> Option<String>,
}

/// The entries of one descriptor: keys and values.
pub type DescriptorEntries<'a> = Vec<(&'a str, Cow<'a, str>)>;

impl Hooks {
    /// Returns the hook with this name, or the first hook if `name` is `None`.
    #[must_use]
    pub fn find_or_first(&self, name: Option<&str>) -> Option<&Hook> {
        match name {
            None => self.0.first(),
            Some(name) => self.0.iter().find(|hook| hook.name == name),
        }
    }
}

impl Hook {
    /// Returns the descriptors of a request, without those with a missing input.
    #[must_use]
    pub fn build_descriptors<'a>(
        &'a self,
        request: &RequestAttributes<'a>,
    ) -> Vec<DescriptorEntries<'a>> {
        let descriptor = |actions: &'a Vec<Action>| {
            let mut entries = DescriptorEntries::new();
            for action in actions {
                match action.build_entry(request) {
                    EntryResult::Entry(entry) => entries.push(entry),
                    EntryResult::Skipped => {}
                    EntryResult::Missing => return None,
                }
            }
            Some(entries).filter(|entries| !entries.is_empty())
        };
        self.descriptors.iter().filter_map(descriptor).collect()
    }
}

enum EntryResult<'a> {
    Entry((&'a str, Cow<'a, str>)),
    Skipped,
    Missing,
}

impl<'a> EntryResult<'a> {
    fn from_value(key: &'a str, value: Option<Cow<'a, str>>, skip_if_absent: bool) -> Self {
        match value {
            Some(value) => Self::Entry((key, value)),
            None if skip_if_absent => Self::Skipped,
            None => Self::Missing,
        }
    }
}

impl Action {
    fn build_entry<'a>(&'a self, request: &RequestAttributes<'a>) -> EntryResult<'a> {
        match self {
            Self::GenericKey { descriptor_key, descriptor_value } => {
                EntryResult::from_value(descriptor_key, Some(descriptor_value.into()), false)
            }
            Self::RequestHeaders { header_name, descriptor_key, skip_if_absent } => {
                let value = (request.first_header_value)(&header_name.to_ascii_lowercase());
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
            Self::RemoteAddress {} => EntryResult::from_value(
                "remote_address",
                request.remote_address.map(Cow::Borrowed),
                false,
            ),
            Self::HeaderValueMatch { descriptor_key, descriptor_value, expect_match, headers } => {
                let matches = headers.iter().all(|header| header.matches(request));
                let value = (matches == *expect_match).then(|| descriptor_value.into());
                EntryResult::from_value(descriptor_key, value, false)
            }
            Self::QueryParameters { query_parameter_name, descriptor_key, skip_if_absent } => {
                let value = query_parameter(request.path, query_parameter_name);
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
            Self::Metadata { descriptor_key, metadata_key, default_value, skip_if_absent } => {
                let found = (request.metadata)(metadata_key).filter(|text| !text.is_empty());
                let default = || default_value.as_deref().filter(|text| !text.is_empty());
                let value = found.map(Cow::Owned).or_else(|| default().map(Cow::Borrowed));
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
        }
    }
}

/// Returns the first value of a query parameter. A `+` is
/// not a space: like Envoy, this decodes only percent signs.
fn query_parameter<'a>(path: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let query = path.split_once('?')?.1.split('#').next()?;
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| percent_decode(key) == name)?;
    Some(percent_decode(value))
}

fn percent_decode(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}
