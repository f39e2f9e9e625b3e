//! The nodes of a descriptor tree, and the hashes of their names.
//!
//! Guarantees:
//! - The hash of `key_value` is the hash of `key`, continued with `_` and the value.
//!
//! Not covered:
//! - The search for a name (see [`super::table`]).

use std::hash::Hasher;
use std::num::NonZeroU32;
use std::ops::Range;

use fnv::FnvHasher;

/// The number of a node. The same number identifies the level of its children. The root has no name
/// and stands for the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(super) u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of the descriptor tree. A lookup does not read a node that has only a rule: its table
/// entry contains the rule's number.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorNode {
    pub(crate) id: NodeId,
    pub(crate) parent: NodeId,
    pub(super) name: NameSpan,
    /// The length of the key in the node's name, in bytes. After it come `_` and the value, if the
    /// node has one.
    pub(super) key_len: u32,
    pub(super) rule: Option<RuleId>,
    pub(super) wildcards: Range<u32>,
    /// The lengths of the children's names, as a bit set. If bit `length % 32` is 0, no child has a
    /// name of that length.
    pub(super) lengths_below: u32,
    /// `true` if a child is a network.
    pub(super) has_networks: bool,
    pub(crate) flags: NodeFlags,
}

impl DescriptorNode {
    pub(super) fn new(
        id: NodeId,
        parent: NodeId,
        name: NameSpan,
        key_len: u32,
        flags: NodeFlags,
    ) -> Self {
        let (rule, wildcards, lengths_below) = (None, 0..0, 0);
        let has_networks = false;
        Self { id, parent, name, key_len, rule, wildcards, lengths_below, has_networks, flags }
    }

    pub(crate) const fn has_children(&self) -> bool {
        self.lengths_below != 0 || self.has_networks
    }

    /// Returns `false` if no child has a name of `len` bytes. The lookup then skips hashing the
    /// name, for example if all children are bare keys.
    pub(super) const fn may_have_name_of_len(&self, len: usize) -> bool {
        self.lengths_below & (1 << (len % 32)) != 0
    }
}

/// The number of a rule in the tree, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleId(pub(super) NonZeroU32);

impl RuleId {
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameSpan {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl NameSpan {
    pub(super) fn text(self, names: &str) -> &str {
        let start = self.start as usize;
        &names[start..start + self.len as usize]
    }
}

/// The fields `value_to_metric` and `share_threshold` of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFlags {
    pub(crate) share_threshold: bool,
    /// `value_to_metric`: the names of metrics contain the value of this node's entry.
    pub(crate) value_to_metric: bool,
}

/// Returns the state of the hash function after `key`, for names on one level.
///
/// FNV hashes bytes one by one. So `key` and `key_value` share the work for `key`, and need not be
/// joined in memory. The cost is a few nanoseconds for names of usual length. A keyed hash is
/// unnecessary: the table contains only configured names, so clients cannot provoke collisions.
pub(super) fn key_hasher(level: NodeId, key: &[u8]) -> FnvHasher {
    // Multiplying by an odd number gives each level a different start state.
    let mut hasher = FnvHasher::with_key(u64::from(level.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hasher.write(key);
    hasher
}

pub(super) fn exact_hash(mut key: FnvHasher, value: &str) -> u64 {
    key.write(b"_");
    key.write(value.as_bytes());
    key.finish()
}

pub(super) fn name_hash(level: NodeId, name: &str) -> u64 {
    key_hasher(level, name.as_bytes()).finish()
}
