//! The headers and trailers of an `ext_proc` message by name.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::HeaderMap;

/// The values of one header, in the order of its lines.
pub(super) struct HeaderLines {
    /// The values, separated by commas.
    pub(super) joined: String,
    /// The length of the first value in `joined`, in bytes.
    first_len: usize,
}

impl HeaderLines {
    pub(super) fn first(&self) -> &str {
        &self.joined[..self.first_len]
    }
}

pub(super) fn headers_by_name(headers: Option<&HeaderMap>) -> HashMap<&str, HeaderLines> {
    let mut headers_by_name: HashMap<&str, HeaderLines> = HashMap::new();
    for header in headers.into_iter().flat_map(|headers| &headers.headers) {
        let raw = String::from_utf8_lossy(&header.raw_value);
        let value = if header.value.is_empty() { &*raw } else { &*header.value };
        headers_by_name
            .entry(&header.key)
            .and_modify(|lines| {
                lines.joined.push(',');
                lines.joined.push_str(value);
            })
            .or_insert_with(|| HeaderLines { joined: value.to_owned(), first_len: value.len() });
    }
    headers_by_name
}
