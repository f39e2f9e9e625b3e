//! Matches between descriptor values and the nodes of a tree, for recordings with hashed values.
//!
//! Guarantees:
//! - Values match nodes as in a lookup of the rule.
//!
//! Not covered:
//! - Hashing (see `recording::hashed_values`).

use smallvec::SmallVec;

use super::{DescriptorTree, MatchKind};
use crate::hooks::address::Network;

/// The kind of match of one descriptor value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueMatch<'t> {
    /// A node has exactly this value.
    Exact,
    /// The longest network that contains the value.
    Network(Network),
    /// The first pattern that matches, without the key before it.
    Pattern(&'t str),
    /// A node has only the key.
    Any,
}

impl DescriptorTree {
    /// Returns the match of each entry of a descriptor, up to the first entry without a node.
    pub fn match_values<'e>(
        &self,
        entries: impl IntoIterator<Item = (&'e str, &'e str)>,
    ) -> SmallVec<[ValueMatch<'_>; 4]> {
        let (mut matches, mut level) = (SmallVec::new(), Some(self.root()));
        for (key, value) in entries {
            let found = level.and_then(|level| self.match_entry(level, key, value));
            let Some((target, kind)) = found else { break };
            level = self.node_at(target);
            let network = target.node().and_then(|node| self.networks.get(node));
            let name = level.map(|node| self.text(node.name));
            let pattern = name.and_then(|name| name.strip_prefix(key)?.strip_prefix('_'));
            matches.push(match (kind, pattern, network) {
                (MatchKind::Exact, ..) => ValueMatch::Exact,
                (MatchKind::Network, _, Some(counted)) => ValueMatch::Network(counted.network),
                (MatchKind::Wildcard, Some(pattern), _) => ValueMatch::Pattern(pattern),
                _ => ValueMatch::Any,
            });
        }
        matches
    }

    /// Returns the values of all nodes that have an exact value.
    pub fn exact_values(&self) -> impl Iterator<Item = &str> {
        self.nodes().filter_map(|node| self.key_and_value(node).1.filter(|v| !v.contains('*')))
    }

    /// Returns the names of all nodes that are patterns, as `key_pattern`.
    pub fn patterns_of_all_levels(&self) -> impl Iterator<Item = &str> {
        self.nodes().map(|node| self.name(node)).filter(|name| name.contains('*'))
    }
}
