//! Protects operators whose browser shows pages of other sites.
//!
//! Guarantees:
//! - A form or script of another origin changes nothing, even behind a proxy that adds a token.
//! - A name that an attacker's DNS server resolves to this machine is refused without a token.
//! - No page can be shown in a frame, and no script from elsewhere runs.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SECURITY_HEADERS: [(HeaderName, HeaderValue); 4] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

/// Adds the headers that restrict browsers. Pages are not cached unless they say otherwise.
pub(super) async fn add_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, value);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns `false` if a browser sent the request from a page of another origin. Programs such as
/// curl send neither `Sec-Fetch-Site` nor `Origin`.
pub(super) fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let origin_authority = origin.as_ref().and_then(Uri::authority).map(Authority::as_str);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    origin_authority.is_some() && origin_authority == host
}

/// Returns `true` if the client addressed this machine by an IP address or as `localhost`.
pub(super) fn has_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let name = authority.host().trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(header).collect()
    }

    #[test]
    fn only_requests_from_the_own_origin_are_same_origin() {
        let own = [
            &[][..],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("host", "10.0.0.1:6070"), ("origin", "http://10.0.0.1:6070")],
        ];
        assert!(own.iter().all(|pairs| is_same_origin(&headers(pairs))));
        let foreign = [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("host", "10.0.0.1:6070"), ("origin", "http://evil.example")],
            &[("host", "10.0.0.1:6070"), ("origin", "http://10.0.0.1:8080")],
            &[("host", "10.0.0.1:6070"), ("origin", "null")],
            &[("origin", "http://evil.example")],
        ];
        assert!(foreign.iter().all(|pairs| !is_same_origin(&headers(pairs))));
    }

    #[test]
    fn only_addresses_and_localhost_are_local_hosts() {
        for host in ["127.0.0.1:6070", "[::1]:6070", "localhost", "LOCALHOST:1", "10.0.0.7"] {
            assert!(has_local_host(&headers(&[("host", host)])), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:6070", "@", ""] {
            assert!(!has_local_host(&headers(&[("host", host)])), "{host}");
        }
    }
}
