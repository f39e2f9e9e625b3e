//! Reads the client's request from the headers that NGINX sets.
//!
//! Guarantees:
//! - If a header that NGINX must set appears twice, the reply is 400: one may be the client's.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::hook::{self, HookError};

/// The header with the name of the hook. If it is absent or empty, the first hook applies.
const HOOK_HEADER: &str = "x-hook";
const URI_HEADER: &str = "x-original-uri";
const METHOD_HEADER: &str = "x-original-method";
const ADDRESS_HEADER: &str = "x-real-ip";

/// The value of `$remote_addr` for a client on a Unix socket.
const UNIX_SOCKET_ADDRESS: &str = "unix:";

/// The client's request, as NGINX's headers describe it.
pub(super) struct OriginalRequest<'h> {
    hook: Option<Cow<'h, str>>,
    uri: Cow<'h, str>,
    method: Cow<'h, str>,
    /// The text of an address; `None` for a client on a Unix socket.
    address: Option<Cow<'h, str>>,
    pub(super) id: Option<Cow<'h, str>>,
}

impl<'h> OriginalRequest<'h> {
    pub(super) fn from_headers(headers: &'h HeaderMap) -> Result<Self, NginxHeaderError> {
        Ok(Self {
            hook: single_header(headers, HOOK_HEADER)?.filter(|name| !name.is_empty()),
            uri: single_header(headers, URI_HEADER)?
                .ok_or(NginxHeaderError::Missing(URI_HEADER))?,
            method: single_header(headers, METHOD_HEADER)?
                .ok_or(NginxHeaderError::Missing(METHOD_HEADER))?,
            address: parse_address(
                single_header(headers, ADDRESS_HEADER)?
                    .ok_or(NginxHeaderError::Missing(ADDRESS_HEADER))?,
            )?,
            id: single_header(headers, hook::ID)?,
        })
    }

    /// Returns the value of a header by its lower-case name. Pseudo-headers come from the
    /// headers that NGINX sets, other names from `other`.
    fn header<'a>(
        &'a self,
        name: &str,
        other: impl FnOnce(&str) -> Option<Cow<'a, str>>,
    ) -> Option<Cow<'a, str>> {
        match name {
            ":path" => Some(Cow::Borrowed(&*self.uri)),
            ":method" => Some(Cow::Borrowed(&*self.method)),
            ":authority" => other("host"),
            name => other(name),
        }
    }

    pub(super) fn to_rate_limit_request(
        &self,
        hooks: &Hooks,
        headers: &HeaderMap,
    ) -> Result<RateLimitRequest, HookError> {
        let attributes = RequestAttributes {
            first_header_value: &|name| {
                self.header(name, |name| headers.get(name).map(header_text))
            },
            joined_header_values: &|name| self.header(name, |name| joined_header(headers, name)),
            path: &self.uri,
            remote_address: self.address.as_deref().and_then(ClientAddress::parse),
            metadata: &|_| None,
        };
        hook::build_request(hooks, self.hook.as_deref(), &attributes)
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NginxHeaderError {
    #[error("the header {0} is missing; set it in NGINX as in config/nginx/rate_limit.conf")]
    Missing(&'static str),
    #[error(
        "the header {0} is repeated; replace the client's header in NGINX with proxy_set_header"
    )]
    Duplicate(&'static str),
    #[error("the header x-real-ip is not an IP address; set it to $remote_addr in NGINX")]
    InvalidAddress,
}

fn single_header<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
) -> Result<Option<Cow<'h, str>>, NginxHeaderError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(header_text);
    if values.next().is_some() { Err(NginxHeaderError::Duplicate(name)) } else { Ok(first) }
}

fn parse_address(text: Cow<'_, str>) -> Result<Option<Cow<'_, str>>, NginxHeaderError> {
    if text == UNIX_SOCKET_ADDRESS {
        return Ok(None);
    }
    text.parse::<IpAddr>().map(|_| Some(text)).map_err(|_| NginxHeaderError::InvalidAddress)
}

/// Returns all values of a header, joined with commas as Envoy's matchers do.
fn joined_header<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    let mut values = headers.get_all(name).iter().map(header_text);
    let first = values.next()?;
    Some(values.fold(first, |all, next| Cow::Owned(format!("{all},{next}"))))
}

/// Returns the header value as text; bytes that are not UTF-8 are replaced. If the value
/// were ignored instead, a client could bypass a limit with such bytes.
fn header_text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}
