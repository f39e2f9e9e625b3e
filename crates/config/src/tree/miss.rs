//! Finds the reason why a descriptor matches no rule.
//!
//! Guarantees:
//! - Allocates no memory.
//! - Compares entries with the same function as [`DescriptorTree::lookup`].

use super::DescriptorTree;

/// The end of a lookup that found no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupMiss {
    /// The index of the last entry that was compared.
    pub entry: usize,
    /// The reason.
    pub reason: MissReason,
}

/// The reason why a lookup found no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// The descriptor has no entries.
    NoEntries,
    /// No node of the level matches the entry.
    NoNode,
    /// The descriptor has further entries, but the node that matches the entry has no children.
    NoChildren,
    /// The node that matches the last entry has no limit, but children.
    OnlyChildren,
    /// The node that matches the last entry has no rate limit and no children.
    NoRateLimit,
}

impl MissReason {
    /// Returns the reason as a clause. `entry` is the last entry that was compared, as text.
    #[must_use]
    pub fn describe(self, entry: &str) -> String {
        match self {
            Self::NoEntries => "no rule: the descriptor has no entries".to_owned(),
            Self::NoNode => format!("no rule for `{entry}`"),
            Self::NoChildren => {
                format!("no rule: the rule for `{entry}` has no descriptors for the next entry")
            }
            Self::OnlyChildren => {
                format!("no rule: the rule for `{entry}` has only descriptors for a further entry")
            }
            Self::NoRateLimit => {
                format!("no limit: the rule for `{entry}` has no rate_limit")
            }
        }
    }
}

impl DescriptorTree {
    /// Returns the reason why a descriptor matches no rule, or `None` if it matches one.
    #[must_use]
    pub fn find_miss(&self, entries: &[(&str, &str)]) -> Option<LookupMiss> {
        let mut level = self.root();
        for (entry, &(key, value)) in entries.iter().enumerate() {
            let is_last = entry + 1 == entries.len();
            let target = self.match_entry(level, key, value).map(|(target, _)| target);
            let rule = target.and_then(|target| self.rule_at(target));
            let below = target.and_then(|target| self.node_at(target));
            let below = below.filter(|node| node.has_children());
            let reason = match (target, rule, below) {
                (None, ..) => MissReason::NoNode,
                (_, Some(_), _) if is_last => return None,
                (_, _, None) if is_last => MissReason::NoRateLimit,
                (_, _, Some(_)) if is_last => MissReason::OnlyChildren,
                (_, _, None) => MissReason::NoChildren,
                (_, _, Some(below)) => {
                    level = below;
                    continue;
                }
            };
            return Some(LookupMiss { entry, reason });
        }
        Some(LookupMiss { entry: 0, reason: MissReason::NoEntries })
    }
}
