//! Builds a [`DescriptorTree`] from nodes and rules.
//!
//! Guarantees:
//! - The cost is linear in the number of nodes and the length of their names.
//! - The names of the children of one node are unique.
//! - Patterns keep the order in which they were added.
//!
//! Not covered:
//! - Validation of descriptors (see [`crate::resolve`]).

use std::num::NonZeroU32;
use std::ops::Range;

use hashbrown::HashTable;

use super::DescriptorTree;
use super::networks::{CountedNetwork, NetworkTable};
use super::node::{DescriptorNode, NameSpan, NodeFlags, NodeId, RuleId, name_hash};
use super::table::{LookupTarget, NameTable};

use crate::budget::BudgetRule;
use crate::concurrency::ConcurrencyLimit;
use crate::rule::Rule;

pub(crate) struct TreeBuilder {
    tree: DescriptorTree,
    /// The nodes that were added, by parent and name.
    nodes_by_name: HashTable<NodeId>,
    /// The nodes whose names are patterns, each with its parent, in the order in which they were
    /// added.
    wildcards: Vec<(NodeId, NodeId)>,
}

/// A level on the way to a node: one entry of a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) key: Box<str>,
    /// `true` if several values of the entry may have one counter.
    pub(crate) has_shared_values: bool,
}

/// The reason why a node cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddNodeError {
    /// The parent already has this child with the same name.
    Duplicate(NodeId),
    /// The tree is full: it has 4 GiB of names or 2^31 nodes.
    Full,
}

impl Default for DescriptorTree {
    fn default() -> Self {
        TreeBuilder::new().finish()
    }
}

impl TreeBuilder {
    pub(crate) fn new() -> Self {
        let root = DescriptorNode::new(
            NodeId::ROOT,
            NodeId::ROOT,
            NameSpan::default(),
            0,
            NodeFlags::default(),
        );
        let tree = DescriptorTree {
            table: NameTable::default(),
            nodes: vec![root],
            names: String::new(),
            wildcards: Vec::new(),
            networks: NetworkTable::default(),
            rules: Vec::new(),
            rule_nodes: Vec::new(),
            concurrency_limits: Vec::new(),
            budgets: Vec::new(),
        };
        Self { tree, nodes_by_name: HashTable::new(), wildcards: Vec::new() }
    }

    /// Returns the unfinished tree. Lookups in it find nothing before [`Self::finish`].
    pub(crate) fn tree(&self) -> &DescriptorTree {
        &self.tree
    }

    /// Adds a child of `parent` with this key and value. With an empty `value`, its name is the
    /// bare key.
    pub(crate) fn add(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        marks: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let node = self.add_named(parent, name, marks)?;
        let len = self.tree.name(node).len();
        if self.tree.name(node).contains('*') {
            self.wildcards.push((parent, node));
        }
        self.tree.nodes[parent.index()].lengths_below |= 1 << (len % 32);
        Ok(node)
    }

    /// Adds a child of `parent` that matches the addresses of a network.
    pub(crate) fn add_network(
        &mut self,
        parent: NodeId,
        key: &str,
        counted: CountedNetwork,
        marks: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let node = self.add_named(parent, (key, &counted.network.to_string()), marks)?;
        self.tree.networks.insert(parent, key, node, counted);
        self.tree.nodes[parent.index()].has_networks = true;
        Ok(node)
    }

    fn add_named(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        marks: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let start = self.push_name(name);
        let text = &self.tree.names[start..];
        let hash = name_hash(parent, text);
        if let Some(first) = self.find(parent, hash, text) {
            self.tree.names.truncate(start);
            return Err(AddNodeError::Duplicate(first));
        }
        let node = self.push_node(parent, name.0.len(), start, marks)?;
        self.nodes_by_name.insert_unique(hash, node, |&node| hash_of(&self.tree, node));
        Ok(node)
    }

    fn find(&self, parent: NodeId, hash: u64, text: &str) -> Option<NodeId> {
        let tree = &self.tree;
        let is_it = |&node: &NodeId| tree.node(node).parent == parent && tree.name(node) == text;
        self.nodes_by_name.find(hash, is_it).copied()
    }

    /// Adds a node that lookups do not find, for a descriptor that is invalid. Its children are
    /// added to it, so that they are validated too. Returns the root if the tree is full.
    pub(crate) fn add_hidden(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        marks: NodeFlags,
    ) -> NodeId {
        let start = self.push_name(name);
        self.push_node(parent, name.0.len(), start, marks).unwrap_or(NodeId::ROOT)
    }

