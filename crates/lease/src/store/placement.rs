//! The choice of the Redis Cluster slot of a counter.
//!
//! Guarantees:
//! - All replicas choose the same slot.
//!
//! Not covered:
//! - Slots of counters without a group: the hash of the key.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// The choice of the Redis Cluster slot, and thereby of the node, for a counter.
///
/// It depends only on the counter's key and on the settings of its domain, so all replicas agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The counter's own key selects the slot, so counters spread over all nodes.
    #[default]
    ByKey,
    /// All counters with this number share a slot, so they are on one node.
    Group(u64),
}

impl Placement {
    /// Puts all counters of `domain` with the descriptor value `value` into one slot.
    #[must_use]
    pub fn by_value(domain: &str, value: &str) -> Self {
        Self::Group(Self::group_number(domain, value))
    }

    /// Puts all counters of `domain` into one slot.
    #[must_use]
    pub fn by_domain(domain: &str) -> Self {
        Self::Group(Self::group_number(domain, ""))
    }

    fn group_number(domain: &str, value: &str) -> u64 {
        // The hash has no secret key, because every replica must compute the same number. A hash
        // collision is harmless: it only puts two groups into one slot.
        let mut hasher = SipHasher24::new();
        hasher.write(domain.as_bytes());
        // A byte that never occurs in UTF-8 separates the two strings.
        hasher.write(&[0xff]);
        hasher.write(value.as_bytes());
        hasher.finish()
    }
}
