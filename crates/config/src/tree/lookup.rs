//! Looks up the rule, the concurrency limit and the budgets that a descriptor matches.
//!
//! Guarantees:
//! - Each entry selects, in this order: exact `key_value`, longest network that contains the
//!   address, first matching pattern in file order, bare `key`.
//! - A lookup never goes back to a parent. It matches only if the last entry reaches a node with a
//!   limit. A budget matches also if further entries follow.
//! - A lookup allocates no memory, up to [`INLINE_SHARED_VALUES`](super::INLINE_SHARED_VALUES) shared values.
//! - The cost of a lookup does not depend on the number of nodes.
//! - Patterns are compared only if the level has no node with the exact `key_value`.

use std::borrow::Cow;
use std::hash::Hasher as _;

use super::node::{DescriptorNode, NodeId, exact_hash, key_hasher};
use super::pattern::{self, CompositeKey};
use super::table::LookupTarget;
use super::{
    BudgetMatch, BudgetMatches, ConcurrencyMatch, DescriptorTree, MatchKind, RuleMatch,
    SharedValues,
};
use crate::Rule;

impl DescriptorTree {
    /// Returns the rule that a descriptor matches, if there is one.
    #[inline]
    pub fn lookup<'e, E>(&self, entries: E) -> Option<RuleMatch<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        let mut shared = SharedValues::new();
        let rule = self.find_rule(entries, &mut shared)?;
        Some(RuleMatch { rule, shared })
    }

    /// Returns the rule that a descriptor matches, and appends its shared values to `shared`.
    /// Unlike [`Self::lookup`], this moves no [`RuleMatch`], which costs more than the search
    /// itself.
    #[inline]
    pub fn find_rule<'t, 'e, E>(
        &'t self,
        entries: E,
        shared: &mut SharedValues<'t>,
    ) -> Option<&'t Rule>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        self.rule_at(self.find_target(entries, shared)?)
    }

    /// Returns the concurrency limit that a descriptor matches, if there is one.
    pub fn lookup_concurrency_limit<'e, E>(&self, entries: E) -> Option<ConcurrencyMatch<'_>>
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
    {
        if self.concurrency_limits.is_empty() {
            return None;
        }
        let mut shared = SharedValues::new();
        let goal = self.find_target(entries, &mut shared)?;
        self.concurrency_limit_of(goal.node()?).map(|limit| ConcurrencyMatch { limit, shared })
    }

    /// Returns the budgets of a descriptor: those of all rules that its entries match one after the
    /// other, also if a later entry matches no rule.
    #[must_use]
    pub fn lookup_budgets(&self, entries: &[(&str, &str)]) -> BudgetMatches<'_> {
        let mut budgets = BudgetMatches::new();
        if self.budgets.is_empty() {
            return budgets;
        }
        let (mut level, mut shared) = (self.root(), SharedValues::new());
        for (position, &(key, value)) in entries.iter().enumerate() {
            let Some((goal, how)) = self.match_entry(level, key, value) else { break };
            if let Some(text) = self.replacement(level, (key, value), (goal, how)) {
                shared.push((position, text));
            }
            // A node that is only a rule has neither a budget nor children.
            let Some(node) = self.node_at(goal) else { break };
            if let Some(rule) = self.budget_of(node.id) {
                let (entries, shared) = (position + 1, shared.clone());
                budgets.push(BudgetMatch { rule, entries, shared });
            }
            level = node;
        }
        budgets
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
            let (goal, how) = self.match_entry(level, key, value)?;
            if let Some(text) = self.replacement(level, (key, value), (goal, how)) {
                shared.push((position, text));
            }
            if entries.peek().is_none() {
                return Some(goal);
            }
            level = self.node_at(goal).filter(|node| node.has_children())?;
        }
        None
    }

    /// Returns the text that replaces the value of an entry in counter keys, if there is one.
    #[inline]
    pub(super) fn replacement(
        &self,
        level: &DescriptorNode,
        entry: (&str, &str),
        (target, kind): (LookupTarget, MatchKind),
    ) -> Option<Cow<'_, str>> {
        if let Some(pattern) = self.shared_pattern(target, kind) {
            return Some(Cow::Borrowed(shared_text(pattern, entry.0)));
        }
        if level.has_networks
            && let Some(text) = self.address_text(level, entry, target)
        {
            return Some(Cow::Owned(text));
        }
        self.long_text(level, entry, (target, kind)).map(Cow::Owned)
    }

    /// Returns the pattern by which an entry matched, if all values that it matches share one
    /// counter (`share_threshold`).
    #[inline]
    fn shared_pattern(&self, target: LookupTarget, kind: MatchKind) -> Option<&str> {
        let node = self.node_at(target).filter(|_| kind == MatchKind::Wildcard)?;
        node.flags.share_threshold.then(|| self.text(node.name))
    }

    #[inline]
    pub(super) fn match_entry(
        &self,
        level: &DescriptorNode,
        key: &str,
        value: &str,
    ) -> Option<(LookupTarget, MatchKind)> {
        if level.has_networks
            && let Some(address) = self.networks.for_entry(level, (key, value))
        {
            return self.match_address(level, key, address);
        }
        self.match_text(level, (key, value))
    }

    #[inline]
    pub(super) fn match_text(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &str),
    ) -> Option<(LookupTarget, MatchKind)> {
        let subject = CompositeKey::new(key, value);
        let hasher = key_hasher(level.id, key.as_bytes());
        let bare = hasher.finish();
        if level.may_have_name_of_len(subject.len())
            && let Some(goal) = self.find_name(level.id, exact_hash(hasher, value), subject)
        {
            return Some((goal, MatchKind::Exact));
        }
        let mut patterns = self.patterns(level).iter();
        if let Some(&node) = patterns.find(|&&node| pattern::matches(self.name(node), subject)) {
            return Some((LookupTarget::of_node(node), MatchKind::Wildcard));
        }
        self.find_name(level.id, bare, CompositeKey::from_joined(key))
            .map(|goal| (goal, MatchKind::Bare))
    }

    pub(super) fn match_exact(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &str),
    ) -> Option<(LookupTarget, MatchKind)> {
        let hash = exact_hash(key_hasher(level.id, key.as_bytes()), value);
        let found = self.find_name(level.id, hash, CompositeKey::new(key, value))?;
        Some((found, MatchKind::Exact))
    }

    #[inline]
    pub(super) fn find_name(
        &self,
        level: NodeId,
        hash: u64,
        subject: CompositeKey<'_>,
    ) -> Option<LookupTarget> {
        self.table.find(&self.names, level, hash, subject)
    }

    #[inline]
    pub(super) fn node_at(&self, target: LookupTarget) -> Option<&DescriptorNode> {
        target.node().map(|node| self.node(node))
    }

    #[inline]
    pub(super) fn rule_at(&self, target: LookupTarget) -> Option<&Rule> {
        match target.rule() {
            Some(rule) => self.rules.get(rule.index()),
            None => self.rule_of(self.node_at(target)?),
        }
    }
}

/// Returns the text that replaces a value in counter keys: the pattern `name` without the entry's
/// `key` at its start. If the pattern does not start with `key`, returns the whole pattern.
pub(super) fn shared_text<'t>(name: &'t str, key: &str) -> &'t str {
    name.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(name)
}
