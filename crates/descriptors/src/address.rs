//! IP addresses as descriptor values.
//!
//! | a proxy sends | value |
//! |---|---|
//! | `192.0.2.7`, `::ffff:192.0.2.7` or `::ffff:c000:207` | `192.0.2.7` |
//! | `2001:DB8:0:0:0:0:0:1` | `2001:db8::1` |
//! | `fe80::1%eth0` | `fe80::1` |
//!
//! Guarantees:
//! - An address has one text: RFC 5952, and IPv4 for an IPv4-mapped address.
//! - A text that is already canonical is borrowed.
//!
//! Not covered:
//! - NAT64 (`64:ff9b::192.0.2.7`): such an address stays IPv6.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

/// The bits before the IPv4 address in an IPv4-mapped address.
const MAPPED_BITS: u8 = 96;

/// The client's address, as the proxy wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress<'a> {
    ip: IpAddr,
    text: &'a str,
}

impl<'a> ClientAddress<'a> {
    /// Parses an address, with or without a port: `192.0.2.7`, `192.0.2.7:5000`, `2001:db8::1` or
    /// `[2001:db8::1]:5000`. Returns `None` for other texts, such as the path of a Unix socket.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let text = text.trim();
        parse_ip(text).or_else(|| parse_ip(without_port(text)?))
    }

    /// Returns the address; IPv4 for an IPv4-mapped address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    /// Returns the canonical text.
    #[must_use]
    pub fn value(self) -> Cow<'a, str> {
        if has_text(&self.ip, self.text) {
            Cow::Borrowed(self.text)
        } else {
            Cow::Owned(self.ip.to_string())
        }
    }
}

/// Parses an address without a port. The zone of a link-local address is left out, because it has
/// a meaning only in the proxy.
fn parse_ip(text: &str) -> Option<ClientAddress<'_>> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    let ip: IpAddr = address.parse().ok()?;
    let is_valid = address.len() == text.len() || ip.is_ipv6();
    is_valid.then(|| ClientAddress { ip: ip.to_canonical(), text: address })
}

/// Returns the address in `192.0.2.7:5000`, `[2001:db8::1]:5000` or `[2001:db8::1]`.
fn without_port(text: &str) -> Option<&str> {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(host);
    }
    // An IPv6 address without brackets has no port.
    let (host, port) = text.split_once(':')?;
    is_port(port).then_some(host)
}

/// Returns `true` if `address` is displayed as `text`. Allocates nothing.
fn has_text(address: &IpAddr, text: &str) -> bool {
    let mut rest = RestOfText(text);
    write!(rest, "{address}").is_ok() && rest.0.is_empty()
}

/// The part of a text that was not written yet. Writing another text fails.
struct RestOfText<'a>(&'a str);

impl fmt::Write for RestOfText<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// An IP network: an address whose bits after the prefix are 0. The order is by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_len: u8,
}

/// The reason why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The text has no prefix length.
    NoPrefix(IpAddr),
    /// The part before the prefix length is no IP address.
    BadAddress,
    /// The prefix length is no number up to this width of an address.
    BadPrefix(u8),
    /// The address has a 1 bit after the prefix. This network contains it.
    HostBits(Network),
    /// The network has IPv4-mapped addresses. This is the same network in IPv4.
    Mapped(Network),
}

impl Network {
    /// Returns the network that contains `address`, with at most all its bits as the prefix.
    #[must_use]
    pub fn containing(address: IpAddr, prefix_len: u8) -> Self {
        let prefix_len = prefix_len.min(width(address));
        let host_bits = u32::from(width(address).saturating_sub(prefix_len));
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        };
        Self { address, prefix_len }
    }

    /// Parses a network such as `10.0.0.0/8`.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::BadAddress)?;
        let prefix_len = prefix_len.ok_or(NetworkError::NoPrefix(address.to_canonical()))?;
        let prefix_len = parse_prefix_len(prefix_len).filter(|bits| *bits <= width(address));
        let prefix_len = prefix_len.ok_or(NetworkError::BadPrefix(width(address)))?;
        let network = Self::containing(address, prefix_len);
        if network.address != address {
            return Err(NetworkError::HostBits(network));
        }
        match address.to_canonical() {
            four if four != address => {
                let prefix_len = prefix_len.saturating_sub(MAPPED_BITS);
                Err(NetworkError::Mapped(Self::containing(four, prefix_len)))
            }
            _ => Ok(network),
        }
    }

    /// Returns `true` if the network contains `address`. An IPv4-mapped address counts as IPv4.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && Self::containing(address, self.prefix_len) == self
    }

    /// Returns an address of this network. Its last bits, at most 64, are those of `host_bits`.
    #[must_use]
    pub fn address_with_host_bits(self, host_bits: u64) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                let host_bits = u32::try_from(host_bits & u64::from(mask)).unwrap_or(0);
                IpAddr::V4((address.to_bits() | host_bits).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                IpAddr::V6((address.to_bits() | (u128::from(host_bits) & mask)).into())
            }
        }
    }

    /// Returns the first address.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    #[must_use]
    pub const fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Returns the number of bits of an address of this family: 32 or 128.
    #[must_use]
    pub const fn width(self) -> u8 {
        width(self.address)
    }
}

/// Parses the length of a prefix: digits without a sign.
#[must_use]
pub fn parse_prefix_len(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Formats the network as Envoy does: `10.0.0.0/8`, `192.0.2.7/32`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}
