//! Reads the attributes of a request from Envoy's buffers.
//!
//! Guarantees:
//! - A valid UTF-8 value of a single header is borrowed, not copied.
//! - Only the inputs of the configured actions are read.

use std::borrow::Cow;

use sluicegate_descriptors::address::ClientAddress;
use sluicegate_descriptors::{
    Action, Descriptors, MetadataKey, PathSpelling, RequestAttributes, build_descriptors,
};

use crate::stream::{EnvoyStream, HeaderMap};

/// Calls `check` with the descriptors of the request, which end with the call.
pub(crate) fn with_descriptors<T>(
    stream: &impl EnvoyStream,
    actions: &[Vec<Action>],
    path: PathSpelling,
    check: impl FnOnce(&Descriptors<'_>) -> T,
) -> T {
    let has = |is_kind: fn(&Action) -> bool| actions.iter().flatten().any(is_kind);
    let has_query = has(|action| matches!(action, Action::QueryParameters { .. }));
    let has_address = has(|action| {
        matches!(action, Action::RemoteAddress {} | Action::MaskedRemoteAddress { .. })
    });
    let full_path = Some(":path").filter(|_| has_query).and_then(|name| first_value(stream, name));
    let address = Some(stream).filter(|_| has_address).and_then(EnvoyStream::source_address);
    let attributes = RequestAttributes {
        first_header_value: &|name| first_value(stream, name),
        joined_header_values: &|name| joined_values(stream, name),
        path: full_path.as_deref().unwrap_or_default(),
        remote_address: address.and_then(client_address),
        metadata: &|key| metadata_text(stream, key),
    };
    check(&build_descriptors(actions, path, &attributes))
}

fn first_value<'s>(stream: &'s impl EnvoyStream, name: &str) -> Option<Cow<'s, str>> {
    stream.header(HeaderMap::Request, name, 0).map(|value| String::from_utf8_lossy(value.bytes))
}

fn joined_values<'s>(stream: &'s impl EnvoyStream, name: &str) -> Option<Cow<'s, str>> {
    let first = stream.header(HeaderMap::Request, name, 0)?;
    let mut joined = String::from_utf8_lossy(first.bytes);
    for index in 1..first.count {
        let value = stream.header(HeaderMap::Request, name, index)?;
        let text = joined.to_mut();
        text.push(',');
        text.push_str(&String::from_utf8_lossy(value.bytes));
    }
    Some(joined)
}

/// The config allows only keys of one level.
fn metadata_text<'s>(stream: &'s impl EnvoyStream, key: &MetadataKey) -> Option<Cow<'s, str>> {
    let segment = key.path.first()?;
    stream.metadata_text(&key.key, &segment.key).map(String::from_utf8_lossy)
}

/// A Unix socket has no IP address.
fn client_address(text: &[u8]) -> Option<ClientAddress<'_>> {
    ClientAddress::parse(std::str::from_utf8(text).ok()?)
}
