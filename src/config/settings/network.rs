//! Parses settings that are an optional port or a list of IP networks.
//!
//! Guarantees:
//! - A network contains an address if IP version and prefix bits are equal.
//! - An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts as IPv4.

use std::fmt;
use std::net::IpAddr;

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

impl Value for Option<u16> {
    const IS_SCALAR: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            _ => u16::read(texts).map(Some),
        }
    }
    fn accepts() -> String {
        format!("{}, or nothing for none", u16::accepts())
    }
    fn show(&self) -> String {
        self.map_or_else(|| quoted(""), |port| port.to_string())
    }
    fn schema() -> Json {
        json!({"type": ["integer", "string"], "minimum": 0, "maximum": u16::MAX, "maxLength": 0})
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IpNetwork {
    address: IpAddr,
    bits: u32,
}

/// A list of IP networks and single IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNetwork>);

impl Networks {
    /// Parses networks and addresses, separated by commas: `10.0.0.0/8, ::1`. Returns `None` for a
    /// network with a 1 bit after its prefix (`10.0.0.1/8`), which is probably a typo.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(IpNetwork::new).collect::<Option<_>>().map(Self)
    }

    /// Returns the loopback networks of IPv4 and IPv6.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new("127.0.0.0/8, ::1").unwrap_or_default()
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
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl IpNetwork {
    fn new(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (address.parse().ok()?, bits.parse().ok()?)
            }
            Some(_) => return None,
            None => {
                let address: IpAddr = text.parse().ok()?;
                (address, address_width(address))
            }
        };
        let sound =
            bits <= address_width(address) && network_bits(address, bits) == address_bits(address);
        sound.then_some(Self { address, bits })
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && network_bits(address, self.bits) == address_bits(self.address)
    }
}

const fn address_width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn network_bits(address: IpAddr, bits: u32) -> u128 {
    let rest = address_width(address).saturating_sub(bits);
    let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
    address_bits(address) & mask
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        if self.bits < address_width(self.address) { write!(f, "/{}", self.bits) } else { Ok(()) }
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
        quoted(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
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
