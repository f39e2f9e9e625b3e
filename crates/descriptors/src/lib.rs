//! Builds the descriptors of hooks, which are calls from a proxy without descriptors. The setting
//! `hooks` lists Envoy rate limit actions for each hook.
//!
//! Guarantees:
//! - Actions have the meaning of Envoy's actions of the same name, and no side effects.
//! - If the request lacks a header or other input of an action, its descriptor is dropped, as in
//!   Envoy.
//! - An address has one text, whatever the proxy's spelling.
//! - Matching a regular expression takes time linear in the length of the text.
//!
//! Not covered:
//! - Reading the request's attributes, which each protocol does (see `edge` in the service).
//! - The rate limit check with the descriptors.

use std::borrow::Cow;
use std::net::IpAddr;

use address::{ClientAddress, Network};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

pub mod address;
pub mod filter_config;
mod header_name;
mod hooks;
mod matcher;
mod path;
mod prefix_len;
mod request;

pub use header_name::HeaderName;
pub use matcher::{HeaderMatcher, Range, RegexPattern, StringMatch};
pub use path::PathSpelling;
pub use prefix_len::PrefixLen;
pub use request::{MetadataKey, PathSegment, RequestAttributes};

/// All configured hooks. A request without a hook name uses the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks(pub Vec<Hook>);

/// One hook: the domain of its checks, and the actions that build its descriptors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// The name with which an Envoy route or an NGINX location selects this hook.
    pub name: String,
    /// The domain of the checks.
    pub domain: String,
    /// The spelling of the path in the header `:path`: `raw`, the default, or `normalized`.
    #[serde(default)]
    pub path: PathSpelling,
    /// The lists of actions; each list builds one descriptor.
    pub descriptors: Vec<Vec<Action>>,
}

/// One of Envoy's rate limit actions. It adds one entry to a descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// An entry with a constant key and value.
    GenericKey {
        /// The entry's key.
        #[serde(default = "generic_key")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
    },
    /// The value of a request header. If the header is repeated, the first value counts.
    RequestHeaders {
        /// The name of the header.
        header_name: HeaderName,
        /// The entry's key.
        descriptor_key: String,
        /// `true` to skip only this entry if the header is missing. With `false`, the whole
        /// descriptor is dropped.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// The client address that the proxy determined, with the key `remote_address`. The value has
    /// its canonical form (see [`address`]).
    RemoteAddress {},
    /// The network of the client address, such as `192.0.2.0/24`, with the key
    /// `masked_remote_address`.
    MaskedRemoteAddress {
        /// The length of the prefix of an IPv4 address, 0 to 32.
        #[serde(default)]
        v4_prefix_mask_len: PrefixLen<32>,
        /// The length of the prefix of an IPv6 address, 0 to 128.
        #[serde(default)]
        v6_prefix_mask_len: PrefixLen<128>,
    },
    /// An entry with a constant value, added only if the request's headers match.
    HeaderValueMatch {
        /// The entry's key.
        #[serde(default = "header_match")]
        descriptor_key: String,
        /// The entry's value.
        descriptor_value: String,
        /// `true` to add the entry if all matchers match, `false` to add it if they do not.
        #[serde(default = "default_true")]
        expect_match: bool,
        /// The header matchers.
        headers: Vec<HeaderMatcher>,
    },
    /// The value of a query parameter, percent-decoded.
    QueryParameters {
        /// The name of the parameter. If the parameter is repeated, the first value counts.
        query_parameter_name: String,
        /// The entry's key.
        descriptor_key: String,
        /// `true` to skip only this entry if the parameter is missing. With `false`, the whole
        /// descriptor is dropped.
        #[serde(default)]
        skip_if_absent: bool,
    },
    /// A text in Envoy's dynamic metadata of the request. NGINX has no metadata.
    Metadata {
        /// The entry's key.
        descriptor_key: String,
        /// The location of the text in the dynamic metadata.
        metadata_key: MetadataKey,
        /// The entry's value if the metadata has no text at the location.
        #[serde(default)]
        default_value: Option<String>,
        /// `true` to skip only this entry if there is neither text nor default. With `false`, the
        /// whole descriptor is dropped.
        #[serde(default)]
        skip_if_absent: bool,
    },
}

