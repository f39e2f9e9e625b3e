//! Traces the lookup of a descriptor's rule.
//!
//! Guarantees:
//! - Takes the same steps as [`DescriptorTree::lookup`], with the same functions.
//!
//! Not covered:
//! - The text for users (see `explain`).

use std::borrow::Cow;

use crate::config::concurrency::Ceiling;

use super::pattern::Composite;
use super::table::Goal;
use super::{DescriptorTree, How, Match, Node, Shared, pattern, substitute};

/// The trace of one lookup.
#[derive(Debug)]
pub struct Trace<'t> {
    /// One step per compared entry.
    pub steps: Vec<Step<'t>>,
    /// The outcome of the lookup.
    pub outcome: Outcome<'t>,
    /// The concurrency limit of the last node.
    pub ceiling: Option<&'t Ceiling>,
}

/// The lookup of one entry at one level.
#[derive(Debug)]
pub struct Step<'t> {
    /// The entry.
    pub entry: (String, String),
    /// The candidates, by priority: exact, patterns, bare key.
    pub tried: Vec<Tried<'t>>,
}

/// One candidate at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried<'t> {
    /// The kind of name.
    pub how: How,
    /// The candidate's name.
    pub name: Cow<'t, str>,
    /// The status of the candidate.
    pub verdict: Verdict,
}

/// The status of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lookup continues at this node.
    Taken,
    /// The level has no such node, or the pattern does not match.
    Absent,
    /// The candidate matches, but one with a higher priority was taken.
    Outranked,
}

/// The outcome of a lookup.
#[derive(Debug)]
pub enum Outcome<'t> {
    /// A rule was found.
    Found(Match<'t>),
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

impl Step<'_> {
    /// Returns the candidate that was taken.
    #[must_use]
    pub fn taken(&self) -> Option<&Tried<'_>> {
        self.tried.iter().find(|tried| tried.verdict == Verdict::Taken)
    }
}

impl DescriptorTree {
    /// Returns the trace of a descriptor, with all candidates at all levels.
    ///
    /// Cost: linear in the patterns of the visited levels; allocates. Not for the request path.
    #[must_use]
    pub fn explain(&self, entries: &[(&str, &str)]) -> Trace<'_> {
        let mut steps = Vec::new();
        let mut shared = Shared::new();
        let mut level = self.root();
        for (position, &(key, value)) in entries.iter().enumerate() {
            let (tried, taken) = self.candidates(level, key, value);
            steps.push(Step { entry: (key.to_owned(), value.to_owned()), tried });
            let Some((goal, how)) = taken else {
                return Trace { steps, outcome: Outcome::NoNode, ceiling: None };
            };
            if let Some(pattern) = self.shared_by(goal, how) {
                shared.push((position, substitute(pattern, key)));
            }
            let below = self.node_at(goal).filter(|node| node.has_children());
            if position + 1 == entries.len() {
                let outcome = match self.rule_at(goal) {
                    Some(rule) => Outcome::Found(Match { rule, shared }),
                    None => Outcome::NoLimit { has_children: below.is_some() },
                };
                let ceiling = goal.node().and_then(|node| self.ceiling_of(node));
                return Trace { steps, outcome, ceiling };
            }
            let Some(below) = below else {
                return Trace { steps, outcome: Outcome::NoChildren, ceiling: None };
            };
            level = below;
        }
        Trace { steps, outcome: Outcome::NoEntries, ceiling: None }
    }

    fn candidates<'t>(
        &'t self,
        level: &Node,
        key: &str,
        value: &str,
    ) -> (Vec<Tried<'t>>, Option<(Goal, How)>) {
        let taken = self.step(level, key, value);
        let subject = Composite::new(key, value);
        let mut tried = Vec::new();
        let exact = format!("{key}_{value}");
        let mut is_taken = false;
        let mut judge = |how, name: Cow<'t, str>, is_there: bool| {
            let verdict = if !is_there {
                Verdict::Absent
            } else if !is_taken && taken.is_some_and(|(_, by)| by == how) {
                Verdict::Taken
            } else {
                Verdict::Outranked
            };
            is_taken |= verdict == Verdict::Taken;
            tried.push(Tried { how, name, verdict });
        };
        let found = self.named(level.id, &exact).is_some();
        judge(How::Exact, exact.into(), found);
        for &node in self.patterns(level) {
            let name = self.name(node);
            judge(How::Wildcard, name.into(), pattern::matches(name, subject));
        }
        let found = self.named(level.id, key).is_some();
        judge(How::Bare, key.to_owned().into(), found);
        (tried, taken)
    }
}
