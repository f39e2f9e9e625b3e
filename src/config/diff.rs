//! What a new configuration changes.
//!
//! Guarantees: linear; every rule is counted once: kept, added, removed or changed. A rule is known
//! by its path, so a renamed key is one removed and one added; where it stands in a file is no
//! change.
//! Leaves out: what becomes of counters.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::{Config, Rule};

/// The rules that differ between two configurations, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Rules that only the new one has.
    pub added: Vec<Change>,
    /// Rules that only the old one has.
    pub removed: Vec<Change>,
    /// Rules that both have and that say something else now.
    pub changed: Vec<Change>,
}

/// One rule that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Change {
    /// The rule's path.
    pub path: Box<str>,
    /// The old rule in words; absent where it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The new rule in words; absent where it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// What changes from `old` to `new`, each list by path.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Diff {
    let mut before = by_path(old);
    let mut diff = Diff::default();
    for rule in rules(new) {
        let path = &*rule.path;
        match before.get_mut(path).and_then(Vec::pop) {
            None => diff.added.push(change(path, None, Some(rule))),
            Some(was) if !same(was, rule) => diff.changed.push(change(path, Some(was), Some(rule))),
            Some(_) => {}
        }
    }
    let gone = before
        .into_iter()
        .flat_map(|(path, rules)| rules.into_iter().map(move |rule| (path, rule)));
    diff.removed = gone.map(|(path, rule)| change(path, Some(rule), None)).collect();
    for list in [&mut diff.added, &mut diff.removed, &mut diff.changed] {
        list.sort_unstable();
    }
    diff
}

impl Diff {
    /// Whether the two say the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// `3 added, 1 removed, 2 changed`.
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, changed } = self;
        write!(f, "{} added, {} removed, {} changed", added.len(), removed.len(), changed.len())
    }
}

fn rules(config: &Config) -> impl Iterator<Item = &Rule> {
    config.domains.values().flat_map(|domain| domain.tree.rules())
}

/// Several rules of one path are possible: names are joined by dots and may hold dots. They are
/// paired in the file's order.
fn by_path(config: &Config) -> HashMap<&str, Vec<&Rule>> {
    let mut paths: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in rules(config) {
        paths.entry(&rule.path).or_default().push(rule);
    }
    for rules in paths.values_mut() {
        rules.reverse();
    }
    paths
}

fn same(a: &Rule, b: &Rule) -> bool {
    a.limit == b.limit
        && a.name == b.name
        && a.replaces == b.replaces
        && (a.shadow, a.quota, a.detailed_metric) == (b.shadow, b.quota, b.detailed_metric)
        && a.metadata == b.metadata
}

fn change(path: &str, old: Option<&Rule>, new: Option<&Rule>) -> Change {
    Change { path: path.into(), old: old.map(Rule::to_string), new: new.map(Rule::to_string) }
}