    /// Appends the name of a node to the text of all names. Returns the byte position at which it
    /// starts.
    fn push_name(&mut self, (key, value): (&str, &str)) -> usize {
        let start = self.tree.names.len();
        self.tree.names.push_str(key);
        if !value.is_empty() {
            self.tree.names.push('_');
            self.tree.names.push_str(value);
        }
        start
    }

    /// Adds a node whose name was appended last to the text of all names, at `start`.
    fn push_node(
        &mut self,
        parent: NodeId,
        key_len: usize,
        start: usize,
        marks: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let node = NodeId(to_u32(self.tree.nodes.len())?);
        if node.0 > LookupTarget::MAX_NODE {
            return Err(AddNodeError::Full);
        }
        let name = NameSpan { start: to_u32(start)?, len: to_u32(self.tree.names.len() - start)? };
        self.tree.nodes.push(DescriptorNode::new(node, parent, name, to_u32(key_len)?, marks));
        Ok(node)
    }

    pub(crate) fn set_rule(&mut self, node: NodeId, rule: Rule) {
        self.tree.rules.push(rule);
        self.tree.rule_nodes.push(node);
        // The number of rules fits in 32 bits: there are no more rules than nodes, and the number
        // of nodes is limited.
        let number = u32::try_from(self.tree.rules.len()).ok();
        self.tree.nodes[node.index()].rule = number.and_then(NonZeroU32::new).map(RuleId);
    }

    pub(crate) fn set_concurrency_limit(&mut self, node: NodeId, limit: ConcurrencyLimit) {
        self.tree.concurrency_limits.push((node, limit));
    }

    pub(crate) fn set_budget(&mut self, node: NodeId, budget: BudgetRule) {
        self.tree.budgets.push((node, budget));
    }

    /// Returns the full path of a node: the domain and the names from the first level to `node`,
    /// joined by dots.
    pub(crate) fn path(&self, domain: &str, mut node: NodeId) -> String {
        let mut names = Vec::new();
        while node != NodeId::ROOT {
            names.push(self.tree.name(node));
            node = self.tree.node(node).parent;
        }
        names.push(domain);
        names.reverse();
        names.join(".")
    }

    /// Returns the levels from the first to `node`.
    pub(crate) fn levels(&self, mut node: NodeId) -> Vec<Level> {
        let mut levels = Vec::new();
        while node != NodeId::ROOT {
            let inner = self.tree.node(node);
            let shares = inner.flags.share_threshold || self.tree.networks.get(node).is_some();
            let key = self.tree.key_and_value(node).0.into();
            levels.push(Level { key, has_shared_values: shares });
            node = inner.parent;
        }
        levels.reverse();
        levels
    }

    pub(crate) fn finish(mut self) -> DescriptorTree {
        self.wildcards.sort_by_key(|&(level, _)| level);
        self.tree.concurrency_limits.sort_by_key(|&(node, _)| node);
        self.tree.budgets.sort_by_key(|&(node, _)| node);
        for run in self.wildcards.chunk_by(|a, b| a.0 == b.0) {
            let start = self.tree.wildcards.len();
            self.tree.wildcards.extend(run.iter().map(|&(_, node)| node));
            let end = self.tree.wildcards.len();
            if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) {
                self.tree.nodes[run[0].0.index()].wildcards = Range { start, end };
            }
        }
        self.build_table();
        self.tree
    }

    /// Builds the hash table for lookups. Nodes must not change afterwards. Networks are not in it,
    /// because values do not match them as text.
    fn build_table(&mut self) {
        let tree = &self.tree;
        let named = self.nodes_by_name.iter().filter(|node| tree.networks.get(**node).is_none());
        let entries: Vec<_> = named
            .map(|&node| {
                let DescriptorNode { parent, name, .. } = *tree.node(node);
                (parent, name, target_of(tree, node))
            })
            .collect();
        self.tree.table = NameTable::new(&tree.names, entries.into_iter());
    }
}

/// Returns the lookup target of a node: only its rule if it has no children, concurrency limit,
/// budget or flags; otherwise the node.
fn target_of(tree: &DescriptorTree, id: NodeId) -> LookupTarget {
    let node = tree.node(id);
    let is_plain = !node.has_children()
        && node.flags == NodeFlags::default()
        && tree.concurrency_limit_of(id).is_none()
        && tree.budget_of(id).is_none();
    node.rule.filter(|_| is_plain).map_or(LookupTarget::of_node(id), LookupTarget::of_rule)
}

fn hash_of(tree: &DescriptorTree, node: NodeId) -> u64 {
    name_hash(tree.node(node).parent, tree.name(node))
}

fn to_u32(number: usize) -> Result<u32, AddNodeError> {
    u32::try_from(number).map_err(|_| AddNodeError::Full)
}
