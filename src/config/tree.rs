//! The descriptor tree of one domain, and the lookup of a descriptor's rule.
//!
//! Guarantees:
//! - A node is named `key` or `key_value`, as in envoyproxy/ratelimit.
//! - Each entry selects, in this order: exact `key_value`, first matching pattern in file order,
//!   bare `key`.
//! - A lookup never goes back to a parent. It succeeds only if the last entry matches a node with a
//!   limit.
//! - A lookup allocates no memory, up to [`INLINE_SHARED_VALUES`] shared values.
//! - The cost of a lookup does not depend on the number of nodes.

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
use super::concurrency::ConcurrencyLimit;
use super::forced_decision::ForcedDecision;
use pattern::CompositeKey;
use table::{LookupTarget, NameTable};

/// The number of shared values that a [`RuleMatch`] stores without allocating memory.
pub const INLINE_SHARED_VALUES: usize = 1;

/// The descriptor tree of one domain. A node needs 60 to 145 bytes plus its name and rule.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    table: NameTable,
    /// The nodes, by [`NodeId::index`].
    nodes: Vec<DescriptorNode>,
    /// The names of all nodes, one after another.
    names: String,
    wildcards: Vec<NodeId>,
    /// The rules, by [`RuleId::index`].
    rules: Vec<Rule>,
    /// The node of each rule, by [`RuleId::index`].
    rule_nodes: Vec<NodeId>,
    /// The concurrency limits, sorted by node. Few nodes have a limit, and [`DescriptorNode`] fills
    /// a cache line.
    concurrency_limits: Vec<(NodeId, ConcurrencyLimit)>,
}

/// The rule that a descriptor matches, and the shared values of its counter key.
#[derive(Debug)]
pub struct RuleMatch<'t> {
    /// The rule.
    pub rule: &'t Rule,
    /// The texts that replace values in the counter key: with `share_threshold`, all values that
    /// match a pattern share one counter.
    pub shared: SharedValues<'t>,
}

/// The concurrency limit that a descriptor matches, and the shared values of its bucket name.
#[derive(Debug)]
pub struct ConcurrencyMatch<'t> {
    /// The concurrency limit.
    pub limit: &'t ConcurrencyLimit,
    /// The texts that replace values in the bucket name, as in [`RuleMatch::shared`].
    pub shared: SharedValues<'t>,
}

/// Positions of entries (from 0, ascending), each with the text that replaces the value in a key.
pub type SharedValues<'t> = SmallVec<[(usize, &'t str); INLINE_SHARED_VALUES]>;

/// The number of a node, and of the level of its children. The root stands for the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);
    const MAX_NUMBER: u32 = LookupTarget::RULE_FLAG - 1;

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of the descriptor tree. Lookups skip nodes that have only a rule.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorNode {
    pub(crate) id: NodeId,
    pub(crate) parent: NodeId,
    name: NameSpan,
    /// The number of bytes of the key in the name `key` or `key_value`.
    key_len: u32,
    rule: Option<RuleId>,
    wildcards: Range<u32>,
    /// A bit set: bit `length % 32` is 1 if a child may have a name of this length.
    lengths_below: u32,
    pub(crate) flags: NodeFlags,
}

/// The number of a rule in the tree, from 1.
#[derive(Clone, Copy, Debug)]
struct RuleId(NonZeroU32);

impl RuleId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct NameSpan {
    start: u32,
    len: u32,
}

impl NameSpan {
    fn text(self, names: &str) -> &str {
        let start = self.start as usize;
        &names[start..start + self.len as usize]
    }
}

/// The fields `value_to_metric` and `share_threshold` of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFlags {
    pub(crate) share_threshold: bool,
    pub(crate) value_to_metric: bool,
}

/// The kind of a node's name. Earlier kinds have priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// A name that is equal to the entry's `key_value`.
    Exact,
    /// A name that is a pattern with `*`.
    Wildcard,
    /// A name that is only a `key`, which matches every value.
    Bare,
}

