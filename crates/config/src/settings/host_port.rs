//! The host and the port of a server.
//!
//! Guarantees:
//! - A host has only characters of names and IP addresses.

use std::fmt;

/// The host and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host name or IP address, for IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

pub(super) fn parse_address(text: &str, default: u16) -> Option<HostPort> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None => default,
        Some(port) => only_digits(port)?.parse().ok().filter(|port| *port != 0)?,
    };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(sound);
    is_host.then(|| HostPort { host: host.to_owned(), port })
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Returns `text` if it contains only digits. `str::parse` would also accept a sign.
pub(super) fn only_digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}
