//! The rules of one domain and how a descriptor finds its own.
//!
//! Guarantees: the reference's algorithm. Every node stands under one string, `key` or `key_value`.
//! A descriptor is walked entry by entry: the exact `key_value`, else the first pattern of the
//! level in the file's order, else the bare `key`. No way back, and the depth must be the rule's.
//! A lookup allocates nothing (up to [`SHARED_INLINE`] shared positions); its cost does not depend
//! on the number of nodes, and a level's patterns are asked only where the exact name is absent.
//! Leaves out: reading rules from a file, which is for [`super::resolve`].

pub(crate) mod builder;
mod metric;
pub(crate) mod pattern;
pub mod trace;

use std::hash::Hasher;
use std::num::NonZeroU32;
use std::ops::Range;

use fnv::FnvHasher;
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::Rule;
use super::concurrency::Ceiling;
use super::frozen::Frozen;
use pattern::Composite;

/// Shared positions that a [`Match`] holds without allocating.
pub const SHARED_INLINE: usize = 1;

/// The rules of one domain.
///
/// Cost: one table for all levels, one text for all names; 140 to 220 bytes a node besides its name and rule.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    /// Every node that a lookup can find by its name, whole: a number instead would have to be followed, and among many
    /// nodes each step to another place waits for memory.
    table: HashTable<Node>,
    /// By number.
    nodes: Vec<Node>,
    names: String,
    wildcards: Vec<NodeId>,
    rules: Vec<Rule>,
    /// By node, ascending: few nodes have one, and a node's line is full.
    ceilings: Vec<(NodeId, Ceiling)>,
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

/// A ceiling and what its bucket is named by.
#[derive(Debug)]
pub struct Covered<'t> {
    /// What the matching node imposes.
    pub ceiling: &'t Ceiling,
    /// As in [`Match`].
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

/// A node, on one cache line with all that a lookup reads of it.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) parent: NodeId,
    name: Name,
    /// How many bytes of the name are the key; the rest is `_` and the value.
    key_len: u32,
    rule: Option<RuleId>,
    wildcards: Range<u32>,
    /// Whose bit `length % 32` is zero for a length that no name of the level below has.
    lengths_below: u32,
    pub(crate) marks: Marks,
}

const _: () = assert!(size_of::<Node>() == 64);

/// The number of a rule, from 1.
#[derive(Clone, Copy, Debug)]
struct RuleId(NonZeroU32);

/// Where a name stands in `names`, and once more as much of it as there is room for.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    start: u32,
    len: u32,
    head: [u8; Name::HEAD],
}

impl Name {
    const HEAD: usize = 24;

