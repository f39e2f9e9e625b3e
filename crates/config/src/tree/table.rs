//! The hash table of the descriptor tree, from the names of nodes to nodes or rules.
//!
//! Guarantees:
//! - A name is found if and only if it was added: after the hash, all bytes are compared.
//! - A lookup in a large hash table usually has one CPU cache miss.
//! - There is a second cache miss if names with equal last bytes have different first bytes.
//!
//! Not covered:
//! - The order in which names are looked up (see [`super::DescriptorTree`]).

use std::collections::HashMap;
use std::hash::Hasher;
use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::node::{NameSpan, NodeId, RuleId, key_hasher};
use super::pattern::CompositeKey;

/// The number of bytes at the end of a name that are stored in the slot of the hash table.
/// [`CompositeKey::suffix`] returns them.
const SUFFIX_LEN: usize = size_of::<u64>();

/// The hash table from names to lookup targets.
///
/// A slot has 16 bytes and stores the end of a name, because the names on one level differ mostly
/// at the end. The part before it is stored once for all names that share it. A smaller table
/// causes fewer CPU cache misses.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    slots: HashTable<NameSlot>,
    prefixes: Vec<NamePrefix>,
}

/// One slot of the hash table: the end of a name, the index of the part before it, and the lookup
/// target.
#[derive(Clone, Copy, Debug)]
struct NameSlot {
    suffix: u64,
    /// The index of the rest of the name in `prefixes`.
    prefix: u32,
    target: LookupTarget,
}

const _: () = assert!(size_of::<NameSlot>() == 16);

/// The part of names before their last [`SUFFIX_LEN`] bytes. It is stored once for all children of
/// `parent` whose names have the same length and this prefix.
#[derive(Clone, Copy, Debug)]
struct NamePrefix {
    parent: NodeId,
    /// One of the names that start with this prefix.
    name: NameSpan,
}

/// The result of a lookup by name: a node, or only the number of its rule if a lookup needs nothing
/// else of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookupTarget(u32);

impl LookupTarget {
    /// The bit that is set if the other bits are the number of a rule, not of a node.
    const RULE_FLAG: u32 = 1 << 31;

    /// The largest node number that fits.
    pub(super) const MAX_NODE: u32 = Self::RULE_FLAG - 1;

    pub(super) const fn of_node(node: NodeId) -> Self {
        Self(node.0)
    }

    pub(super) const fn of_rule(rule: RuleId) -> Self {
        Self(rule.0.get() | Self::RULE_FLAG)
    }

    pub(super) fn node(self) -> Option<NodeId> {
        (self.0 & Self::RULE_FLAG == 0).then_some(NodeId(self.0))
    }

    pub(super) fn rule(self) -> Option<RuleId> {
        let number = NonZeroU32::new(self.0 & !Self::RULE_FLAG);
        number.filter(|_| self.0 & Self::RULE_FLAG != 0).map(RuleId)
    }
}

impl NameTable {
    /// Creates a hash table of `entries`. The names of the children of one node must be unique.
    pub(super) fn new(
        names: &str,
        entries: impl ExactSizeIterator<Item = (NodeId, NameSpan, LookupTarget)>,
    ) -> Self {
        let mut slots = HashTable::with_capacity(entries.len());
        let mut prefixes: Vec<NamePrefix> = Vec::new();
        let mut prefix_numbers = HashMap::new();
        for (parent, name, goal) in entries {
            let prefix = NamePrefix { parent, name };
            let number = *prefix_numbers
                .entry((parent, name.len, prefix.text(names)))
                .or_insert_with(|| {
                    prefixes.push(prefix);
                    prefixes.len() - 1
                });
            let end = CompositeKey::from_joined(name.text(names)).suffix();
            // The number of prefixes fits: it is at most the number of nodes, which fits in 31
            // bits.
            let slot = NameSlot {
                suffix: end,
                prefix: u32::try_from(number).unwrap_or(u32::MAX),
                target: goal,
            };
            let hash_of = |slot: &NameSlot| slot.hash(&prefixes, names);
            slots.insert_unique(hash_of(&slot), slot, hash_of);
        }
        Self { slots, prefixes }
    }

    /// Returns the lookup target of the child of `parent` whose name is `subject`. The hash of the
    /// name is `hash`.
    #[inline]
    pub(super) fn find(
        &self,
        names: &str,
        parent: NodeId,
        hash: u64,
        subject: CompositeKey<'_>,
    ) -> Option<LookupTarget> {
        let (end, len) = (subject.suffix(), subject.len());
        let is_match = |slot: &NameSlot| {
            let prefix = &self.prefixes[slot.prefix as usize];
            slot.suffix == end
                && prefix.parent == parent
                && prefix.name.len as usize == len
                && subject.starts_with(prefix.text(names))
        };
        self.slots.find(hash, is_match).map(|slot| slot.target)
    }
}

impl NamePrefix {
    fn text(self, names: &str) -> &[u8] {
        let whole = self.name.text(names).as_bytes();
        &whole[..whole.len().saturating_sub(SUFFIX_LEN)]
    }
}

impl NameSlot {
    fn hash(&self, prefixes: &[NamePrefix], names: &str) -> u64 {
        let prefix = prefixes[self.prefix as usize];
        let missing = SUFFIX_LEN.saturating_sub(prefix.name.len as usize);
        let mut hasher = key_hasher(prefix.parent, prefix.text(names));
        hasher.write(&self.suffix.to_be_bytes()[missing..]);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that differ in one property each: level, length, prefix, suffix, or a zero byte that
    /// others lack.
    const NAMES: [(u32, &str); 12] = [
        (1, "api_key_customer-1"),
        (2, "api_key_customer-1"),
        (1, "api_key_customer-2"),
        (1, "api-key_customer-1"),
        (1, "api_key_customer-1customer-1"),
        (1, "customer-1"),
        (1, "stomer-1"),
        (1, "omer-1"),
        (1, "\0\0omer-1"),
        (1, "\0omer-1"),
        (1, ""),
        (1, "\0"),
    ];

    #[test]
    fn lookups_compare_names_despite_equal_hashes() {
        let names: String = NAMES.iter().map(|(_, name)| *name).collect();
        let mut start = 0;
        let all: Vec<_> = (0_u32..)
            .zip(NAMES)
            .map(|(number, (level, text))| {
                let name = NameSpan { start, len: text.len().try_into().unwrap() };
                start += name.len;
                (NodeId(level), name, LookupTarget::of_node(NodeId(number)))
            })
            .collect();
        for (out, &(level, name, goal)) in all.iter().enumerate() {
            let hash = super::super::node::name_hash(level, name.text(&names));
            let table = NameTable::new(&names, all.iter().copied());
            let text = name.text(&names);
            let found = table.find(&names, level, hash, CompositeKey::from_joined(text));
            assert_eq!(found, Some(goal), "{text:?}");
            let cut = text.find('_').map(|at| (&text[..at], &text[at + 1..]));
            let found = cut
                .map(|(key, value)| table.find(&names, level, hash, CompositeKey::new(key, value)));
            assert!(found.is_none_or(|found| found == Some(goal)), "{text:?}");
            // The hash table contains only one name. Each other name is looked up with the hash of
            // this name.
            let single_name_table = NameTable::new(&names, [all[out]].into_iter());
            for &(level, other, _) in all.iter().filter(|other| other.2 != goal) {
                let found = single_name_table.find(
                    &names,
                    level,
                    hash,
                    CompositeKey::from_joined(other.text(&names)),
                );
                assert_eq!(found, None, "{text:?} for {:?}", other.text(&names));
            }
        }
    }
}
