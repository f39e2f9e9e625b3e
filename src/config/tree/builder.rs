//! Puts nodes into a [`DescriptorTree`].
//!
//! Guarantees: linear in the number of nodes and the length of their names; two nodes of one level
//! never stand under one string; patterns keep the order they were added in.
//! Leaves out: whether a node makes sense, which is for [`crate::config::resolve`].

use std::num::NonZeroU32;
use std::ops::Range;

use hashbrown::HashTable;

use super::table::{Goal, Table};
use super::{DescriptorTree, Marks, Name, Node, NodeId, RuleId, name_hash};
use crate::config::Rule;
use crate::config::concurrency::Ceiling;

/// A tree under construction.
pub(crate) struct Builder {
    tree: DescriptorTree,
    /// By name, what stands under one so far.
    named: HashTable<NodeId>,
    /// Patterns and the level they belong to, as they came.
    wildcards: Vec<(NodeId, NodeId)>,
}

/// Why a node cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The level has a node under the same string.
    Duplicate(NodeId),
    /// More than 4 GiB of names or 2^31 nodes.
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

    /// What was added so far, of which lookups find nothing yet.
    pub(crate) fn tree(&self) -> &DescriptorTree {
        &self.tree
    }

    /// Adds a node below `parent`; an empty `value` is none.
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

    /// Adds a node that no lookup finds, to hang others below it; the root where there is no room.
    pub(crate) fn hide(&mut self, parent: NodeId, name: (&str, &str), marks: Marks) -> NodeId {
        let start = self.push_name(name);
        self.push_node(parent, name.0.len(), start, marks).unwrap_or(NodeId::ROOT)
    }

    /// Puts a name at the end of all names; where it begins.
    fn push_name(&mut self, (key, value): (&str, &str)) -> usize {
        let start = self.tree.names.len();
        self.tree.names.push_str(key);
        if !value.is_empty() {
            self.tree.names.push('_');
            self.tree.names.push_str(value);
        }
        start
    }

    /// A node whose name stands from `start` to the end of all names.
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

    /// Gives a node its rule.
    pub(crate) fn impose(&mut self, node: NodeId, rule: Rule) {
        self.tree.rules.push(rule);
        self.tree.ruled.push(node);
        // There are at least as many nodes as rules, and nodes are counted.
        let number = u32::try_from(self.tree.rules.len()).ok();
        self.tree.nodes[node.index()].rule = number.and_then(NonZeroU32::new).map(RuleId);
    }

    /// Gives a node its ceiling.
    pub(crate) fn cover(&mut self, node: NodeId, ceiling: Ceiling) {
        self.tree.ceilings.push((node, ceiling));
    }

    /// The domain and the names from the first level down to `node`, joined by dots.
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

    /// Every node is as it stays from here on.
    fn fill(&mut self) {
        let tree = &self.tree;
        let put = self.named.iter().map(|&node| {
            let Node { parent, name, .. } = *tree.node(node);
            (parent, name, goal_of(tree, node))
        });
        self.tree.table = Table::new(&tree.names, put);
    }
}

/// What a name leads to whose node has no others below it, no ceiling and no marks is its rule.
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
