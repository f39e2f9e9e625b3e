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
use crate::hooks::address::{ClientAddress, Network};

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
pub(super) struct KeyNetworks {
    /// The prefix lengths of all networks, the longest first.
    prefix_lens: Vec<u8>,
    nodes: HashMap<Network, NodeId>,
}

/// A descriptor value for a key with networks.
#[derive(Clone, Copy)]
pub(super) enum AddressValue<'v> {
    /// The value of a request.
    Address(ClientAddress<'v>),
    /// The text in a counter key for the addresses of a network.
    Counter(Network),
}

impl CountedNetwork {
    pub(super) fn counter_text<'v>(&self, address: ClientAddress<'v>) -> Cow<'v, str> {
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

    pub(super) const fn ip(self) -> IpAddr {
        match self {
            Self::Address(address) => address.ip(),
            Self::Counter(network) => network.address(),
        }
    }

    pub(super) fn text(self) -> Cow<'v, str> {
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
    pub(super) fn containing(&self, ip: IpAddr) -> impl Iterator<Item = NodeId> {
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
    pub(super) fn for_entry<'v>(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &'v str),
    ) -> Option<(&KeyNetworks, AddressValue<'v>)> {
        let networks = self.by_level.get(&level.id)?.get(key)?;
        Some((networks, AddressValue::parse(value)?))
    }

    /// Returns the node of the longest network that contains the value.
    pub(super) fn find(&self, networks: &KeyNetworks, value: AddressValue<'_>) -> Option<NodeId> {
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
