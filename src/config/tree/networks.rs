//! Matches descriptor values with networks (field `network`), longest prefix first.
//!
//! | network | `counter_per` | value | in the counter key |
//! |---|---|---|---|
//! | `10.0.0.0/8` | `address` | `::ffff:10.1.2.3` | `10.1.2.3` |
//! | `2001:db8::/32` | `/64` | `2001:db8:1:2::7` | `2001:db8:1:2::/64` |
//! | `10.0.0.0/8` | `network` | `10.1.2.3` | `10.0.0.0/8` |
//!
//! Guarantees:
//! - Values of a key with networks are addresses: all rules of the level see one spelling.
//! - A text of a counter key matches the same node as its value, and is not replaced again.
//! - The cost depends on the number of different prefix lengths, not of networks.
//!
//! Not covered:
//! - Values that are no addresses: they match other rules of the level, as text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use super::node::{DescriptorNode, NodeId};
use super::{DescriptorTree, LookupTarget, MatchKind};
use crate::config::hooks::address::{ClientAddress, Network};

/// A network, and the counters of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedNetwork {
    /// The network.
    pub network: Network,
    /// The number of bits that addresses with one counter have in common. At least those of the
    /// network, at most all bits of an address.
    pub counter_bits: u8,
}

/// The networks of a tree.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkTable {
    by_level: HashMap<NodeId, HashMap<Box<str>, KeyNetworks>>,
    by_node: HashMap<NodeId, CountedNetwork>,
}

/// The networks of one key on one level.
#[derive(Clone, Debug, Default)]
struct KeyNetworks {
    /// The prefix lengths of all networks, the longest first.
    prefix_lens: Vec<u8>,
    nodes: HashMap<Network, NodeId>,
}

/// A descriptor value for a key with networks.
#[derive(Clone, Copy)]
enum AddressValue<'v> {
    /// The value of a request.
    Address(ClientAddress<'v>),
    /// The text in a counter key for the addresses of a network.
    Counter(Network),
}

impl CountedNetwork {
    fn counter_text<'v>(&self, address: ClientAddress<'v>) -> Cow<'v, str> {
        if self.network.width() <= self.counter_bits {
            return address.value();
        }
        Cow::Owned(Network::containing(address.ip(), self.counter_bits).to_string())
    }
}

impl<'v> AddressValue<'v> {
    fn parse(value: &'v str) -> Option<Self> {
        let address = ClientAddress::parse(value).map(Self::Address);
        address.or_else(|| Network::parse(value).ok().map(Self::Counter))
    }

    const fn ip(self) -> IpAddr {
        match self {
            Self::Address(address) => address.ip(),
            Self::Counter(network) => network.address(),
        }
    }

    fn text(self) -> Cow<'v, str> {
        match self {
            Self::Address(address) => address.value(),
            Self::Counter(network) => Cow::Owned(network.to_string()),
        }
    }
}

impl KeyNetworks {
    fn insert(&mut self, network: Network, node: NodeId) {
        self.nodes.insert(network, node);
        let bits = network.prefix_len();
        if let Err(at) = self.prefix_lens.binary_search_by(|other| bits.cmp(other)) {
            self.prefix_lens.insert(at, bits);
        }
    }

    /// Returns the nodes of the networks that contain an address, the longest prefix first.
    fn containing(&self, ip: IpAddr) -> impl Iterator<Item = NodeId> {
        let known = self.prefix_lens.iter().filter_map(move |bits| {
            let network = Network::containing(ip, *bits);
            self.nodes.get(&network).filter(|_| network.prefix_len() == *bits)
        });
        known.copied()
    }
}

impl NetworkTable {
    pub(super) fn insert(
        &mut self,
        level: NodeId,
        key: &str,
        node: NodeId,
        counted: CountedNetwork,
    ) {
        let networks = self.by_level.entry(level).or_default().entry(key.into()).or_default();
        networks.insert(counted.network, node);
        self.by_node.insert(node, counted);
    }

    pub(super) fn get(&self, node: NodeId) -> Option<CountedNetwork> {
        self.by_node.get(&node).copied()
    }

    /// Returns the networks of a key, and the value if it is an address.
    fn for_entry<'v>(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &'v str),
    ) -> Option<(&KeyNetworks, AddressValue<'v>)> {
        let networks = self.by_level.get(&level.id)?.get(key)?;
        Some((networks, AddressValue::parse(value)?))
    }

    /// Returns the node of the longest network that contains the value.
    fn find(&self, networks: &KeyNetworks, value: AddressValue<'_>) -> Option<NodeId> {
        let is_counter_of = |node: &NodeId| match value {
            AddressValue::Address(_) => true,
            AddressValue::Counter(counter) => self.get(*node).is_some_and(|counted| {
                counted.counter_bits == counter.prefix_len()
                    && counted.network.prefix_len() <= counter.prefix_len()
            }),
        };
        networks.containing(value.ip()).find(is_counter_of)
    }
}

impl DescriptorTree {
    /// Returns the match of an entry whose value is an address. `None` if the level has no network
    /// with this key, or the value is no address.
    #[cold]
    pub(super) fn match_address(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &str),
    ) -> Option<Option<(LookupTarget, MatchKind)>> {
        let (networks, value) = self.networks.for_entry(level, (key, value))?;
        let text = value.text();
        let exact = self.match_exact(level, (key, &text));
        let network = || {
            let node = self.networks.find(networks, value)?;
            Some((LookupTarget::of_node(node), MatchKind::Network))
        };
        Some(exact.or_else(network).or_else(|| self.match_text(level, (key, &text))))
    }

    /// Returns the text in counter keys for a value that is an address, if it is another text.
    #[cold]
    pub(super) fn address_text(
        &self,
        level: &DescriptorNode,
        entry: (&str, &str),
        target: LookupTarget,
    ) -> Option<String> {
        let (_, value) = self.networks.for_entry(level, entry)?;
        let counted = target.node().and_then(|node| self.networks.get(node));
        let text = match (value, counted) {
            (AddressValue::Address(address), Some(counted)) => counted.counter_text(address),
            _ => value.text(),
        };
        (text != entry.1).then(|| text.into_owned())
    }

    /// Returns the canonical text of a value that is an address.
    pub(super) fn canonical_value<'v>(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &'v str),
    ) -> Cow<'v, str> {
        let found = self.networks.for_entry(level, (key, value));
        found.map_or(Cow::Borrowed(value), |(_, value)| value.text())
    }

    /// Returns the nodes whose networks contain the value of an entry, the longest prefix first.
    pub(super) fn networks_around(
        &self,
        level: &DescriptorNode,
        entry: (&str, &str),
    ) -> Vec<NodeId> {
        let found = self.networks.for_entry(level, entry);
        found.map_or_else(Vec::new, |(networks, value)| networks.containing(value.ip()).collect())
    }
}
