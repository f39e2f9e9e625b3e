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

/// Shared positions that a [`Match`] holds without allocating.
pub const SHARED_INLINE: usize = 1;

/// The rules of one domain.
///
/// Cost: one table for all levels, one text for all names; 60 to 145 bytes a node besides its name and rule.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    table: Table,
    /// By number.
    nodes: Vec<Node>,
    names: String,
    wildcards: Vec<NodeId>,
    rules: Vec<Rule>,
    /// Whose rule each is.
    ruled: Vec<NodeId>,
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
    /// What a [`Goal`] has room for.
    const LAST: u32 = Goal::RULE - 1;

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node. Lookups read those that have others below them, patterns, and the few of which a rule is not all.
#[derive(Clone, Debug)]
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

/// The number of a rule, from 1.
#[derive(Clone, Copy, Debug)]
struct RuleId(NonZeroU32);

impl RuleId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Where a name stands in `names`.
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
    #[inline]
    pub fn lookup<'e, E>(&self, entries: E) -> Option<Match<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut shared = Shared::new();
        let rule = self.find_rule(entries, &mut shared)?;
        Some(Match { rule, shared })
    }

    /// The same, with what is shared put to the end of `shared`: a [`Match`] is large, and to move it about would cost
    /// more than the search.
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

    /// The ceiling of a descriptor, if it has one: of the same node as its rule would be.
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

    /// Every ceiling, parents before their children's.
    #[must_use]
    pub fn ceilings(&self) -> impl ExactSizeIterator<Item = &Ceiling> {
        self.ceilings.iter().map(|(_, ceiling)| ceiling)
    }

    /// Where a descriptor ends.
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

    /// The pattern that was taken, if all values that it matches share one counter.
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

    /// What the name `subject` of a level leads to.
    #[inline]
    fn find(&self, level: NodeId, hash: u64, subject: Composite<'_>) -> Option<Goal> {
        self.table.find(&self.names, level, hash, subject)
    }

    /// The node of a level that stands under exactly `name`.
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
        self.rules.get(node.rule?.index())
    }

    pub(crate) fn ceiling_of(&self, node: NodeId) -> Option<&Ceiling> {
        let at = self.ceilings.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.ceilings.get(at).map(|(_, ceiling)| ceiling)
    }

    /// The string that the node stands under: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.text(self.node(node).name)
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
fn key_hasher(level: NodeId, key: &[u8]) -> FnvHasher {
    // An odd factor, so that no two levels begin alike.
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
