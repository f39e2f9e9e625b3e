//! Records each step of the lookup of a descriptor, for the command `explain`.

use std::borrow::Cow;

use crate::config::concurrency::ConcurrencyLimit;

use super::pattern::CompositeKey;
use super::table::LookupTarget;
use super::{
    DescriptorNode, DescriptorTree, MatchKind, RuleMatch, SharedValues, pattern, shared_text,
};

/// The record of one lookup.
#[derive(Debug)]
pub struct LookupTrace<'t> {
    /// The steps, one for each entry that was compared with the rules.
    pub steps: Vec<LookupStep<'t>>,
    /// The result of the lookup.
    pub outcome: LookupOutcome<'t>,
    /// The concurrency limit that the descriptor matches, if any.
    pub concurrency_limit: Option<&'t ConcurrencyLimit>,
}

/// The comparison of one entry with the nodes of one level.
#[derive(Debug)]
pub struct LookupStep<'t> {
    /// The entry.
    pub entry: (String, String),
    /// The names that could match, in the order of priority: exact, patterns, bare key.
    pub candidates: Vec<LookupCandidate<'t>>,
}

/// A name that could match an entry.
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
    fn without_match(steps: Vec<LookupStep<'t>>, outcome: LookupOutcome<'t>) -> Self {
        Self { steps, outcome, concurrency_limit: None }
    }
}

impl LookupStep<'_> {
    /// Returns the name that the entry matched, if any.
    #[must_use]
    pub fn taken(&self) -> Option<&LookupCandidate<'_>> {
        self.candidates.iter().find(|candidate| candidate.status == CandidateStatus::Taken)
    }
}

impl DescriptorTree {
    /// Looks up a descriptor and records the lookup, in time linear in the number of compared
    /// patterns.
    #[must_use]
    pub fn trace_lookup(&self, entries: &[(&str, &str)]) -> LookupTrace<'_> {
        let mut steps = Vec::new();
        let mut shared = SharedValues::new();
        let mut level = self.root();
        for (position, &(key, value)) in entries.iter().enumerate() {
            let (candidates, taken) = self.candidates(level, key, value);
            steps.push(LookupStep { entry: (key.to_owned(), value.to_owned()), candidates });
            let Some((target, kind)) = taken else {
                return LookupTrace::without_match(steps, LookupOutcome::NoNode);
            };
            if let Some(pattern) = self.shared_pattern(target, kind) {
                shared.push((position, shared_text(pattern, key)));
            }
            let next_level = self.node_at(target).filter(|node| node.has_children());
            if position + 1 == entries.len() {
                let outcome = match self.rule_at(target) {
                    Some(rule) => LookupOutcome::Found(RuleMatch { rule, shared }),
                    None => LookupOutcome::NoLimit { has_children: next_level.is_some() },
                };
                let concurrency_limit =
                    target.node().and_then(|node| self.concurrency_limit_of(node));
                return LookupTrace { steps, outcome, concurrency_limit };
            }
            let Some(next_level) = next_level else {
                return LookupTrace::without_match(steps, LookupOutcome::NoChildren);
            };
            level = next_level;
        }
        LookupTrace::without_match(steps, LookupOutcome::NoEntries)
    }

    fn candidates<'t>(
        &'t self,
        level: &DescriptorNode,
        key: &str,
        value: &str,
    ) -> (Vec<LookupCandidate<'t>>, Option<(LookupTarget, MatchKind)>) {
        let taken = self.match_entry(level, key, value);
        let entry = CompositeKey::new(key, value);
        let mut candidates = Vec::new();
        let exact = format!("{key}_{value}");
        let mut is_taken = false;
        let mut add_candidate = |kind, name: Cow<'t, str>, is_match: bool| {
            let status = if !is_match {
                CandidateStatus::Absent
            } else if !is_taken && taken.is_some_and(|(_, taken_kind)| taken_kind == kind) {
                CandidateStatus::Taken
            } else {
                CandidateStatus::Outranked
            };
            is_taken |= status == CandidateStatus::Taken;
            candidates.push(LookupCandidate { kind, name, status });
        };
        let has_exact = self.find_node(level.id, &exact).is_some();
        add_candidate(MatchKind::Exact, exact.into(), has_exact);
        for &node in self.patterns(level) {
            let name = self.name(node);
            add_candidate(MatchKind::Wildcard, name.into(), pattern::matches(name, entry));
        }
        let has_bare = self.find_node(level.id, key).is_some();
        add_candidate(MatchKind::Bare, key.to_owned().into(), has_bare);
        (candidates, taken)
    }
}
