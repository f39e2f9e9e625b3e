//! Builds a [`DescriptorTree`].
//!
//! Guarantees:
//! - Linear in the number of nodes and the length of their names.
//! - Names are unique within a level.
//! - Patterns keep their insertion order.
//!
//! Not covered:
//! - Validation of nodes (see [`crate::config::resolve`]).

use std::num::NonZeroU32;
use std::ops::Range;

use hashbrown::HashTable;

use super::table::{Goal, Table};
use super::{DescriptorTree, Marks, Name, Node, NodeId, RuleId, name_hash};
use crate::config::Rule;
use crate::config::concurrency::Ceiling;

pub(crate) struct Builder {
    tree: DescriptorTree,
    /// The nodes so far, hashed by level and name.
    named: HashTable<NodeId>,
    /// Pairs of level and pattern, in insertion order.
    wildcards: Vec<(NodeId, NodeId)>,
}

/// The reason why a node cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The level already has this node with the same name.
    Duplicate(NodeId),
    /// The tree is full: 4 GiB of names or 2^31 nodes.
    Full,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let root = Node::new(NodeId::ROOT, NodeId::ROOT, Name::default(), 0, Marks::default());
        let tree = DescriptorTree {
            table: Table::default(),
            nodes: vec![root],
            names: String::new(),
            wildcards: Vec::new(),
            rules: Vec::new(),
            ruled: Vec::new(),
            ceilings: Vec::new(),
        };
        Self { tree, named: HashTable::new(), wildcards: Vec::new() }
    }

    /// Returns the tree so far. Lookups find nothing before [`Self::finish`].
    pub(crate) fn tree(&self) -> &DescriptorTree {
        &self.tree
    }

    /// Adds a node below `parent`. An empty `value` means no value.
    pub(crate) fn add(
        &mut self,
        parent: NodeId,
        name: (&str, &str),
        marks: Marks,
    ) -> Result<NodeId, Refused> {
        let start = self.push_name(name);
        let text = &self.tree.names[start..];
        let (wildcard, hash, len) = (text.contains('*'), name_hash(parent, text), text.len());
        if let Some(first) = self.find(parent, hash, text) {
            self.tree.names.truncate(start);
            return Err(Refused::Duplicate(first));
        }
        let node = self.push_node(parent, name.0.len(), start, marks)?;
        if wildcard {
            self.wildcards.push((parent, node));
        }
        self.named.insert_unique(hash, node, |&node| hash_of(&self.tree, node));
        self.tree.nodes[parent.index()].lengths_below |= 1 << (len % 32);
        Ok(node)
    }

    fn find(&self, parent: NodeId, hash: u64, text: &str) -> Option<NodeId> {
        let tree = &self.tree;
        let is_it = |&node: &NodeId| tree.node(node).parent == parent && tree.name(node) == text;
        self.named.find(hash, is_it).copied()
    }

    /// Adds a node that lookups cannot find, as a parent for
    /// other nodes. Returns the root if the tree is full.
    pub(crate) fn hide(&mut self, parent: NodeId, name: (&str, &str), marks: Marks) -> NodeId {
        let start = self.push_name(name);
        self.push_node(parent, name.0.len(), start, marks).unwrap_or(NodeId::ROOT)
    }

    /// Appends a name to the text of all names and returns its start.
    fn push_name(&mut self, (key, value): (&str, &str)) -> usize {
        let start = self.tree.names.len();
        self.tree.names.push_str(key);
        if !value.is_empty() {
            self.tree.names.push('_');
            self.tree.names.push_str(value);
        }
        start
    }

    /// Adds a node whose name starts at `start` and is the last one.
    fn push_node(
        &mut self,
        parent: NodeId,
        key_len: usize,
        start: usize,
        marks: Marks,
    ) -> Result<NodeId, Refused> {
        let node = NodeId(narrow(self.tree.nodes.len())?);
        if node.0 > NodeId::LAST {
            return Err(Refused::Full);
        }
        let name = Name { start: narrow(start)?, len: narrow(self.tree.names.len() - start)? };
        self.tree.nodes.push(Node::new(node, parent, name, narrow(key_len)?, marks));
        Ok(node)
    }

    pub(crate) fn impose(&mut self, node: NodeId, rule: Rule) {
        self.tree.rules.push(rule);
        self.tree.ruled.push(node);
        // Fits in 32 bits: there are no more rules than nodes, and the node count is limited.
        let number = u32::try_from(self.tree.rules.len()).ok();
        self.tree.nodes[node.index()].rule = number.and_then(NonZeroU32::new).map(RuleId);
    }

    pub(crate) fn cover(&mut self, node: NodeId, ceiling: Ceiling) {
        self.tree.ceilings.push((node, ceiling));
    }

    /// Returns the domain and the names from the first level to `node`, joined by dots.
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
        self.tree.ceilings.sort_by_key(|&(node, _)| node);
        for run in self.wildcards.chunk_by(|a, b| a.0 == b.0) {
            let start = self.tree.wildcards.len();
            self.tree.wildcards.extend(run.iter().map(|&(_, node)| node));
            let end = self.tree.wildcards.len();
            if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) {
                self.tree.nodes[run[0].0.index()].wildcards = Range { start, end };
            }
        }
        self.fill();
        self.tree
    }

    /// Builds the lookup table. Nodes must not change afterwards.
    fn fill(&mut self) {
        let tree = &self.tree;
        let put = self.named.iter().map(|&node| {
            let Node { parent, name, .. } = *tree.node(node);
            (parent, name, goal_of(tree, node))
        });
        self.tree.table = Table::new(&tree.names, put);
    }
}

/// Returns the rule for a node without children, concurrency limit or flags; otherwise the node.
fn goal_of(tree: &DescriptorTree, id: NodeId) -> Goal {
    let node = tree.node(id);
    let is_plain =
        !node.has_children() && node.marks == Marks::default() && tree.ceiling_of(id).is_none();
    node.rule.filter(|_| is_plain).map_or(Goal::of_node(id), Goal::of_rule)
}

fn hash_of(tree: &DescriptorTree, node: NodeId) -> u64 {
    name_hash(tree.node(node).parent, tree.name(node))
}

fn narrow(number: usize) -> Result<u32, Refused> {
    u32::try_from(number).map_err(|_| Refused::Full)
}
