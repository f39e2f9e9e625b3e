//! Verifies the structure of a YAML tree before any code follows an alias.
//!
//! Guarantees:
//! - If [`check`] reports no error, following aliases ends within [`DEPTH`] levels and a bounded
//!   number of nodes.
//! - Every key is a scalar, and the value of every merge key (`<<`) is one or more mappings.
//! - Every tag fits its scalar, or the scalar is in the returned set.
//!
//! Not covered:
//! - The keys and types of a limits file.

use std::collections::HashSet;

use super::syntax_error::report_too_deep;
use super::{DEPTH, YamlId, YamlKind, YamlTree, scalar};
use crate::diagnostic::{Code, Findings, Span};

/// Verifies a YAML tree and reports errors. Returns the scalars whose tag does not fit, or `None`
/// if following aliases would not end.
pub(crate) fn check(tree: &YamlTree<'_>, findings: &mut Findings) -> Option<HashSet<YamlId>> {
    let mut misfits = HashSet::new();
    for id in 0..tree.len() {
        match tree.kind(id) {
            YamlKind::Scalar { text, plain } => {
                if let Some(tag) = misfitting_tag(tree, id, text, *plain) {
                    let message = format!("the tag `{tag}` does not match the value `{text}`");
                    let help = "remove the tag";
                    findings.add_with_help(Code::TagMisfit, tree.span(id), message, help);
                    misfits.insert(id);
                }
            }
            YamlKind::Mapping(_) => check_pairs(tree, id, findings),
            YamlKind::Sequence(_) | YamlKind::Alias(_) => {}
        }
    }
    (!tree.has_aliases || AliasWalk::new(tree).terminates(findings)).then_some(misfits)
}

fn misfitting_tag(
    tree: &YamlTree<'_>,
    id: YamlId,
    text: &str,
    plain: bool,
) -> Option<&'static str> {
    let tag = tree.tag(id);
    let has_tag = !tag.is_empty() && !tree.is_merge(id);
    has_tag.then(|| scalar::parse_scalar(text, tag, plain).err()).flatten()
}

fn check_pairs(tree: &YamlTree<'_>, id: YamlId, findings: &mut Findings) {
    for (key, value) in tree.pairs(id) {
        if tree.is_merge(key) {
            check_merge(tree, value, findings);
        } else if !matches!(tree.kind(tree.target(key)), YamlKind::Scalar { .. }) {
            let (message, help) = ("the key is a list or a mapping", "write text as the key");
            findings.add_with_help(Code::KeyNotText, tree.span(key), message, help);
        }
    }
}

fn check_merge(tree: &YamlTree<'_>, value: YamlId, findings: &mut Findings) {
    for merged in tree.merged_mappings(value) {
        if !matches!(tree.kind(tree.target(merged)), YamlKind::Mapping(_)) {
            let message = "the value of `<<` is not a mapping";
            let help = "write the alias of a mapping: `<<: *anchor`";
            findings.add_with_help(Code::BadMerge, tree.span(merged), message, help);
        }
    }
}

pub(crate) fn report_too_many_aliases(at: Span, findings: &mut Findings) {
    let message = "aliases repeat too much of the file";
    let help = "write some of the blocks again instead of an alias";
    findings.add_with_help(Code::EndlessAlias, at, message, help);
}

/// Counts the nodes that were read, and how many of them were reached through aliases. The
/// permitted part is that of envoyproxy/ratelimit's parser: 99 % in a small file, 10 % in a large
/// one.
#[derive(Debug, Default)]
pub(crate) struct AliasBudget {
    read: u32,
    from_aliases: u32,
    /// The number of nested aliases that are being followed.
    pub(crate) alias_depth: usize,
}

impl AliasBudget {
    /// The number of nodes up to which 99 % may come from aliases.
    const SMALL_FILE_NODES: f64 = 400_000.0;
    /// The number of nodes from which on only 10 % may come from aliases.
    const LARGE_FILE_NODES: f64 = 4_000_000.0;

