//! The descriptor tree of one domain.
//!
//! Guarantees:
//! - A node is named `key` or `key_value`, as in envoyproxy/ratelimit.
//!
//! Not covered:
//! - Building the tree from limits files (see [`super::resolve`]).
//! - The lookup of the rule for a descriptor (see [`lookup`]).

mod address_match;
pub(crate) mod builder;
pub mod key_paths;
pub mod long_values;
mod lookup;
mod metric;
pub mod miss;
pub mod networks;
mod node;
pub(crate) mod pattern;
mod table;
pub mod trace;
pub mod values;

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use super::action::{ActionEffect, ForcedDecision};
use super::budget::BudgetRule;
use super::concurrency::ConcurrencyLimit;
use super::rule::{Rule, RuleNumber};
use crate::kernel::units::Nanos;
pub use long_values::hash_long_values;
pub use metric::MetricDots;
use networks::NetworkTable;
use node::{DescriptorNode, NameSpan, name_hash};
pub(crate) use node::{NodeFlags, NodeId};
use pattern::CompositeKey;
use table::NameTable;

/// The number of shared values (`share_threshold`) that a [`RuleMatch`] stores without allocating
/// memory.
pub const INLINE_SHARED_VALUES: usize = 1;

/// The descriptor tree of one domain.
///
/// Memory: one hash table for all levels, and one text for all names. A node needs 60 to 145 bytes,
/// in addition to its name and rule.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    table: NameTable,
    /// The nodes. The index is the number in [`NodeId`].
    nodes: Vec<DescriptorNode>,
    names: String,
    wildcards: Vec<NodeId>,
    rules: Vec<Rule>,
    /// The node of each rule. The index is the number in [`node::RuleId`] minus 1.
    rule_nodes: Vec<NodeId>,
    networks: NetworkTable,
    /// The concurrency limits, sorted by node. They are not in [`DescriptorNode`], because few
    /// nodes have one and a node already fills a cache line.
    concurrency_limits: Vec<(NodeId, ConcurrencyLimit)>,
    /// The budgets, sorted by node.
    budgets: Vec<(NodeId, BudgetRule)>,
}

/// The rule that a descriptor matches, and the texts that replace values of the descriptor in the
/// counter key.
#[derive(Debug)]
pub struct RuleMatch<'t> {
    /// The rule.
    pub rule: &'t Rule,
    /// The texts that replace values of the request in the counter key. With `share_threshold`, the
    /// pattern is in the key, so all values that it matches share one counter. A long value is
    /// replaced by a text with its hash (see [`long_values`]).
    pub shared: SharedValues<'t>,
}

/// The concurrency limit that a descriptor matches, and the texts that replace values of the
/// descriptor in the bucket name.
#[derive(Debug)]
pub struct ConcurrencyMatch<'t> {
    /// The concurrency limit.
    pub limit: &'t ConcurrencyLimit,
    /// The texts that replace values of the request in the bucket name, as in
    /// [`RuleMatch::shared`].
    pub shared: SharedValues<'t>,
}

/// A budget of a descriptor, and the texts that replace values of the descriptor in its key.
#[derive(Debug)]
pub struct BudgetMatch<'t> {
    /// The budget.
    pub rule: &'t BudgetRule,
    /// The number of entries in the budget's key: the first ones of the descriptor.
    pub entries: usize,
    /// The texts that replace values of the request in the key, as in [`RuleMatch::shared`].
    pub shared: SharedValues<'t>,
}

/// The budgets of a descriptor, from the first entry to the last.
pub type BudgetMatches<'t> = SmallVec<[BudgetMatch<'t>; 2]>;

/// Positions of entries in a descriptor (from 0, ascending), each with the text that replaces the
/// value of the request: a borrowed pattern, or an owned text with the hash of a long value.
pub type SharedValues<'t> = SmallVec<[(usize, Cow<'t, str>); INLINE_SHARED_VALUES]>;

/// The numbers of the next limits that read tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnCounts {
    rates: u32,
    permits: u32,
    budgets: u32,
    weights: u32,
}

/// The keys and values of a counter key.
pub type KeyEntries = Box<[(Box<str>, Box<str>)]>;

/// The kind of a node's name, in the order of priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// A name `key_value`, equal to the entry's.
    Exact,
    /// A network that contains the entry's address.
    Network,
    /// A name that is a pattern with `*`.
    Wildcard,
    /// A name that is only a `key`; it matches every value.
    Bare,
}

impl DescriptorTree {
    /// Returns all concurrency limits of the domain. Those of parents come before those of
    /// children.
    #[must_use]
    pub fn concurrency_limits(&self) -> impl ExactSizeIterator<Item = &ConcurrencyLimit> {
        self.concurrency_limits.iter().map(|(_, limit)| limit)
    }

    /// Returns all budgets of the domain. Those of parents come before those of children.
    #[must_use]
    pub fn budgets(&self) -> impl ExactSizeIterator<Item = &BudgetRule> {
        self.budgets.iter().map(|(_, budget)| budget)
    }

