//! How a hook that carries no descriptors makes them: Envoy's action words, in `server.yaml`.
//!
//! Guarantees: pure; an action means what Envoy's action of that name means, and one whose part is
//! missing leaves its whole descriptor out, as Envoy does; regular expressions take time linear in
//! the text.
//! Leaves out: where a request's attributes come from, which is for each hook's edge, and what is
//! done with the descriptors.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod matcher;

pub use matcher::{HeaderMatcher, Pattern, Range, StringMatch};

/// The hooks by name; where a request names none, the first rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks(pub Vec<Hook>);

/// What one hook asks about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// What routes and NGINX call it.
    pub name: String,
    /// The domain of its questions.
    pub domain: String,
    /// One recipe for each descriptor.
    pub descriptors: Vec<Vec<Action>>,
}

/// Makes one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Always the same value.
    GenericKey {
        /// The entry's key.
        #[serde(default = "generic_key")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
    },
    /// The value of a request header; of several lines the first.
    RequestHeaders {
        /// Which.
        header_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// Without the header only this entry is left out, not the descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// The client's address as the proxy trusts it, under the key `remote_address`.
    RemoteAddress {},
    /// A fixed value, where the headers match.
    HeaderValueMatch {
        /// The entry's key.
        #[serde(default = "header_match")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
        /// Whether the headers must match, or must not.
        #[serde(default = "yes")]
        expect_match: bool,
        /// All must match.
        headers: Vec<HeaderMatcher>,
    },
    /// The value of a query parameter, percent-decoded.
    QueryParameters {
        /// Which; the first of several.
        query_parameter_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// Without the parameter only this entry is left out, not the descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// A text in the request's dynamic metadata. NGINX has none.
    Metadata {
        /// The entry's key.
        descriptor_key: String,
        /// Where the text is.
        metadata_key: MetadataKey,
        /// The value where there is none.
        #[serde(default)]
        default_value: Option<String>,
        /// Without either only this entry is left out, not the descriptor.
        #[serde(default)]
        skip_if_absent: bool,
    },
}

/// A place in metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataKey {
    /// The namespace: mostly a filter's name.
    pub key: String,
    /// The fields that lead to it.
    pub path: Vec<PathSegment>,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathSegment {
    /// Its name.
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

/// A request as a hook sees it.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    /// The value of a header by its lower-case name; of several lines the first, which a client that sends more of
    /// them does not change.
    pub header: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// The same, and of several lines all, joined by commas.
    pub joined: &'a dyn Fn(&str) -> Option<Cow<'a, str>>,
    /// The path with its query.
    pub path: &'a str,
    /// The client's address without a port.
    pub remote_address: Option<&'a str>,
    /// The text at a namespace and the fields below it.
    pub metadata: &'a dyn Fn(&MetadataKey) -> Option<String>,
}

/// One descriptor: keys and values.
pub type Entries<'a> = Vec<(&'a str, Cow<'a, str>)>;

impl Hooks {
    /// The hook of that name, or the first where none is named.
    #[must_use]
    pub fn named(&self, name: Option<&str>) -> Option<&Hook> {
        match name {
            None => self.0.first(),
            Some(name) => self.0.iter().find(|hook| hook.name == name),
        }
    }
}

impl Hook {
    /// The descriptors of a request; those with a missing part are left out.
    #[must_use]
    pub fn descriptors<'a>(&'a self, request: &Attributes<'a>) -> Vec<Entries<'a>> {
        let descriptor = |recipe: &'a Vec<Action>| {
            let mut entries = Entries::new();
            for action in recipe {
                match action.entry(request) {
                    Made::Entry(entry) => entries.push(entry),
                    Made::Skipped => {}
                    Made::Missing => return None,
                }
            }
            Some(entries).filter(|entries| !entries.is_empty())
        };
        self.descriptors.iter().filter_map(descriptor).collect()
    }
}

/// What became of one action.
enum Made<'a> {
    Entry((&'a str, Cow<'a, str>)),
    Skipped,
    Missing,
}

impl<'a> Made<'a> {
    fn of(key: &'a str, value: Option<Cow<'a, str>>, skip_if_absent: bool) -> Self {
        match value {
            Some(value) => Self::Entry((key, value)),
            None if skip_if_absent => Self::Skipped,
            None => Self::Missing,
        }
    }
}

impl Action {
    fn entry<'a>(&'a self, request: &Attributes<'a>) -> Made<'a> {
        match self {
            Self::GenericKey { descriptor_key, descriptor_value } => {
                Made::of(descriptor_key, Some(descriptor_value.into()), false)
            }
            Self::RequestHeaders { header_name, descriptor_key, skip_if_absent } => {
                let value = (request.header)(&header_name.to_ascii_lowercase());
                Made::of(descriptor_key, value, *skip_if_absent)
            }
            Self::RemoteAddress {} => {
                Made::of("remote_address", request.remote_address.map(Cow::Borrowed), false)
            }
            Self::HeaderValueMatch { descriptor_key, descriptor_value, expect_match, headers } => {
                let matches = headers.iter().all(|header| header.matches(request));
                let value = (matches == *expect_match).then(|| descriptor_value.into());
                Made::of(descriptor_key, value, false)
            }
            Self::QueryParameters { query_parameter_name, descriptor_key, skip_if_absent } => {
                let value = query_parameter(request.path, query_parameter_name);
                Made::of(descriptor_key, value, *skip_if_absent)
            }
            Self::Metadata { descriptor_key, metadata_key, default_value, skip_if_absent } => {
                let found = (request.metadata)(metadata_key).filter(|text| !text.is_empty());
                let default = || default_value.as_deref().filter(|text| !text.is_empty());
                let value = found.map(Cow::Owned).or_else(|| default().map(Cow::Borrowed));
                Made::of(descriptor_key, value, *skip_if_absent)
            }
        }
    }
}

/// The first value of a parameter in a path's query. A `+` is one: Envoy decodes percent signs alone.
fn query_parameter<'a>(path: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let query = path.split_once('?')?.1.split('#').next()?;
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| decoded(key) == name)?;
    Some(decoded(value))
}

fn decoded(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}