impl Default for DescriptorTree {
    fn default() -> Self {
        builder::TreeBuilder::new().finish()
    }
}

impl DescriptorTree {
    /// Returns the rule that a descriptor matches, if any.
    #[inline]
    pub fn lookup<'e, E>(&self, entries: E) -> Option<RuleMatch<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut shared = SharedValues::new();
        let rule = self.find_rule(entries, &mut shared)?;
        Some(RuleMatch { rule, shared })
    }

    /// Returns the rule that a descriptor matches. Faster than [`Self::lookup`]: moves no
    /// [`RuleMatch`].
    #[inline]
    pub(crate) fn find_rule<'t, 'e, E>(
        &'t self,
        entries: E,
        shared: &mut SharedValues<'t>,
    ) -> Option<&'t Rule>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        self.rule_at(self.find_target(entries, shared)?)
    }

    /// Returns the concurrency limit that a descriptor matches, if any.
    pub fn lookup_concurrency_limit<'e, E>(&self, entries: E) -> Option<ConcurrencyMatch<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        if self.concurrency_limits.is_empty() {
            return None;
        }
        let mut shared = SharedValues::new();
        let target = self.find_target(entries, &mut shared)?;
        self.concurrency_limit_of(target.node()?).map(|limit| ConcurrencyMatch { limit, shared })
    }

    /// Returns the concurrency limits of the domain, parents before children.
    #[must_use]
    pub fn concurrency_limits(&self) -> impl ExactSizeIterator<Item = &ConcurrencyLimit> {
        self.concurrency_limits.iter().map(|(_, limit)| limit)
    }

    /// Returns the node or rule that the last entry of a descriptor matches.
    #[inline]
    fn find_target<'t, 'e, E>(
        &'t self,
        entries: E,
        shared: &mut SharedValues<'t>,
    ) -> Option<LookupTarget>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut entries = entries.into_iter().enumerate().peekable();
        let mut level = self.root();
        while let Some((position, (key, value))) = entries.next() {
            let (target, kind) = self.match_entry(level, key, value)?;
            if let Some(pattern) = self.shared_pattern(target, kind) {
                shared.push((position, shared_text(pattern, key)));
            }
            if entries.peek().is_none() {
                return Some(target);
            }
            level = self.node_at(target).filter(|node| node.has_children())?;
        }
        None
    }

    /// Returns the rules of the domain, parents before children.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    pub(super) fn force_decision(&mut self, path: &str, decision: ForcedDecision) {
        for rule in self.rules.iter_mut().filter(|rule| *rule.path == *path) {
            rule.forced_decision = Some(decision);
        }
    }

    /// Returns the pattern that an entry matched, if it has `share_threshold`.
    #[inline]
    fn shared_pattern(&self, target: LookupTarget, kind: MatchKind) -> Option<&str> {
        let node = self.node_at(target).filter(|_| kind == MatchKind::Wildcard)?;
        node.flags.share_threshold.then(|| self.text(node.name))
    }

    #[inline]
    fn match_entry(
        &self,
        level: &DescriptorNode,
        key: &str,
        value: &str,
    ) -> Option<(LookupTarget, MatchKind)> {
        let name = CompositeKey::new(key, value);
        let hasher = key_hasher(level.id, key.as_bytes());
        let key_hash = hasher.finish();
        if level.may_have_name_of_len(name.len())
            && let Some(target) = self.find_name(level.id, key_value_hash(hasher, value), name)
        {
            return Some((target, MatchKind::Exact));
        }
        let mut patterns = self.patterns(level).iter();
        if let Some(&node) = patterns.find(|&&node| pattern::matches(self.name(node), name)) {
            return Some((LookupTarget::of_node(node), MatchKind::Wildcard));
        }
        self.find_name(level.id, key_hash, CompositeKey::from_joined(key))
            .map(|target| (target, MatchKind::Bare))
    }

    #[inline]
    fn find_name(&self, level: NodeId, hash: u64, name: CompositeKey<'_>) -> Option<LookupTarget> {
        self.table.find(&self.names, level, hash, name)
    }

    pub(crate) fn find_node(&self, level: NodeId, name: &str) -> Option<NodeId> {
        let target =
            self.find_name(level, name_hash(level, name), CompositeKey::from_joined(name))?;
        match target.rule() {
            Some(rule) => self.rule_nodes.get(rule.index()).copied(),
            None => target.node(),
        }
    }

    #[inline]
    fn node_at(&self, target: LookupTarget) -> Option<&DescriptorNode> {
        target.node().map(|node| self.node(node))
    }

    #[inline]
    fn rule_at(&self, target: LookupTarget) -> Option<&Rule> {
        match target.rule() {
            Some(rule) => self.rules.get(rule.index()),
            None => self.rule_of(self.node_at(target)?),
        }
    }

    fn root(&self) -> &DescriptorNode {
        self.node(NodeId::ROOT)
    }

    /// Returns all nodes except the root.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        (1..self.nodes.len()).filter_map(|index| u32::try_from(index).ok().map(NodeId))
    }

    pub(crate) fn node(&self, node: NodeId) -> &DescriptorNode {
        &self.nodes[node.index()]
    }

    pub(crate) fn rule(&self, node: NodeId) -> Option<&Rule> {
        self.rule_of(self.node(node))
    }

    fn rule_of(&self, node: &DescriptorNode) -> Option<&Rule> {
        self.rules.get(node.rule?.index())
    }

    pub(crate) fn concurrency_limit_of(&self, node: NodeId) -> Option<&ConcurrencyLimit> {
        let index = self.concurrency_limits.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.concurrency_limits.get(index).map(|(_, limit)| limit)
    }

    /// Returns the node's name: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.text(self.node(node).name)
    }

    pub(crate) fn key_and_value(&self, node: NodeId) -> (&str, Option<&str>) {
        let name = self.name(node);
        let key_len = self.node(node).key_len as usize;
        (&name[..key_len], name.get(key_len + 1..))
    }

    /// Returns the children of `level` whose names are patterns, in file order.
    pub(crate) fn wildcards(&self, level: NodeId) -> &[NodeId] {
        self.patterns(self.node(level))
    }

    fn patterns(&self, level: &DescriptorNode) -> &[NodeId] {
        let Range { start, end } = level.wildcards;
        &self.wildcards[start as usize..end as usize]
    }

    fn text(&self, name: NameSpan) -> &str {
        name.text(&self.names)
    }
}

