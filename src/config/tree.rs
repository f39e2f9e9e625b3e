//! The rules of one domain and how a descriptor finds its own.
//!
//! Guarantees: the reference's algorithm. Every node stands under one string, `key` or `key_value`.
//! A descriptor is walked entry by entry: the exact `key_value`, else the first pattern of the
//! level in the file's order, else the bare `key`. No way back, and the depth must be the rule's.
//! A lookup allocates nothing (up to [`SHARED_INLINE`] shared positions); its cost does not depend
//! on the number of nodes, and a level's patterns are asked only where the exact name is absent.
//! Leaves out: reading rules from a file, which is for [`super::resolve`].

pub(crate) mod builder;
pub(crate) mod pattern;
pub mod trace;

use std::hash::Hasher;
use std::ops::Range;

use fnv::FnvHasher;
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::Rule;
use pattern::Composite;

/// Shared positions that a [`Match`] holds without allocating.
pub const SHARED_INLINE: usize = 1;

/// The rules of one domain.
///
/// Cost: one table for all levels, one text for all names; 44 bytes a node besides its name and rule.
#[derive(Debug)]
pub struct DescriptorTree {
    table: HashTable<Slot>,
    nodes: Vec<Node>,
    names: String,
    wildcards: Vec<NodeId>,
    rules: Vec<Rule>,
}

/// A rule and what its counter is keyed by.
#[derive(Debug)]
pub struct Match<'t> {
    /// What the matching node imposes.
    pub rule: &'t Rule,
    /// Positions whose run-time value gives way to this text in counter keys: all values that a
    /// `share_threshold` pattern matches are one.
    pub shared: Shared<'t>,
}

/// Entry positions, from 0 and ascending, and what stands there instead of the run-time value.
pub type Shared<'t> = SmallVec<[(usize, &'t str); SHARED_INLINE]>;

/// The number of a node; also names the level below it. The root is the domain itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a node's name stands in `names`; beside the node's number, so that comparing the name and
/// reading the node are two loads at once and not one after the other.
#[derive(Clone, Copy, Debug)]
struct Slot {
    node: NodeId,
    start: u32,
    len: u32,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) parent: NodeId,
    start: u32,
    len: u32,
    /// How many bytes of the name are the key; the rest is `_` and the value.
    key_len: u32,
    rule: Option<u32>,
    wildcards: Range<u32>,
    pub(crate) has_children: bool,
    pub(crate) marks: Marks,
}

/// What a node says about counters and metrics of the questions that pass through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// `share_threshold`.
    pub(crate) share_threshold: bool,
    /// `value_to_metric`: the metric's key carries this level's run-time value.
    pub(crate) value_to_metric: bool,
}

/// How a node was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By `key_value` as it stands.
    Exact,
    /// By a pattern.
    Wildcard,
    /// By `key` alone.
    Bare,
}

impl Default for DescriptorTree {
    fn default() -> Self {
        builder::Builder::new().finish()
    }
}

impl DescriptorTree {
    /// The rule of a descriptor, if it has one.
    pub fn lookup<'e, E>(&self, entries: E) -> Option<Match<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut entries = entries.into_iter().enumerate().peekable();
        let mut shared = Shared::new();
        let mut level = NodeId::ROOT;
        while let Some((position, (key, value))) = entries.next() {
            let (node, how) = self.step(level, key, value)?;
            if how == How::Wildcard && self.node(node).marks.share_threshold {
                shared.push((position, substitute(self.name(node), key)));
            }
            if entries.peek().is_none() {
                return self.rule(node).map(|rule| Match { rule, shared });
            }
            if !self.node(node).has_children {
                return None;
            }
            level = node;
        }
        None
    }

    /// Every rule, parents before their children's.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    fn step(&self, level: NodeId, key: &str, value: &str) -> Option<(NodeId, How)> {
        let (bare, exact) = entry_hashes(level, key, value);
        if let Some(node) = self.find_exact(level, exact, key, value) {
            return Some((node, How::Exact));
        }
        let subject = Composite::new(key, value);
        let wildcard =
            self.wildcards(level).iter().find(|&&node| pattern::matches(self.name(node), subject));
        if let Some(&node) = wildcard {
            return Some((node, How::Wildcard));
        }
        self.find_bare(level, bare, key).map(|node| (node, How::Bare))
    }

    fn find_exact(&self, level: NodeId, hash: u64, key: &str, value: &str) -> Option<NodeId> {
        let subject = Composite::new(key, value);
        self.find(level, hash, subject.len(), |name| subject.holds(0, name))
    }

    fn find_bare(&self, level: NodeId, hash: u64, key: &str) -> Option<NodeId> {
        self.find(level, hash, key.len(), |name| name == key.as_bytes())
    }

    fn find(
        &self,
        level: NodeId,
        hash: u64,
        len: usize,
        same: impl Fn(&[u8]) -> bool,
    ) -> Option<NodeId> {
        let is_it = |slot: &Slot| {
            slot.len as usize == len
                && self.node(slot.node).parent == level
                && same(self.text(slot.start, slot.len).as_bytes())
        };
        self.table.find(hash, is_it).map(|slot| slot.node)
    }

    /// The node of a level that stands under exactly `name`.
    pub(crate) fn named(&self, level: NodeId, name: &str) -> Option<NodeId> {
        self.find_bare(level, name_hash(level, name), name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        // The root is no node that a file wrote.
        (1..self.nodes.len()).filter_map(|index| u32::try_from(index).ok().map(NodeId))
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    pub(crate) fn rule(&self, node: NodeId) -> Option<&Rule> {
        self.rules.get(self.node(node).rule? as usize)
    }

    /// The string that the node stands under: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        let Node { start, len, .. } = *self.node(node);
        self.text(start, len)
    }

    /// The node's `key`, and its `value` if it has one.
    pub(crate) fn parts(&self, node: NodeId) -> (&str, Option<&str>) {
        let name = self.name(node);
        let key_len = self.node(node).key_len as usize;
        (&name[..key_len], name.get(key_len + 1..))
    }

    /// The patterns of the level below `level`, in the file's order.
    pub(crate) fn wildcards(&self, level: NodeId) -> &[NodeId] {
        let Range { start, end } = self.node(level).wildcards;
        &self.wildcards[start as usize..end as usize]
    }

    fn text(&self, start: u32, len: u32) -> &str {
        let start = start as usize;
        &self.names[start..start + len as usize]
    }
}

/// What stands in counter keys for the values that the pattern `name` matches: the pattern without
/// the request's key, or all of it where it does not begin with that key.
fn substitute<'t>(name: &'t str, key: &str) -> &'t str {
    name.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(name)
}

/// The hashes of `key` and of `key_value`. FNV sees a stream of bytes, so the pieces need not be
/// joined, and costs a few nanoseconds for names of this length. It is no secret: the table holds
/// what the configuration says, and nobody who asks can put anything into it.
fn entry_hashes(level: NodeId, key: &str, value: &str) -> (u64, u64) {
    let mut hasher = level_hasher(level);
    hasher.write(key.as_bytes());
    let bare = hasher.finish();
    hasher.write(b"_");
    hasher.write(value.as_bytes());
    (bare, hasher.finish())
}

fn name_hash(level: NodeId, name: &str) -> u64 {
    let mut hasher = level_hasher(level);
    hasher.write(name.as_bytes());
    hasher.finish()
}

fn level_hasher(level: NodeId) -> FnvHasher {
    // An odd factor, so that no two levels begin alike.
    FnvHasher::with_key(u64::from(level.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
