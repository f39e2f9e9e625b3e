//! Matches entries with networks, and spells the addresses in counter keys.

use std::borrow::Cow;

use super::networks::{AddressValue, KeyNetworks};
use super::node::{DescriptorNode, NodeId};
use super::table::LookupTarget;
use super::{DescriptorTree, MatchKind};

impl DescriptorTree {
    /// Returns the match of an entry whose key has networks, and whose value is an address.
    #[cold]
    pub(super) fn match_address(
        &self,
        level: &DescriptorNode,
        key: &str,
        (networks, value): (&KeyNetworks, AddressValue<'_>),
    ) -> Option<(LookupTarget, MatchKind)> {
        let text = value.text();
        let exact = self.match_exact(level, (key, &text));
        let network = || {
            let node = self.networks.find(networks, value)?;
            Some((LookupTarget::of_node(node), MatchKind::Network))
        };
        exact.or_else(network).or_else(|| self.match_text(level, (key, &text)))
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