    /// Returns all rules of the domain. Those of parents come before those of children.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Numbers the rules, starting with `next`, and sets `next` to the number after the last one.
    pub(super) fn number_rules(&mut self, next: &mut RuleNumber) {
        let mut take = || std::mem::replace(next, RuleNumber(next.0.saturating_add(1)));
        self.rules.iter_mut().for_each(|rule| rule.number = take());
        for (node, limit) in &mut self.concurrency_limits {
            let rule = self.nodes[node.index()].rule.and_then(|rule| self.rules.get(rule.index()));
            limit.has_rate_limit = rule.is_some();
            limit.number = rule.map_or_else(&mut take, |rule| rule.number);
        }
        self.budgets.iter_mut().for_each(|(_, budget)| budget.number = take());
    }

    /// Numbers the limits that read tables, starting with `next`.
    pub(super) fn number_columns(&mut self, next: &mut ColumnCounts) {
        let take = |next: &mut u32| std::mem::replace(next, next.saturating_add(1));
        let limits = self.rules.iter_mut().flat_map(|rule| &mut rule.limits);
        for column in limits.filter_map(|limit| limit.from.as_mut()) {
            column.slot = take(&mut next.rates);
        }
        for (_, limit) in &mut self.concurrency_limits {
            if let Some(column) = &mut limit.from {
                column.slot = take(&mut next.permits);
            }
            if let Some(weight) = limit.requesters.as_mut().and_then(|rule| rule.weight.as_mut()) {
                weight.slot = take(&mut next.weights);
            }
        }
        let budgets = self.budgets.iter_mut();
        for column in budgets.filter_map(|(_, budget)| budget.from.as_mut()) {
            column.slot = take(&mut next.budgets);
        }
    }

    pub(super) fn force_decision(&mut self, path: &str, decision: ForcedDecision) {
        for rule in self.rules.iter_mut().filter(|rule| *rule.path == *path) {
            rule.forced_decision = Some(decision);
        }
    }

    /// Returns the rule that a descriptor matches, and the entries of its counter key. Descriptors
    /// that share a counter (`share_threshold`) have the same entries.
    pub fn rule_and_key<'e>(
        &self,
        entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    ) -> Option<(&Rule, KeyEntries)> {
        let RuleMatch { rule, shared } = self.lookup(entries.clone())?;
        let key = entries
            .enumerate()
            .map(|(index, (key, value))| (key.into(), counter_value(&shared, index, value).into()));
        Some((rule, key.collect()))
    }

    /// Adds an action for the key of a descriptor. Without a matching rule, the action has no effect.
    pub(super) fn add_key_action(
        &mut self,
        entries: &[(String, String)],
        effect: ActionEffect,
        until: Nanos,
    ) {
        let entries = entries.iter().map(|(key, value)| (&**key, &**value));
        let Some((number, key)) = self.rule_and_key(entries).map(|(rule, key)| (rule.number, key))
        else {
            return;
        };
        let Some(rule) = self.rules.iter_mut().find(|rule| rule.number == number) else { return };
        rule.add_key_action(&key, effect, until);
    }

    /// Returns the node with exactly this name among the children of `level`, unless it is a
    /// network.
    pub(crate) fn find_node(&self, level: NodeId, name: &str) -> Option<NodeId> {
        let goal =
            self.find_name(level, name_hash(level, name), CompositeKey::from_joined(name))?;
        goal.rule().map_or_else(|| goal.node(), |rule| self.rule_nodes.get(rule.index()).copied())
    }

    fn root(&self) -> &DescriptorNode {
        self.node(NodeId::ROOT)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        // The root, number 0, stands for the domain and is not a rule of the file.
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
        let at = self.concurrency_limits.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.concurrency_limits.get(at).map(|(_, limit)| limit)
    }

    pub(crate) fn budget_of(&self, node: NodeId) -> Option<&BudgetRule> {
        let at = self.budgets.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        self.budgets.get(at).map(|(_, budget)| budget)
    }

    /// Returns the node's name: `key` or `key_value`.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.text(self.node(node).name)
    }

    /// Returns the node's key, and its value if it has one.
    pub(crate) fn key_and_value(&self, node: NodeId) -> (&str, Option<&str>) {
        let name = self.name(node);
        let key_len = self.node(node).key_len as usize;
        (&name[..key_len], name.get(key_len + 1..))
    }

    /// Returns the child of `level` with which the lookup of an entry continues.
    pub(crate) fn child_that_matches(
        &self,
        level: NodeId,
        key: &str,
        value: &str,
    ) -> Option<NodeId> {
        self.match_entry(self.node(level), key, value)?.0.node()
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

/// Returns the entries of a descriptor as they are in its counter key. A text in `shared` replaces
/// the value at its position.
pub fn counter_entries<'a>(
    entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    shared: &'a [(usize, Cow<'_, str>)],
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    entries.enumerate().map(|(index, (key, value))| (key, counter_value(shared, index, value)))
}

fn counter_value<'v>(shared: &'v [(usize, Cow<'_, str>)], index: usize, value: &'v str) -> &'v str {
    let text = shared.iter().find(|(shared_index, _)| *shared_index == index);
    text.map_or(value, |(_, text)| text)
}
