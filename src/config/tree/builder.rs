//! Builds a [`DescriptorTree`] from nodes and rules.
//!
//! Guarantees:
//! - The cost is linear in the number of nodes and the length of their names.
//! - The names of the children of one node are unique.
//! - Patterns keep the order in which they were added.

use std::num::NonZeroU32;
use std::ops::Range;

use hashbrown::HashTable;

use super::table::{LookupTarget, NameTable};
use super::{DescriptorNode, DescriptorTree, NameSpan, NodeFlags, NodeId, RuleId, name_hash};
use crate::config::Rule;
use crate::config::concurrency::ConcurrencyLimit;

pub(crate) struct TreeBuilder {
    tree: DescriptorTree,
    nodes_by_name: HashTable<NodeId>,
    /// The parent and the node of each pattern, in file order.
    wildcards: Vec<(NodeId, NodeId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddNodeError {
    /// The parent already has a child with this name.
    Duplicate(NodeId),
    /// The tree has 4 GiB of names or 2^31 nodes.
    Full,
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
            rules: Vec::new(),
            rule_nodes: Vec::new(),
            concurrency_limits: Vec::new(),
        };
        Self { tree, nodes_by_name: HashTable::new(), wildcards: Vec::new() }
    }

    /// Returns the unfinished tree. Lookups in it find nothing before [`Self::finish`].
    pub(crate) fn tree(&self) -> &DescriptorTree {
        &self.tree
    }

    /// Adds a child of `parent`. `name` is its key and value; the value may be empty.
    pub(crate) fn add(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        flags: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let start = self.push_name(name);
        let text = &self.tree.names[start..];
        let (is_pattern, hash, len) = (text.contains('*'), name_hash(parent, text), text.len());
        if let Some(first) = self.find_child(parent, hash, text) {
            self.tree.names.truncate(start);
            return Err(AddNodeError::Duplicate(first));
        }
        let node = self.push_node(parent, name.0.len(), start, flags)?;
        if is_pattern {
            self.wildcards.push((parent, node));
        }
        self.nodes_by_name.insert_unique(hash, node, |&node| hash_of(&self.tree, node));
        self.tree.nodes[parent.index()].lengths_below |= 1 << (len % 32);
        Ok(node)
    }

    fn find_child(&self, parent: NodeId, hash: u64, name: &str) -> Option<NodeId> {
        let tree = &self.tree;
        let is_match = |&node: &NodeId| tree.node(node).parent == parent && tree.name(node) == name;
        self.nodes_by_name.find(hash, is_match).copied()
    }

    /// Adds a node that lookups do not find. Returns the root if the tree is full.
    pub(crate) fn add_hidden(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        flags: NodeFlags,
    ) -> NodeId {
        let start = self.push_name(name);
        self.push_node(parent, name.0.len(), start, flags).unwrap_or(NodeId::ROOT)
    }

    /// Appends a name to the text of all names, and returns the byte position of its start.
    fn push_name(&mut self, (key, value): (&str, &str)) -> usize {
        let start = self.tree.names.len();
        self.tree.names.push_str(key);
        if !value.is_empty() {
            self.tree.names.push('_');
            self.tree.names.push_str(value);
        }
        start
    }

    /// Adds a node whose name is the text of all names from `start` on.
    fn push_node(
        &mut self,
        parent: NodeId,
        key_len: usize,
        start: usize,
        flags: NodeFlags,
    ) -> Result<NodeId, AddNodeError> {
        let node = NodeId(to_u32(self.tree.nodes.len())?);
        if node.0 > NodeId::MAX_NUMBER {
            return Err(AddNodeError::Full);
        }
        let name = NameSpan { start: to_u32(start)?, len: to_u32(self.tree.names.len() - start)? };
        self.tree.nodes.push(DescriptorNode::new(node, parent, name, to_u32(key_len)?, flags));
        Ok(node)
    }

    pub(crate) fn set_rule(&mut self, node: NodeId, rule: Rule) {
        self.tree.rules.push(rule);
        self.tree.rule_nodes.push(node);
        // The conversion cannot fail: there are at most as many rules as nodes.
        let number = u32::try_from(self.tree.rules.len()).ok();
        self.tree.nodes[node.index()].rule = number.and_then(NonZeroU32::new).map(RuleId);
    }

    pub(crate) fn set_concurrency_limit(&mut self, node: NodeId, limit: ConcurrencyLimit) {
        self.tree.concurrency_limits.push((node, limit));
    }

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

    pub(crate) fn finish(mut self) -> DescriptorTree {
        self.wildcards.sort_by_key(|&(level, _)| level);
        self.tree.concurrency_limits.sort_by_key(|&(node, _)| node);
        for siblings in self.wildcards.chunk_by(|a, b| a.0 == b.0) {
            let start = self.tree.wildcards.len();
            self.tree.wildcards.extend(siblings.iter().map(|&(_, node)| node));
            let end = self.tree.wildcards.len();
            if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) {
                self.tree.nodes[siblings[0].0.index()].wildcards = Range { start, end };
            }
        }
        self.build_table();
        self.tree
    }

    /// Builds the hash table for lookups. Nodes must not change afterwards.
    fn build_table(&mut self) {
        let tree = &self.tree;
        let entries = self.nodes_by_name.iter().map(|&node| {
            let DescriptorNode { parent, name, .. } = *tree.node(node);
            (parent, name, target_of(tree, node))
        });
        self.tree.table = NameTable::new(&tree.names, entries);
    }
}

/// Returns the number of the node, or of its rule if the node has nothing else.
fn target_of(tree: &DescriptorTree, id: NodeId) -> LookupTarget {
    let node = tree.node(id);
    let is_plain = !node.has_children()
        && node.flags == NodeFlags::default()
        && tree.concurrency_limit_of(id).is_none();
    node.rule.filter(|_| is_plain).map_or(LookupTarget::of_node(id), LookupTarget::of_rule)
}

fn hash_of(tree: &DescriptorTree, node: NodeId) -> u64 {
    name_hash(tree.node(node).parent, tree.name(node))
}

fn to_u32(number: usize) -> Result<u32, AddNodeError> {
    u32::try_from(number).map_err(|_| AddNodeError::Full)
}
