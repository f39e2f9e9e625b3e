//! Finds out whether descriptors with given keys can match a limit, for any values.
//!
//! Guarantees:
//! - `false` means that no descriptor with these keys matches a limit.
//! - A pattern counts as a match if it may match the key with some value.
//!
//! Not covered:
//! - Trees of more than [`MAX_SEARCHED_NODES`] nodes: the result is always `true`.

use super::DescriptorTree;
use super::node::NodeId;

/// The largest number of nodes that a search reads, in about a tenth of a millisecond.
pub const MAX_SEARCHED_NODES: usize = 10_000;

impl DescriptorTree {
    /// Returns `true` if a descriptor with these keys, in this order, may match a rate limit or a
    /// concurrency limit, or if one of the keys is `by` of `classes` or `fair`. Cost: reads all nodes.
    #[must_use]
    pub fn may_limit_keys(&self, keys: &[&str]) -> bool {
        MAX_SEARCHED_NODES < self.nodes().count()
            || self.nodes().any(|node| self.has_limit(node) && self.may_match_keys(node, keys))
            || self.requester_keys().any(|key| keys.contains(&key))
    }

    /// Returns `true` if an entry tells the class or the customer of a check.
    #[must_use]
    pub fn has_requester_key(&self, entries: &[(&str, &str)]) -> bool {
        self.requester_keys().any(|key| entries.iter().any(|(name, _)| *name == key))
    }

    /// Returns the keys of the entries with classes and customers.
    fn requester_keys(&self) -> impl Iterator<Item = &str> {
        let rules = self.concurrency_limits().filter_map(|limit| limit.requesters.as_ref());
        rules.flat_map(|rule| [&rule.keys.class, &rule.keys.customer]).flatten().map(|key| &**key)
    }

    fn has_limit(&self, node: NodeId) -> bool {
        self.rule(node).is_some() || self.concurrency_limit_of(node).is_some()
    }

    fn may_match_keys(&self, node: NodeId, keys: &[&str]) -> bool {
        let mut level = node;
        for key in keys.iter().rev() {
            if level == NodeId::ROOT || !may_match_key(self.name(level), key) {
                return false;
            }
            level = self.node(level).parent;
        }
        level == NodeId::ROOT
    }
}

/// Returns `true` if the node `name` may match an entry with this key, whose text is the key, `_`
/// and any value.
///
/// | name | `path` | `a` |
/// |---|---|---|
/// | `path`, `path_/login` | yes | no |
/// | `a_b_*` | no | yes |
/// | `pa*` | yes | no |
fn may_match_key(name: &str, key: &str) -> bool {
    let goes_on = |text: &str| text.strip_prefix(key).is_some_and(|rest| rest.starts_with('_'));
    match name.split_once('*') {
        Some((start, _)) => key.starts_with(start) || goes_on(start),
        None => name == key || goes_on(name),
    }
}
