//! What a new configuration changes.
//!
//! Guarantees: linear; every rule and every ceiling is counted once: kept, added, removed or
//! changed. A rule is known
//! by its path, so a renamed key is one removed and one added; where it stands in a file is no
//! change.
//! Leaves out: what becomes of counters.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::concurrency::Ceiling;
use super::{Config, Rule};

/// The rules that differ between two configurations, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Rules and ceilings that only the new one has.
    pub added: Vec<Change>,
    /// Rules and ceilings that only the old one has.
    pub removed: Vec<Change>,
    /// Rules and ceilings that both have and that say something else now.
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
    let mut before = by_name(old);
    let mut diff = Diff::default();
    for said in all(new) {
        match before.get_mut(&said.name()).and_then(Vec::pop) {
            None => diff.added.push(change(None, Some(said))),
            Some(was) if !was.same(said) => diff.changed.push(change(Some(was), Some(said))),
            Some(_) => {}
        }
    }
    let gone = before.into_values().flatten();
    diff.removed = gone.map(|said| change(Some(said), None)).collect();
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

/// What a node may say.
#[derive(Clone, Copy)]
enum Said<'c> {
    Rule(&'c Rule),
    Ceiling(&'c Ceiling),
}

impl<'c> Said<'c> {
    /// What it is known by: a node's rule and its ceiling have one path.
    fn name(self) -> (bool, &'c str) {
        (matches!(self, Self::Rule(_)), self.path())
    }

    fn path(self) -> &'c str {
        match self {
            Self::Rule(rule) => &rule.path,
            Self::Ceiling(ceiling) => &ceiling.path,
        }
    }

    fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Rule(a), Self::Rule(b)) => same(a, b),
            (Self::Ceiling(a), Self::Ceiling(b)) => {
                let said = |it: &Ceiling| (it.rules, it.max_duration, it.shadow);
                said(a) == said(b) && a.reject == b.reject
            }
            _ => false,
        }
    }
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Ceiling(ceiling) => ceiling.fmt(f),
        }
    }
}

fn all(config: &Config) -> impl Iterator<Item = Said<'_>> {
    config.domains.values().flat_map(|domain| {
        let ceilings = domain.tree.ceilings().map(Said::Ceiling);
        domain.tree.rules().map(Said::Rule).chain(ceilings)
    })
}

/// Several rules of one path are possible: names are joined by dots and may hold dots. They are
/// paired in the file's order.
fn by_name(config: &Config) -> HashMap<(bool, &str), Vec<Said<'_>>> {
    let mut names: HashMap<_, Vec<Said<'_>>> = HashMap::new();
    for said in all(config) {
        names.entry(said.name()).or_default().push(said);
    }
    for said in names.values_mut() {
        said.reverse();
    }
    names
}

fn same(a: &Rule, b: &Rule) -> bool {
    a.limit == b.limit
        && a.name == b.name
        && a.replaces == b.replaces
        && (a.shadow, a.quota, a.detailed_metric) == (b.shadow, b.quota, b.detailed_metric)
        && a.metadata == b.metadata
}

/// One of the two is there.
fn change(old: Option<Said<'_>>, new: Option<Said<'_>>) -> Change {
    let words = |said: Said<'_>| said.to_string();
    let path = new.or(old).map_or("", Said::path);
    Change { path: path.into(), old: old.map(words), new: new.map(words) }
}
