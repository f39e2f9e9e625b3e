//! The rules of one domain, and the lookup of a descriptor's rule.
//!
//! Guarantees:
//! - Follows envoyproxy/ratelimit: each node is named `key` or `key_value`.
//! - Priority per entry: exact `key_value`, first matching pattern in file order, bare `key`.
//! - A lookup never backtracks, and the descriptor must end at the rule's depth.
//! - A lookup allocates nothing, up to [`SHARED_INLINE`] shared positions.
//! - The cost does not depend on the number of nodes.
//! - Patterns of a level are compared only if no exact name matches.
//!
//! Not covered:
//! - Reading rules from files (see [`super::resolve`]).

pub(crate) mod builder;
mod metric;
pub(crate) mod pattern;
mod table;
pub mod trace;

use std::hash::Hasher;
use std::num::NonZeroU32;
use std::ops::Range;

use fnv::FnvHasher;
use smallvec::SmallVec;

use super::Rule;
use super::concurrency::Ceiling;
use super::frozen::Frozen;
use pattern::Composite;
use table::{Goal, Table};

/// The shared positions that a [`Match`] stores without allocation.
pub const SHARED_INLINE: usize = 1;

/// The rules of one domain.
///
/// Memory: one table for all levels and one text for all names. A
/// node needs 60 to 145 bytes, in addition to its name and rule.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    table: Table,
    /// Indexed by [`NodeId`].
    nodes: Vec<Node>,
    names: String,
    wildcards: Vec<NodeId>,
    rules: Vec<Rule>,
    /// The node of each rule, by [`RuleId`].
    ruled: Vec<NodeId>,
    /// Sorted by node. Stored outside [`Node`], because few
    /// nodes have a limit and a node already fills a cache line.
    ceilings: Vec<(NodeId, Ceiling)>,
}

/// A rule and the replacements in its counter key.
#[derive(Debug)]
pub struct Match<'t> {
    /// The rule of the matching node.
    pub rule: &'t Rule,
    /// The replacements of run-time values in the counter key. With
    /// `share_threshold`, all values that the pattern matches share one counter.
    pub shared: Shared<'t>,
}

/// A concurrency limit and the replacements in its bucket name.
#[derive(Debug)]
pub struct Covered<'t> {
    /// The concurrency limit of the matching node.
    pub ceiling: &'t Ceiling,
    /// The replacements of run-time values, as in [`Match`].
    pub shared: Shared<'t>,
}

/// Positions of entries (from 0, ascending), each with the text that replaces the run-time value.
pub type Shared<'t> = SmallVec<[(usize, &'t str); SHARED_INLINE]>;

/// The number of a node, and of the level below it. The root represents the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);
    /// The largest number that a [`Goal`] can store.
    const LAST: u32 = Goal::RULE - 1;

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of the tree. A lookup reads only nodes with
/// children, patterns, and nodes with more than a rule.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) parent: NodeId,
    name: Name,
    /// The length of the key in the name. The rest of the name is `_` and the value.
    key_len: u32,
    rule: Option<RuleId>,
    wildcards: Range<u32>,
    /// A bit set of name lengths on the level below. If
    /// bit `length % 32` is zero, no name has that length.
    lengths_below: u32,
    pub(crate) marks: Marks,
}

/// The number of a rule, from 1.
#[derive(Clone, Copy, Debug)]
struct RuleId(NonZeroU32);

impl RuleId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Name {
    start: u32,
    len: u32,
}

impl Name {
    fn of(self, names: &str) -> &str {
        let start = self.start as usize;
        &names[start..start + self.len as usize]
    }
}

/// The options of a node for counters and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) share_threshold: bool,
    /// `value_to_metric`: the metric's key includes this level's run-time value.
    pub(crate) value_to_metric: bool,
}

/// The kind of name under which a node was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The exact `key_value`.
    Exact,
    /// A pattern.
    Wildcard,
    /// The bare `key`.
    Bare,
}

impl Default for DescriptorTree {
    fn default() -> Self {
        builder::Builder::new().finish()
    }
}

