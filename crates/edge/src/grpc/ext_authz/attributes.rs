//! Reads the attributes of a request from a `CheckRequest` of Envoy's `ext_authz` filter.
//!
//! Guarantees:
//! - The names of the hook and of the address header come from the route's `context_extensions`,
//!   never from the request.

use std::borrow::Cow;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::service::auth::v3::AttributeContext;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::hook::{self, HookError};

/// The key in `context_extensions` with the name of the hook.
const HOOK_KEY: &str = "hook";

/// The key in `context_extensions` with the name of the header that contains the client's address.
/// Without it, the address is that of Envoy's peer, which may be a load balancer.
const ADDRESS_HEADER_KEY: &str = "remote_address_header";

/// Builds the rate limit request of an `ext_authz` call, with the hook that the route names.
///
/// # Errors
/// The errors of [`hook::build_request`].
pub fn rate_limit_request(
    hooks: &Hooks,
    context: &AttributeContext,
) -> Result<RateLimitRequest, HookError> {
    let no_http = HttpRequest::default();
    let http = context.request.as_ref().and_then(|request| request.http.as_ref());
    let http = http.unwrap_or(&no_http);
    let address = client_address(context, http);
    let attributes = RequestAttributes {
        first_header_value: &|name| first_header(http, name),
        joined_header_values: &|name| joined_header(http, name),
        path: &http.path,
        remote_address: address.as_deref().and_then(ClientAddress::parse),
        metadata: &|key| hook::metadata_string(context.metadata_context.as_ref(), key),
    };
    hook::build_request(
        hooks,
        context.context_extensions.get(HOOK_KEY).map(String::as_str),
        &attributes,
    )
}

/// Returns the request id that Envoy sent.
pub(super) fn envoy_request_id(context: &AttributeContext) -> Option<Cow<'_, str>> {
    joined_header(context.request.as_ref()?.http.as_ref()?, hook::ID)
}

/// Returns the first value of a header, or all values if Envoy has joined them.
fn first_header<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    header_lines(http, name).next()
}

/// Returns all values of a header, joined with commas as in Envoy.
fn joined_header<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    header_lines(http, name).reduce(|joined, next| {
        // Appends in place, because thousands of headers may have the same name.
        let mut joined = joined.into_owned();
        joined.push(',');
        joined.push_str(&next);
        Cow::Owned(joined)
    })
}

/// Returns the values of a header. They are joined in `headers`, or raw in `header_map` if Envoy's
/// `encode_raw_headers` is set.
fn header_lines<'r>(http: &'r HttpRequest, name: &str) -> impl Iterator<Item = Cow<'r, str>> {
    let joined = http.headers.get(name).map(|value| Cow::Borrowed(value.as_str()));
    let raw = http.header_map.as_ref().filter(|_| joined.is_none());
    let raw = raw.into_iter().flat_map(|raw| &raw.headers).filter(move |header| header.key == name);
    joined.into_iter().chain(raw.map(header_value))
}

fn header_value(header: &HeaderValue) -> Cow<'_, str> {
    match &*header.raw_value {
        [] => Cow::Borrowed(&*header.value),
        raw => String::from_utf8_lossy(raw),
    }
}

fn client_address<'r>(
    context: &'r AttributeContext,
    http: &'r HttpRequest,
) -> Option<Cow<'r, str>> {
    if let Some(name) = context.context_extensions.get(ADDRESS_HEADER_KEY) {
        return joined_header(http, &name.to_ascii_lowercase());
    }
    match context.source.as_ref()?.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => Some(Cow::Borrowed(&socket.address)),
        _ => None,
    }
}