fn generic_key() -> String {
    "generic_key".to_owned()
}

fn header_match() -> String {
    "header_match".to_owned()
}

const fn default_true() -> bool {
    true
}

/// The entries of one descriptor, as keys and values. Up to four need no allocation.
pub type DescriptorEntries<'a> = SmallVec<[(&'a str, Cow<'a, str>); 4]>;

/// The descriptors of one request. Up to four need no allocation.
pub type Descriptors<'a> = SmallVec<[DescriptorEntries<'a>; 4]>;

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
    /// Returns the descriptors of a request. A descriptor is left out if the request lacks an input
    /// of one of its actions.
    #[must_use]
    pub fn build_descriptors<'a>(&'a self, request: &RequestAttributes<'a>) -> Descriptors<'a> {
        build_descriptors(&self.descriptors, self.path, request)
    }
}

/// Returns the descriptors of a request from lists of actions. A descriptor is left out if the
/// request lacks an input of one of its actions.
///
/// Cost: no allocation for raw paths without percent-encoded query parameters, if the values that
/// `request` returns are borrowed, and there are at most four descriptors of four entries.
#[must_use]
pub fn build_descriptors<'a>(
    descriptors: &'a [Vec<Action>],
    path: PathSpelling,
    request: &RequestAttributes<'a>,
) -> Descriptors<'a> {
    let descriptor = |actions: &'a Vec<Action>| {
        let mut entries = DescriptorEntries::new();
        for action in actions {
            match action.build_entry(request, path) {
                EntryResult::Entry(entry) => entries.push(entry),
                EntryResult::Skipped => {}
                EntryResult::Missing => return None,
            }
        }
        Some(entries).filter(|entries| !entries.is_empty())
    };
    descriptors.iter().filter_map(descriptor).collect()
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
    fn build_entry<'a>(
        &'a self,
        request: &RequestAttributes<'a>,
        path: PathSpelling,
    ) -> EntryResult<'a> {
        match self {
            Self::GenericKey { descriptor_key, descriptor_value } => {
                EntryResult::from_value(descriptor_key, Some(descriptor_value.into()), false)
            }
            Self::RequestHeaders { header_name, descriptor_key, skip_if_absent } => {
                let name = header_name.as_str();
                let value = (request.first_header_value)(name);
                let value = value.map(|value| path.spell(name, value));
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
            Self::RemoteAddress {} => EntryResult::from_value(
                "remote_address",
                request.remote_address.map(ClientAddress::value),
                false,
            ),
            Self::MaskedRemoteAddress { v4_prefix_mask_len, v6_prefix_mask_len } => {
                let network = request.remote_address.map(|address| {
                    let bits = match address.ip() {
                        IpAddr::V4(_) => v4_prefix_mask_len.bits(),
                        IpAddr::V6(_) => v6_prefix_mask_len.bits(),
                    };
                    Cow::Owned(Network::containing(address.ip(), bits).to_string())
                });
                EntryResult::from_value("masked_remote_address", network, false)
            }
            Self::HeaderValueMatch { descriptor_key, descriptor_value, expect_match, headers } => {
                let matches = headers.iter().all(|header| header.matches(request, path));
                let value = (matches == *expect_match).then(|| descriptor_value.into());
                EntryResult::from_value(descriptor_key, value, false)
            }
            Self::QueryParameters { query_parameter_name, descriptor_key, skip_if_absent } => {
                let value = query_parameter(request.path, query_parameter_name);
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
            Self::Metadata { descriptor_key, metadata_key, default_value, skip_if_absent } => {
                let text = (request.metadata)(metadata_key).filter(|text| !text.is_empty());
                let default = || default_value.as_deref().filter(|text| !text.is_empty());
                let value = text.or_else(|| default().map(Cow::Borrowed));
                EntryResult::from_value(descriptor_key, value, *skip_if_absent)
            }
        }
    }
}

/// Returns the first value of a query parameter, percent-decoded. As in Envoy, a `+` stays a `+`.
fn query_parameter<'a>(path: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let query = path.split_once('?')?.1.split('#').next()?;
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| percent_decode(key) == name)?;
    Some(percent_decode(value))
}

fn percent_decode(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}
