//! Puts nodes into a [`DescriptorTree`].
//!
//! Guarantees: linear in the number of nodes and the length of their names; two nodes of one level
//! never stand under one string; patterns keep the order they were added in.
//! Leaves out: whether a node makes sense, which is for [`crate::config::resolve`].

use std::ops::Range;

use hashbrown::HashTable;

use super::{DescriptorTree, Marks, Node, NodeId, Slot, name_hash};
use crate::config::Rule;

/// A tree under construction.
pub(crate) struct Builder {
    tree: DescriptorTree,
    /// Patterns and the level they belong to, as they came.
    wildcards: Vec<(NodeId, NodeId)>,
}

/// Why a node cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The level has a node under the same string.
    Duplicate(NodeId),
    /// More than 4 GiB of names or 2^32 nodes.
    Full,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let root = Node {
            parent: NodeId::ROOT,
            start: 0,
            len: 0,
            key_len: 0,
            rule: None,
            wildcards: 0..0,
            has_children: false,
            marks: Marks::default(),
        };
        let tree = DescriptorTree {
            table: HashTable::new(),
            nodes: vec![root],
            names: String::new(),
            wildcards: Vec::new(),
            rules: Vec::new(),
        };
        Self { tree, wildcards: Vec::new() }
    }

    /// What was added so far. Lookups see no patterns yet.
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
        let (start, len) = (self.tree.names.len(), self.push_name(name));
        let text = &self.tree.names[start..];
        if let Some(first) = self.tree.named(parent, text) {
            self.tree.names.truncate(start);
            return Err(Refused::Duplicate(first));
        }
        let (wildcard, hash) = (text.contains('*'), name_hash(parent, text));
        let node = NodeId(narrow(self.tree.nodes.len())?);
        let slot = Slot { node, start: narrow(start)?, len: narrow(len)? };
        if wildcard {
            self.wildcards.push((parent, node));
        }
        self.insert(hash, slot);
        self.tree.nodes[parent.index()].has_children = true;
        self.push_node(parent, slot, name.0.len(), marks);
        Ok(node)
    }

    /// Adds a node that no lookup finds, to hang others below it; the root where there is no room.
    pub(crate) fn hide(&mut self, parent: NodeId, name: (&str, &str), marks: Marks) -> NodeId {
        let (start, len) = (self.tree.names.len(), self.push_name(name));
        let numbers = (narrow(self.tree.nodes.len()), narrow(start), narrow(len));
        let (Ok(node), Ok(start), Ok(len)) = numbers else { return NodeId::ROOT };
        let slot = Slot { node: NodeId(node), start, len };
        self.push_node(parent, slot, name.0.len(), marks);
        slot.node
    }

    /// Puts a name at the end of all names.
    fn push_name(&mut self, (key, value): (&str, &str)) -> usize {
        let start = self.tree.names.len();
        self.tree.names.push_str(key);
        if !value.is_empty() {
            self.tree.names.push('_');
            self.tree.names.push_str(value);
        }
        self.tree.names.len() - start
    }

    fn push_node(&mut self, parent: NodeId, slot: Slot, key_len: usize, marks: Marks) {
        self.tree.nodes.push(Node {
            parent,
            start: slot.start,
            len: slot.len,
            // A key is no longer than the name, whose length is a `u32`.
            key_len: u32::try_from(key_len).unwrap_or(slot.len),
            rule: None,
            wildcards: 0..0,
            has_children: false,
            marks,
        });
    }

    fn insert(&mut self, hash: u64, slot: Slot) {
        let DescriptorTree { table, nodes, names, .. } = &mut self.tree;
        let rehash = |slot: &Slot| {
            let start = slot.start as usize;
            let parent = nodes[slot.node.index()].parent;
            name_hash(parent, &names[start..start + slot.len as usize])
        };
        table.insert_unique(hash, slot, rehash);
    }

    /// Gives a node its rule.
    pub(crate) fn impose(&mut self, node: NodeId, rule: Rule) {
        // There are at least as many nodes as rules, and nodes are counted.
        self.tree.nodes[node.index()].rule = u32::try_from(self.tree.rules.len()).ok();
        self.tree.rules.push(rule);
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
        for run in self.wildcards.chunk_by(|a, b| a.0 == b.0) {
            let start = self.tree.wildcards.len();
            self.tree.wildcards.extend(run.iter().map(|&(_, node)| node));
            let end = self.tree.wildcards.len();
            if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) {
                self.tree.nodes[run[0].0.index()].wildcards = Range { start, end };
            }
        }
        self.tree
    }
}

fn narrow(number: usize) -> Result<u32, Refused> {
    u32::try_from(number).map_err(|_| Refused::Full)
}
