//! The hash table from the names of a descriptor tree to its nodes and rules.
//!
//! Guarantees:
//! - A name is found if and only if it was added: after the hash, all bytes are compared.
//! - A lookup in a large hash table usually has one CPU cache miss.

use std::collections::HashMap;
use std::hash::Hasher;
use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::pattern::CompositeKey;
use super::{NameSpan, NodeId, RuleId, key_hasher};

const SUFFIX_LEN: usize = size_of::<u64>();

/// The hash table from names to lookup targets. A slot stores only the last bytes of a name,
/// because small slots cause fewer CPU cache misses.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    slots: HashTable<NameSlot>,
    prefixes: Vec<NamePrefix>,
}

#[derive(Clone, Copy, Debug)]
struct NameSlot {
    /// The last bytes of the name.
    suffix: u64,
    /// The index of the first bytes of the name in `prefixes`.
    prefix: u32,
    target: LookupTarget,
}

const _: () = assert!(size_of::<NameSlot>() == 16);

/// The first bytes of a name, before its suffix. The slots of siblings share equal prefixes of
/// names with equal lengths.
#[derive(Clone, Copy, Debug)]
struct NamePrefix {
    parent: NodeId,
    /// One of the names with this prefix.
    name: NameSpan,
}

/// The result of a lookup: the number of a rule, or of a node if a lookup needs more of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookupTarget(u32);

impl LookupTarget {
    /// The bit that is set if the other bits are the number of a rule.
    pub(super) const RULE_FLAG: u32 = 1 << 31;

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
        let mut prefix_indexes = HashMap::new();
        for (parent, name, target) in entries {
            let prefix = NamePrefix { parent, name };
            let index = *prefix_indexes
                .entry((parent, name.len, prefix.text(names)))
                .or_insert_with(|| {
                    prefixes.push(prefix);
                    prefixes.len() - 1
                });
            let suffix = CompositeKey::from_joined(name.text(names)).suffix();
            // The conversion cannot fail: there are at most as many prefixes as nodes.
            let prefix = u32::try_from(index).unwrap_or(u32::MAX);
            let slot = NameSlot { suffix, prefix, target };
            let hash_of = |slot: &NameSlot| slot.hash(&prefixes, names);
            slots.insert_unique(hash_of(&slot), slot, hash_of);
        }
        Self { slots, prefixes }
    }

    /// Returns the lookup target of the child of `parent` with this name and hash of the name.
    #[inline]
    pub(super) fn find(
        &self,
        names: &str,
        parent: NodeId,
        hash: u64,
        name: CompositeKey<'_>,
    ) -> Option<LookupTarget> {
        let (suffix, len) = (name.suffix(), name.len());
        let is_match = |slot: &NameSlot| {
            let prefix = &self.prefixes[slot.prefix as usize];
            slot.suffix == suffix
                && prefix.parent == parent
                && prefix.name.len as usize == len
                && name.starts_with(prefix.text(names))
        };
        self.slots.find(hash, is_match).map(|slot| slot.target)
    }
}

impl NamePrefix {
    fn text(self, names: &str) -> &[u8] {
        let name = self.name.text(names).as_bytes();
        &name[..name.len().saturating_sub(SUFFIX_LEN)]
    }
}

impl NameSlot {
    fn hash(&self, prefixes: &[NamePrefix], names: &str) -> u64 {
        let prefix = prefixes[self.prefix as usize];
        let padding = SUFFIX_LEN.saturating_sub(prefix.name.len as usize);
        let mut hasher = key_hasher(prefix.parent, prefix.text(names));
        hasher.write(&self.suffix.to_be_bytes()[padding..]);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that differ in one property: level, length, prefix, suffix or zero bytes.
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
        for (index, &(level, name, target)) in all.iter().enumerate() {
            let hash = super::super::name_hash(level, name.text(&names));
            let table = NameTable::new(&names, all.iter().copied());
            let text = name.text(&names);
            let found = table.find(&names, level, hash, CompositeKey::from_joined(text));
            assert_eq!(found, Some(target), "{text:?}");
            let key_and_value = text.split_once('_');
            let found = key_and_value
                .map(|(key, value)| table.find(&names, level, hash, CompositeKey::new(key, value)));
            assert!(found.is_none_or(|found| found == Some(target)), "{text:?}");
            // Look up each other name with the hash of the only name in the table.
            let single_name_table = NameTable::new(&names, [all[index]].into_iter());
            for &(level, other, _) in all.iter().filter(|other| other.2 != target) {
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
