//! Records each step of the lookup of a descriptor, for the command `explain`.
//!
//! Guarantees:
//! - The recorded steps are those of [`DescriptorTree::lookup`], made by the same functions.
//!
//! Not covered:
//! - The text for users (see [`crate::explain`]).

use std::borrow::Cow;

use crate::concurrency::ConcurrencyLimit;

use super::node::DescriptorNode;
use super::pattern::CompositeKey;
use super::table::LookupTarget;
use super::{DescriptorTree, MatchKind, RuleMatch, SharedValues, pattern};

/// The record of one lookup.
#[derive(Debug)]
pub struct LookupTrace<'t> {
    /// One step for each entry that was compared with the rules.
    pub steps: Vec<LookupStep<'t>>,
    /// The result of the lookup.
    pub outcome: LookupOutcome<'t>,
    /// The concurrency limit that the descriptor matches, if there is one.
    pub concurrency_limit: Option<&'t ConcurrencyLimit>,
    /// `true` if the node that the last entry matched has a budget.
    pub has_budget: bool,
}

/// The comparison of one entry with the nodes of one level.
#[derive(Debug)]
pub struct LookupStep<'t> {
    /// The entry.
    pub entry: (String, String),
    /// The names that could match, in the order of priority: exact, networks, patterns, bare
    /// key.
    pub candidates: Vec<LookupCandidate<'t>>,
}

/// A name that could match the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupCandidate<'t> {
    /// The kind of the name.
    pub kind: MatchKind,
    /// The name: `key`, `key_value` or a pattern.
    pub name: Cow<'t, str>,
    /// The result for this name.
    pub status: CandidateStatus,
}

/// The result of the comparison with one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateStatus {
    /// The name matches, and the lookup continues at its node.
    Taken,
    /// The level has no node with this name, or the pattern does not match.
    Absent,
    /// The name matches, but another name with a higher priority was taken.
    Outranked,
}

/// The result of a lookup.
#[derive(Debug)]
pub enum LookupOutcome<'t> {
    /// A rule was found.
    Found(RuleMatch<'t>),
    /// The descriptor has no entries.
    NoEntries,
    /// No node of the level matches the last compared entry.
    NoNode,
    /// The descriptor has further entries, but the node that matched has no children.
    NoChildren,
    /// The node that the last entry matched has no `rate_limit`.
    NoLimit {
        /// `true` if the node has children.
        has_children: bool,
    },
}

impl<'t> LookupTrace<'t> {
    const fn without_limit(steps: Vec<LookupStep<'t>>, outcome: LookupOutcome<'t>) -> Self {
        Self { steps, outcome, concurrency_limit: None, has_budget: false }
    }
}

impl LookupStep<'_> {
    /// Returns the name at whose node the lookup continued, if there is one.
    #[must_use]
    pub fn taken(&self) -> Option<&LookupCandidate<'_>> {
        self.candidates.iter().find(|tried| tried.status == CandidateStatus::Taken)
    }
}

impl DescriptorTree {
    /// Returns the record of the lookup of a descriptor, with all names that could match on each
    /// level.
    ///
    /// Cost: linear in the number of patterns on the visited levels; allocates memory. Not for use
    /// in checks.
    #[must_use]
    pub fn trace_lookup(&self, entries: &[(&str, &str)]) -> LookupTrace<'_> {
        let mut steps = Vec::new();
        let mut shared = SharedValues::new();
        let mut level = self.root();
        for (position, &(key, value)) in entries.iter().enumerate() {
            let (tried, taken) = self.candidates(level, key, value);
            steps.push(LookupStep { entry: (key.to_owned(), value.to_owned()), candidates: tried });
            let Some((target, kind)) = taken else {
                return LookupTrace::without_limit(steps, LookupOutcome::NoNode);
            };
            if let Some(text) = self.replacement(level, (key, value), (target, kind)) {
                shared.push((position, text));
            }
            let below = self.node_at(target).filter(|node| node.has_children());
            if position + 1 == entries.len() {
                let outcome = match self.rule_at(target) {
                    Some(rule) => LookupOutcome::Found(RuleMatch { rule, shared }),
                    None => LookupOutcome::NoLimit { has_children: below.is_some() },
                };
                let node = target.node();
                let concurrency_limit = node.and_then(|node| self.concurrency_limit_of(node));
                let has_budget = node.is_some_and(|node| self.budget_of(node).is_some());
                return LookupTrace { steps, outcome, concurrency_limit, has_budget };
            }
            let Some(below) = below else {
                return LookupTrace::without_limit(steps, LookupOutcome::NoChildren);
            };
            level = below;
        }
        LookupTrace::without_limit(steps, LookupOutcome::NoEntries)
    }

    fn candidates<'t>(
        &'t self,
        level: &DescriptorNode,
        key: &str,
        value: &str,
    ) -> (Vec<LookupCandidate<'t>>, Option<(LookupTarget, MatchKind)>) {
        let taken = self.match_entry(level, key, value);
        let value = &*self.canonical_value(level, (key, value));
        let subject = CompositeKey::new(key, value);
        let mut tried = Vec::new();
        let exact = format!("{key}_{value}");
        let mut is_taken = false;
        let mut add_candidate = |kind, name: Cow<'t, str>, is_match: bool| {
            let verdict = if !is_match {
                CandidateStatus::Absent
            } else if !is_taken && taken.is_some_and(|(_, by)| by == kind) {
                CandidateStatus::Taken
            } else {
                CandidateStatus::Outranked
            };
            is_taken |= verdict == CandidateStatus::Taken;
            tried.push(LookupCandidate { kind, name, status: verdict });
        };
        let found = self.find_node(level.id, &exact).is_some();
        add_candidate(MatchKind::Exact, exact.into(), found);
        for node in self.networks_around(level, (key, value)) {
            add_candidate(MatchKind::Network, self.name(node).into(), true);
        }
        for &node in self.patterns(level) {
            let name = self.name(node);
            add_candidate(MatchKind::Wildcard, name.into(), pattern::matches(name, subject));
        }
        let found = self.find_node(level.id, key).is_some();
        add_candidate(MatchKind::Bare, key.to_owned().into(), found);
        (tried, taken)
    }
}