impl DescriptorTree {
    /// Returns the rule of a descriptor, if there is one.
    #[inline]
    pub fn lookup<'e, E>(&self, entries: E) -> Option<Match<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut shared = Shared::new();
        let rule = self.find_rule(entries, &mut shared)?;
        Some(Match { rule, shared })
    }

    /// Returns the rule of a descriptor, and appends to `shared`. This avoids
    /// moving a large [`Match`], which would cost more than the search.
    #[inline]
    pub(crate) fn find_rule<'t, 'e, E>(
        &'t self,
        entries: E,
        shared: &mut Shared<'t>,
    ) -> Option<&'t Rule>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        self.rule_at(self.walk(entries, shared)?)
    }

    /// Returns the concurrency limit at the node where the descriptor ends, if there is one.
    pub fn ceiling<'e, E>(&self, entries: E) -> Option<Covered<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        if self.ceilings.is_empty() {
            return None;
        }
        let mut shared = Shared::new();
        let goal = self.walk(entries, &mut shared)?;
        self.ceiling_of(goal.node()?).map(|ceiling| Covered { ceiling, shared })
    }

    /// Returns all concurrency limits, parents before children.
    #[must_use]
    pub fn ceilings(&self) -> impl ExactSizeIterator<Item = &Ceiling> {
        self.ceilings.iter().map(|(_, ceiling)| ceiling)
    }

    /// Returns the target of a descriptor's last entry.
    #[inline]
    fn walk<'t, 'e, E>(&'t self, entries: E, shared: &mut Shared<'t>) -> Option<Goal>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut entries = entries.into_iter().enumerate().peekable();
        let mut level = self.root();
        while let Some((position, (key, value))) = entries.next() {
            let (goal, how) = self.step(level, key, value)?;
            if let Some(pattern) = self.shared_by(goal, how) {
                shared.push((position, substitute(pattern, key)));
            }
            if entries.peek().is_none() {
                return Some(goal);
            }
            level = self.node_at(goal).filter(|node| node.has_children())?;
        }
        None
    }

    /// Returns all rules, parents before children.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    pub(super) fn freeze(&mut self, path: &str, frozen: Frozen) {
        for rule in self.rules.iter_mut().filter(|rule| *rule.path == *path) {
            rule.frozen = Some(frozen);
        }
    }

    /// Returns the matched pattern, if all values that it matches share one counter.
    #[inline]
    fn shared_by(&self, goal: Goal, how: How) -> Option<&str> {
        let node = self.node_at(goal).filter(|_| how == How::Wildcard)?;
        node.marks.share_threshold.then(|| self.text(node.name))
    }

    #[inline]
    fn step(&self, level: &Node, key: &str, value: &str) -> Option<(Goal, How)> {
        let subject = Composite::new(key, value);
        let hasher = key_hasher(level.id, key.as_bytes());
        let bare = hasher.finish();
        if level.may_name(subject.len())
            && let Some(goal) = self.find(level.id, exact_hash(hasher, value), subject)
        {
            return Some((goal, How::Exact));
        }
        let mut patterns = self.patterns(level).iter();
        if let Some(&node) = patterns.find(|&&node| pattern::matches(self.name(node), subject)) {
            return Some((Goal::of_node(node), How::Wildcard));
        }
        self.find(level.id, bare, Composite::joined(key)).map(|goal| (goal, How::Bare))
    }

    #[inline]
    fn find(&self, level: NodeId, hash: u64, subject: Composite<'_>) -> Option<Goal> {
        self.table.find(&self.names, level, hash, subject)
    }

    /// Returns the node with exactly this name.
    pub(crate) fn named(&self, level: NodeId, name: &str) -> Option<NodeId> {
        let goal = self.find(level, name_hash(level, name), Composite::joined(name))?;
        goal.rule().map_or_else(|| goal.node(), |rule| self.ruled.get(rule.index()).copied())
    }

    #[inline]
    fn node_at(&self, goal: Goal) -> Option<&Node> {
        goal.node().map(|node| self.node(node))
    }

    #[inline]
    fn rule_at(&self, goal: Goal) -> Option<&Rule> {
        match goal.rule() {
            Some(rule) => self.rules.get(rule.index()),
            None => self.rule_of(self.node_at(goal)?),
        }
    }

    fn root(&self) -> &Node {
        self.node(NodeId::ROOT)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        // The root is not in any file.
        (1..self.nodes.len()).filter_map(|index| u32::try_from(index).ok().map(NodeId))
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    pub(crate) fn rule(&self, node: NodeId) -> Option<&Rule> {
        self.rule_of(self.node(node))
    }

    fn rule_of(&self, node: &Node) -> Option<&Rule> {
        self.rules.get(node.rule?.index())
    }

    pub(crate) fn ceiling_of(&self, node: NodeId) -> Option<&Ceiling> {
        let at = self.ceilings.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.ceilings.get(at).map(|(_, ceiling)| ceiling)
    }

    /// Returns the node's name: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.text(self.node(node).name)
    }

    /// Returns the node's key, and its value if it has one.
    pub(crate) fn parts(&self, node: NodeId) -> (&str, Option<&str>) {
        let name = self.name(node);
        let key_len = self.node(node).key_len as usize;
        (&name[..key_len], name.get(key_len + 1..))
    }

    /// Returns the patterns of the level below `level`, in file order.
    pub(crate) fn wildcards(&self, level: NodeId) -> &[NodeId] {
        self.patterns(self.node(level))
    }

    fn patterns(&self, level: &Node) -> &[NodeId] {
        let Range { start, end } = level.wildcards;
        &self.wildcards[start as usize..end as usize]
    }

    fn text(&self, name: Name) -> &str {
        name.of(&self.names)
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

    /// Returns `false` if the level below has no name of `len` bytes. The
    /// lookup can then skip hashing, for example on a level of bare keys.
    const fn may_name(&self, len: usize) -> bool {
        self.lengths_below & (1 << (len % 32)) != 0
    }
}

/// Returns the text that replaces a value in counter keys: the pattern without the
/// request's key. If the pattern does not start with that key, returns the whole pattern.
fn substitute<'t>(name: &'t str, key: &str) -> &'t str {
    name.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(name)
}

/// Returns the hasher state after `key` on a level.
///
/// FNV hashes a stream of bytes, so `key` and `key_value` share work and need no joined
/// string. It costs a few nanoseconds for names of this length. A keyed hash is
/// unnecessary: the table contains only configured names, so clients cannot add entries.
fn key_hasher(level: NodeId, key: &[u8]) -> FnvHasher {
    // An odd factor gives each level a different start state.
    let mut hasher = FnvHasher::with_key(u64::from(level.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hasher.write(key);
    hasher
}

fn exact_hash(mut key: FnvHasher, value: &str) -> u64 {
    key.write(b"_");
    key.write(value.as_bytes());
    key.finish()
}

fn name_hash(level: NodeId, name: &str) -> u64 {
    key_hasher(level, name.as_bytes()).finish()
}