    fn new(start: u32, text: &str) -> Option<Self> {
        let mut name = Self { start, len: u32::try_from(text.len()).ok()?, head: [0; Self::HEAD] };
        name.head.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        Some(name)
    }
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
        let (node, shared) = self.walk(entries)?;
        self.rule_of(node).map(|rule| Match { rule, shared })
    }

    /// The ceiling of a descriptor, if it has one: of the same node as its rule would be.
    pub fn ceiling<'e, E>(&self, entries: E) -> Option<Covered<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        if self.ceilings.is_empty() {
            return None;
        }
        let (node, shared) = self.walk(entries)?;
        self.ceiling_of(node.id).map(|ceiling| Covered { ceiling, shared })
    }

    /// Every ceiling, parents before their children's.
    #[must_use]
    pub fn ceilings(&self) -> impl ExactSizeIterator<Item = &Ceiling> {
        self.ceilings.iter().map(|(_, ceiling)| ceiling)
    }

    /// The node that a descriptor ends at.
    #[inline]
    fn walk<'e, E>(&self, entries: E) -> Option<(&Node, Shared<'_>)>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut entries = entries.into_iter().enumerate().peekable();
        let mut shared = Shared::new();
        let mut level = self.root();
        while let Some((position, (key, value))) = entries.next() {
            let (node, how) = self.step(level, key, value)?;
            if how == How::Wildcard && node.marks.share_threshold {
                shared.push((position, substitute(self.text(&node.name), key)));
            }
            if entries.peek().is_none() {
                return Some((node, shared));
            }
            if !node.has_children() {
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

    /// Holds the rules of this path.
    pub(super) fn freeze(&mut self, path: &str, frozen: Frozen) {
        for rule in self.rules.iter_mut().filter(|rule| *rule.path == *path) {
            rule.frozen = Some(frozen);
        }
    }

    fn step(&self, level: &Node, key: &str, value: &str) -> Option<(&Node, How)> {
        let subject = Composite::new(key, value);
        let hasher = key_hasher(level.id, key);
        let bare = hasher.finish();
        if level.may_name(subject.len())
            && let Some(node) = self.find(level.id, exact_hash(hasher, value), subject)
        {
            return Some((node, How::Exact));
        }
        let mut patterns = self.patterns(level).iter();
        if let Some(&node) = patterns.find(|&&node| pattern::matches(self.name(node), subject)) {
            return Some((self.node(node), How::Wildcard));
        }
        self.find(level.id, bare, Composite::joined(key)).map(|node| (node, How::Bare))
    }

    /// The node of a level whose name is `subject`.
    fn find(&self, level: NodeId, hash: u64, subject: Composite<'_>) -> Option<&Node> {
        let is_it = |node: &Node| {
            let Node { parent, name, .. } = node;
            let len = name.len as usize;
            let (head, rest) = (len.min(Name::HEAD), len > Name::HEAD);
            *parent == level
                && len == subject.len()
                && subject.holds(0, &name.head[..head])
                && (!rest || subject.holds(head, &self.text(name).as_bytes()[head..]))
        };
        self.table.find(hash, is_it)
    }

    /// The node of a level that stands under exactly `name`.
    pub(crate) fn named(&self, level: NodeId, name: &str) -> Option<NodeId> {
        self.find(level, name_hash(level, name), Composite::joined(name)).map(|node| node.id)
    }

    fn root(&self) -> &Node {
        self.node(NodeId::ROOT)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        // The root is no node that a file wrote.
        (1..self.nodes.len()).filter_map(|index| u32::try_from(index).ok().map(NodeId))
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    pub(crate) fn rule(&self, node: NodeId) -> Option<&Rule> {
        self.rule_of(self.node(node))
    }

    fn rule_of(&self, node: &Node) -> Option<&Rule> {
        self.rules.get(node.rule?.0.get() as usize - 1)
    }

    pub(crate) fn ceiling_of(&self, node: NodeId) -> Option<&Ceiling> {
        let at = self.ceilings.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.ceilings.get(at).map(|(_, ceiling)| ceiling)
    }

    /// The string that the node stands under: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.text(&self.node(node).name)
    }

    /// The node's `key`, and its `value` if it has one.
    pub(crate) fn parts(&self, node: NodeId) -> (&str, Option<&str>) {
        let name = self.name(node);
        let key_len = self.node(node).key_len as usize;
        (&name[..key_len], name.get(key_len + 1..))
    }

    /// The patterns of the level below `level`, in the file's order.
    pub(crate) fn wildcards(&self, level: NodeId) -> &[NodeId] {
        self.patterns(self.node(level))
    }

    fn patterns(&self, level: &Node) -> &[NodeId] {
        let Range { start, end } = level.wildcards;
        &self.wildcards[start as usize..end as usize]
    }

    fn text(&self, name: &Name) -> &str {
        let start = name.start as usize;
        &self.names[start..start + name.len as usize]
    }
}

impl Node {
    fn new(id: NodeId, parent: NodeId, name: Name, key_len: u32, marks: Marks) -> Self {
        let (rule, wildcards, lengths_below) = (None, 0..0, 0);
        Self { id, parent, name, key_len, rule, wildcards, lengths_below, marks }
    }

    pub(crate) const fn has_children(&self) -> bool {
        self.lengths_below != 0
    }

    /// Whether the level below may have a name of `len` bytes: where it has not, as a level of bare
    /// keys has not of `key_value`, neither hash nor search is needed.
    const fn may_name(&self, len: usize) -> bool {
        self.lengths_below & (1 << (len % 32)) != 0
    }
}

/// What stands in counter keys for the values that the pattern `name` matches: the pattern without
/// the request's key, or all of it where it does not begin with that key.
fn substitute<'t>(name: &'t str, key: &str) -> &'t str {
    name.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(name)
}

/// The hasher of a level's names that begin with `key`. FNV sees a stream of bytes, so that `key`
/// and `key_value` need not be joined and share their beginning, and costs a few nanoseconds for
/// names of this length. It is no secret: the table holds what the configuration says, and nobody
/// who asks can put anything into it.
fn key_hasher(level: NodeId, key: &str) -> FnvHasher {
    // An odd factor, so that no two levels begin alike.
    let mut hasher = FnvHasher::with_key(u64::from(level.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hasher.write(key.as_bytes());
    hasher
}

fn exact_hash(mut key: FnvHasher, value: &str) -> u64 {
    key.write(b"_");
    key.write(value.as_bytes());
    key.finish()
}

fn name_hash(level: NodeId, name: &str) -> u64 {
    key_hasher(level, name).finish()
}
