//! Checks the structure of a tree before any code follows an alias.
//!
//! Guarantees:
//! - After a check without errors, following aliases ends within [`DEPTH`] levels and bounded
//!   steps.
//! - Every key is a scalar, and every merge key names mappings.
//! - Every tag fits its text, or is in the returned set.
//!
//! Not covered:
//! - The keys and types of a limits file.

use std::collections::HashSet;

use super::node::too_deep;
use super::{DEPTH, Id, Kind, Tree, scalar};
use crate::config::diagnostic::{Code, Findings};

/// Checks a tree. Returns the scalars whose tag does not
/// fit, or `None` if following aliases would never end.
pub(in crate::config) fn check(tree: &Tree<'_>, findings: &mut Findings) -> Option<HashSet<Id>> {
    let mut misfits = HashSet::new();
    for id in 0..tree.len() {
        match tree.kind(id) {
            Kind::Scalar { text, plain } => {
                if let Some(tag) = misfit(tree, id, text, *plain) {
                    let message = format!("the tag `{tag}` does not fit the text `{text}`");
                    let help = "take the tag out";
                    findings.add_with_help(Code::TagMisfit, tree.span(id), message, help);
                    misfits.insert(id);
                }
            }
            Kind::Mapping(_) => pairs_are_sound(tree, id, findings),
            Kind::Sequence(_) | Kind::Alias(_) => {}
        }
    }
    (!tree.aliased || Walk::new(tree).ends(findings)).then_some(misfits)
}

fn misfit(tree: &Tree<'_>, id: Id, text: &str, plain: bool) -> Option<&'static str> {
    let tag = tree.tag(id);
    let asked = !tag.is_empty() && !tree.is_merge(id);
    asked.then(|| scalar::value(text, tag, plain).err()).flatten()
}

fn pairs_are_sound(tree: &Tree<'_>, id: Id, findings: &mut Findings) {
    for (key, value) in tree.pairs(id) {
        if tree.is_merge(key) {
            merge_is_sound(tree, value, findings);
        } else if !matches!(tree.kind(tree.target(key)), Kind::Scalar { .. }) {
            let message = "a list or a mapping as a key";
            findings.add_with_help(Code::KeyNotText, tree.span(key), message, "keys are text");
        }
    }
}

fn merge_is_sound(tree: &Tree<'_>, value: Id, findings: &mut Findings) {
    for merged in tree.merged(value) {
        if !matches!(tree.kind(tree.target(merged)), Kind::Mapping(_)) {
            let message = "`<<` wants a mapping, or a list of mappings, to merge";
            let help = "name one with an alias: `<<: *anchor`";
            findings.add_with_help(Code::BadMerge, tree.span(merged), message, help);
        }
    }
}

/// Counts the nodes that were read and how many of them came from
/// aliases. As in envoyproxy/ratelimit's parser, nearly all nodes of
/// a small file may come from aliases, but only 10 % of a large one.
#[derive(Debug, Default)]
pub(in crate::config) struct Budget {
    read: u32,
    from_aliases: u32,
    /// The number of aliases that are being followed.
    pub(in crate::config) inside: usize,
}

impl Budget {
    /// Up to this number of nodes, 99 % may come from aliases.
    const SMALL: f64 = 400_000.0;
    /// From this number on, 10 % may come from aliases.
    const LARGE: f64 = 4_000_000.0;

    /// Counts one node. Returns `false` if too many came from aliases.
    pub(in crate::config) fn count(&mut self) -> bool {
        self.read = self.read.saturating_add(1);
        if 0 < self.inside {
            self.from_aliases = self.from_aliases.saturating_add(1);
        }
        let few = self.from_aliases <= 100 || self.read <= 1000;
        few || f64::from(self.from_aliases) <= self.part() * f64::from(self.read)
    }

    fn part(&self) -> f64 {
        let way = (f64::from(self.read) - Self::SMALL) / (Self::LARGE - Self::SMALL);
        0.99 - 0.89 * way.clamp(0.0, 1.0)
    }
}

enum Step {
    Enter(Id),
    Leave(Id),
    LeaveAlias,
}

/// A walk over a tree with aliases followed. It has its own stack instead of recursion.
struct Walk<'t, 's> {
    tree: &'t Tree<'s>,
    steps: Vec<Step>,
    /// For each node, `true` while the walk is inside of it.
    within: Vec<bool>,
    depth: usize,
    budget: Budget,
}

impl<'t, 's> Walk<'t, 's> {
    fn new(tree: &'t Tree<'s>) -> Self {
        let steps = tree.root.map(Step::Enter).into_iter().collect();
        let within = vec![false; tree.len()];
        Self { tree, steps, within, depth: 0, budget: Budget::default() }
    }

    fn ends(mut self, findings: &mut Findings) -> bool {
        while let Some(step) = self.steps.pop() {
            let sound = match step {
                Step::Enter(id) => self.enter(id, findings),
                Step::Leave(id) => self.leave(id),
                Step::LeaveAlias => {
                    self.budget.inside -= 1;
                    true
                }
            };
            if !sound {
                return false;
            }
        }
        true
    }

    fn leave(&mut self, id: Id) -> bool {
        self.within[id] = false;
        self.depth -= 1;
        true
    }

    fn enter(&mut self, id: Id, findings: &mut Findings) -> bool {
        let span = self.tree.span(id);
        if !self.budget.count() {
            let message = "aliases multiply beyond measure";
            findings.add(Code::EndlessAlias, span, message);
            return false;
        }
        match self.tree.kind(id) {
            Kind::Scalar { .. } => {}
            Kind::Alias(target) if self.within[*target] => {
                let message = "an alias to what it stands in never ends";
                findings.add(Code::EndlessAlias, span, message);
                return false;
            }
            Kind::Alias(target) => {
                self.budget.inside += 1;
                self.steps.extend([Step::LeaveAlias, Step::Enter(*target)]);
            }
            Kind::Mapping(_) | Kind::Sequence(_) if self.depth == DEPTH => {
                too_deep(span, findings);
                return false;
            }
            Kind::Mapping(_) => self.enter_mapping(id),
            Kind::Sequence(_) => {
                self.open(id);
                let items = self.tree.children(id).iter().rev();
                self.steps.extend(items.map(|item| Step::Enter(*item)));
            }
        }
        true
    }

    fn open(&mut self, id: Id) {
        self.within[id] = true;
        self.depth += 1;
        self.steps.push(Step::Leave(id));
    }

    fn enter_mapping(&mut self, id: Id) {
        self.open(id);
        let first = self.steps.len();
        for (key, value) in self.tree.pairs(id) {
            if self.tree.is_merge(key) {
                self.steps.extend(self.tree.merged(value).into_iter().map(Step::Enter));
            } else {
                self.steps.extend([Step::Enter(key), Step::Enter(value)]);
            }
        }
        self.steps[first..].reverse();
    }
}