impl DescriptorNode {
    fn new(id: NodeId, parent: NodeId, name: NameSpan, key_len: u32, flags: NodeFlags) -> Self {
        let (rule, wildcards, lengths_below) = (None, 0..0, 0);
        Self { id, parent, name, key_len, rule, wildcards, lengths_below, flags }
    }

    pub(crate) const fn has_children(&self) -> bool {
        self.lengths_below != 0
    }

    /// Returns `false` if no child has a name of `len` bytes.
    const fn may_have_name_of_len(&self, len: usize) -> bool {
        self.lengths_below & (1 << (len % 32)) != 0
    }
}

/// Returns the pattern without the prefix `key_`, if it has this prefix.
fn shared_text<'t>(pattern: &'t str, key: &str) -> &'t str {
    pattern.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(pattern)
}

/// Returns the hash state after `key`, which the names `key` and `key_value` share. A keyed hash is
/// unnecessary: clients cannot provoke collisions, because all names are configured.
fn key_hasher(level: NodeId, key: &[u8]) -> FnvHasher {
    // Multiplying by an odd number gives each level a different start state.
    let mut hasher = FnvHasher::with_key(u64::from(level.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hasher.write(key);
    hasher
}

fn key_value_hash(mut key_hasher: FnvHasher, value: &str) -> u64 {
    key_hasher.write(b"_");
    key_hasher.write(value.as_bytes());
    key_hasher.finish()
}

fn name_hash(level: NodeId, name: &str) -> u64 {
    key_hasher(level, name.as_bytes()).finish()
}
