//! Traces the lookup of a descriptor's rule.
//!
//! Guarantees:
//! - Takes the same steps as [`DescriptorTree::lookup`], with the same functions.
//!
//! Not covered:
//! - The text for users (see `trace_lookup`).

use std::borrow::Cow;

use crate::config::concurrency::ConcurrencyLimit;

use super::pattern::CompositeKey;
use super::table::LookupTarget;
use super::{
    DescriptorNode, DescriptorTree, MatchKind, RuleMatch, SharedValues, pattern, shared_text,
};

/// The trace of one lookup.
#[derive(Debug)]
pub struct LookupTrace<'t> {
    /// One step per compared entry.
    pub steps: Vec<LookupStep<'t>>,
    /// The outcome of the lookup.
    pub outcome: LookupOutcome<'t>,
    /// The concurrency limit of the last node.
    pub concurrency_limit: Option<&'t ConcurrencyLimit>,
}

/// The lookup of one entry at one level.
#[derive(Debug)]
pub struct LookupStep<'t> {
    /// The entry.
    pub entry: (String, String),
    /// The candidates, by priority: exact, patterns, bare key.
    pub candidates: Vec<LookupCandidate<'t>>,
}

/// One candidate at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupCandidate<'t> {
    /// The kind of name.
    pub kind: MatchKind,
    /// The candidate's name.
    pub name: Cow<'t, str>,
    /// The status of the candidate.
    pub status: CandidateStatus,
}

/// The status of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateStatus {
    /// The lookup continues at this node.
    Taken,
    /// The level has no such node, or the pattern does not match.
    Absent,
    /// The candidate matches, but one with a higher priority was taken.
    Outranked,
}

/// The outcome of a lookup.
#[derive(Debug)]
pub enum LookupOutcome<'t> {
    /// A rule was found.
    Found(RuleMatch<'t>),
    /// The descriptor has no entries.
    NoEntries,
    /// The last step found no node.
    NoNode,
    /// The descriptor has more entries, but the last node has no children.
    NoChildren,
    /// The node of the last entry has no `rate_limit`.
    NoLimit {
        /// `true` if the file has descriptors below this node.
        has_children: bool,
    },
}

impl LookupStep<'_> {
    /// Returns the candidate that was taken.
    #[must_use]
    pub fn taken(&self) -> Option<&LookupCandidate<'_>> {
        self.candidates.iter().find(|tried| tried.status == CandidateStatus::Taken)
    }
}

impl DescriptorTree {
    /// Returns the trace of a descriptor, with all candidates at all levels.
    ///
    /// Cost: linear in the patterns of the visited levels; allocates. Not for the request path.
    #[must_use]
    pub fn trace_lookup(&self, entries: &[(&str, &str)]) -> LookupTrace<'_> {
        let mut steps = Vec::new();
        let mut shared = SharedValues::new();
        let mut level = self.root();
        for (position, &(key, value)) in entries.iter().enumerate() {
            let (tried, taken) = self.candidates(level, key, value);
            steps.push(LookupStep { entry: (key.to_owned(), value.to_owned()), candidates: tried });
            let Some((goal, how)) = taken else {
                return LookupTrace {
                    steps,
                    outcome: LookupOutcome::NoNode,
                    concurrency_limit: None,
                };
            };
            if let Some(pattern) = self.shared_pattern(goal, how) {
                shared.push((position, shared_text(pattern, key)));
            }
            let below = self.node_at(goal).filter(|node| node.has_children());
            if position + 1 == entries.len() {
                let outcome = match self.rule_at(goal) {
                    Some(rule) => LookupOutcome::Found(RuleMatch { rule, shared }),
                    None => LookupOutcome::NoLimit { has_children: below.is_some() },
                };
                let ceiling = goal.node().and_then(|node| self.concurrency_limit_of(node));
                return LookupTrace { steps, outcome, concurrency_limit: ceiling };
            }
            let Some(below) = below else {
                return LookupTrace {
                    steps,
                    outcome: LookupOutcome::NoChildren,
                    concurrency_limit: None,
                };
            };
            level = below;
        }
        LookupTrace { steps, outcome: LookupOutcome::NoEntries, concurrency_limit: None }
    }

    fn candidates<'t>(
        &'t self,
        level: &DescriptorNode,
        key: &str,
        value: &str,
    ) -> (Vec<LookupCandidate<'t>>, Option<(LookupTarget, MatchKind)>) {
        let taken = self.match_entry(level, key, value);
        let subject = CompositeKey::new(key, value);
        let mut tried = Vec::new();
        let exact = format!("{key}_{value}");
        let mut is_taken = false;
        let mut add_candidate = |how, name: Cow<'t, str>, is_there: bool| {
            let verdict = if !is_there {
                CandidateStatus::Absent
            } else if !is_taken && taken.is_some_and(|(_, by)| by == how) {
                CandidateStatus::Taken
            } else {
                CandidateStatus::Outranked
            };
            is_taken |= verdict == CandidateStatus::Taken;
            tried.push(LookupCandidate { kind: how, name, status: verdict });
        };
        let found = self.find_node(level.id, &exact).is_some();
        add_candidate(MatchKind::Exact, exact.into(), found);
        for &node in self.patterns(level) {
            let name = self.name(node);
            add_candidate(MatchKind::Wildcard, name.into(), pattern::matches(name, subject));
        }
        let found = self.find_node(level.id, key).is_some();
        add_candidate(MatchKind::Bare, key.to_owned().into(), found);
        (tried, taken)
    }
}
