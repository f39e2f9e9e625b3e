//! Parses settings that are an optional port or a list of IP networks.
//!
//! Guarantees:
//! - A network contains an address if IP version and prefix bits are equal.
//! - An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts as IPv4.

use std::net::IpAddr;

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};
use super::words::{Absent, Word as _};
use crate::hooks::address::{Network, NetworkError};

impl Value for Option<u16> {
    const IS_SCALAR: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [word] if *word == Absent::WORD => Some(None),
            _ => u16::read(texts).map(Some),
        }
    }
    fn accepts() -> String {
        format!("`{}`, or {}", Absent::WORD, u16::accepts())
    }
    fn show(&self) -> String {
        self.map_or_else(|| Absent::WORD.to_owned(), |port| port.to_string())
    }
    fn schema() -> Json {
        json!({"type": ["integer", "string"], "anyOf": [{"const": Absent::WORD}, u16::schema()]})
    }
}

/// A list of IP networks and single IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Parses networks and addresses, separated by commas: `10.0.0.0/8, ::1`. Returns `None` for a
    /// network with a 1 bit after its prefix (`10.0.0.1/8`), which is probably a typo.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(parse_network).collect::<Option<_>>().map(Self)
    }

    /// Returns the loopback networks of IPv4 and IPv6.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new("127.0.0.0/8, ::1").unwrap_or_default()
    }

    /// Returns `true` if the networks contain loopback addresses only.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let loopback = Self::loopback();
        self.0.iter().all(|network| {
            let is_inside = |one: &Network| {
                one.contains(network.address()) && one.prefix_len() <= network.prefix_len()
            };
            loopback.0.iter().any(is_inside)
        })
    }

    /// Returns the loopback and private networks: RFC 1918, RFC 6598, RFC 4193.
    #[must_use]
    pub fn private() -> Self {
        let shared = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7";
        Self::new(&format!("127.0.0.0/8, ::1, {shared}")).unwrap_or_default()
    }

    /// Returns `true` if one of the networks contains `address`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

/// Parses a network, or a single address as the network of only this address.
fn parse_network(text: &str) -> Option<Network> {
    match Network::parse(text) {
        Ok(network) | Err(NetworkError::Mapped(network)) => Some(network),
        Err(NetworkError::NoPrefix(address)) => Some(Network::containing(address, u8::MAX)),
        Err(_) => None,
    }
}

fn show_network(network: &Network) -> String {
    if network.prefix_len() < network.width() {
        network.to_string()
    } else {
        network.address().to_string()
    }
}

impl Value for Networks {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => Self::new(text),
            _ => None,
        }
    }
    fn accepts() -> String {
        "networks and addresses separated by commas, such as 10.0.0.0/8, ::1".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.0.iter().map(show_network).collect::<Vec<_>>().join(", "))
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^[0-9A-Fa-f.:/, ]*$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_match_addresses_by_prefix_and_family() {
        let networks = Networks::new("10.1.0.0/16, 192.0.2.7,2001:db8::/32, 128.0.0.0/1").unwrap();
        for (address, inside) in [
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.6", true),
            ("127.255.255.255", false),
            ("::ffff:10.1.2.3", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::10.1.0.1", false),
        ] {
            assert_eq!(networks.contains(address.parse().unwrap()), inside, "{address}");
        }
        assert!(Networks::new("0.0.0.0/0").unwrap().contains("8.8.8.8".parse().unwrap()));
        assert!(!Networks::new("").unwrap().contains("127.0.0.1".parse().unwrap()));
        let own = Networks::loopback();
        assert!(["127.0.0.1", "127.9.9.9", "::1"].iter().all(|a| own.contains(a.parse().unwrap())));
        for (address, inside) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("192.168.1.1", true),
            ("100.127.0.1", true),
            ("fd00::1", true),
            ("172.32.0.1", false),
            ("8.8.8.8", false),
            ("169.254.169.254", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(Networks::private().contains(address.parse().unwrap()), inside, "{address}");
        }
    }

    #[test]
    fn malformed_networks_are_rejected() {
        for text in ["10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "host", "1"]
        {
            assert_eq!(Networks::new(text), None, "{text}");
        }
    }
}