    /// Counts one node. Returns `false` if too many nodes came from aliases.
    pub(crate) fn count(&mut self) -> bool {
        self.read = self.read.saturating_add(1);
        if 0 < self.alias_depth {
            self.from_aliases = self.from_aliases.saturating_add(1);
        }
        let is_small = self.from_aliases <= 100 || self.read <= 1000;
        is_small || f64::from(self.from_aliases) <= self.allowed_fraction() * f64::from(self.read)
    }

    fn allowed_fraction(&self) -> f64 {
        let progress = (f64::from(self.read) - Self::SMALL_FILE_NODES)
            / (Self::LARGE_FILE_NODES - Self::SMALL_FILE_NODES);
        0.99 - 0.89 * progress.clamp(0.0, 1.0)
    }
}

enum WalkStep {
    Enter(YamlId),
    Leave(YamlId),
    LeaveAlias,
}

/// A depth-first walk over a tree that follows aliases. It uses its own stack instead of recursion.
struct AliasWalk<'t, 's> {
    tree: &'t YamlTree<'s>,
    steps: Vec<WalkStep>,
    /// For each node, `true` while the walk is inside the node. An alias to such a node would never
    /// end.
    is_open: Vec<bool>,
    depth: usize,
    budget: AliasBudget,
}

impl<'t, 's> AliasWalk<'t, 's> {
    fn new(tree: &'t YamlTree<'s>) -> Self {
        let steps = tree.root.map(WalkStep::Enter).into_iter().collect();
        let is_open = vec![false; tree.len()];
        Self { tree, steps, is_open, depth: 0, budget: AliasBudget::default() }
    }

    fn terminates(mut self, findings: &mut Findings) -> bool {
        while let Some(step) = self.steps.pop() {
            let is_valid = match step {
                WalkStep::Enter(id) => self.enter(id, findings),
                WalkStep::Leave(id) => self.leave(id),
                WalkStep::LeaveAlias => {
                    self.budget.alias_depth -= 1;
                    true
                }
            };
            if !is_valid {
                return false;
            }
        }
        true
    }

    fn leave(&mut self, id: YamlId) -> bool {
        self.is_open[id] = false;
        self.depth -= 1;
        true
    }

    fn enter(&mut self, id: YamlId, findings: &mut Findings) -> bool {
        let span = self.tree.span(id);
        if !self.budget.count() {
            report_too_many_aliases(span, findings);
            return false;
        }
        match self.tree.kind(id) {
            YamlKind::Scalar { .. } => {}
            YamlKind::Alias(target) if self.is_open[*target] => {
                let message = "the alias refers to a block that contains it";
                let help = "write the block again instead of the alias";
                findings.add_with_help(Code::EndlessAlias, span, message, help);
                return false;
            }
            YamlKind::Alias(target) => {
                self.budget.alias_depth += 1;
                self.steps.extend([WalkStep::LeaveAlias, WalkStep::Enter(*target)]);
            }
            YamlKind::Mapping(_) | YamlKind::Sequence(_) if self.depth == DEPTH => {
                report_too_deep(span, findings);
                return false;
            }
            YamlKind::Mapping(_) => self.enter_mapping(id),
            YamlKind::Sequence(_) => {
                self.open_collection(id);
                let items = self.tree.children(id).iter().rev();
                self.steps.extend(items.map(|item| WalkStep::Enter(*item)));
            }
        }
        true
    }

    fn open_collection(&mut self, id: YamlId) {
        self.is_open[id] = true;
        self.depth += 1;
        self.steps.push(WalkStep::Leave(id));
    }

    fn enter_mapping(&mut self, id: YamlId) {
        self.open_collection(id);
        let first = self.steps.len();
        for (key, value) in self.tree.pairs(id) {
            if self.tree.is_merge(key) {
                self.steps
                    .extend(self.tree.merged_mappings(value).into_iter().map(WalkStep::Enter));
            } else {
                self.steps.extend([WalkStep::Enter(key), WalkStep::Enter(value)]);
            }
        }
        self.steps[first..].reverse();
    }
}
