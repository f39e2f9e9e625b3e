//! The limits of a lease shard by count and by bytes of keys, and eviction.

use super::{BYTES_PER_KEY, KeyLease, LeaseKeyHash, LeaseShard};
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{LeaseTerms, MessageNumber, Overshoot};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::units::{Hits, Nanos};
use crate::leases::LeasedCounter;
use crate::store::{Charge, Placement};

const LEASES: usize = 256;

/// The length in bytes of a key whose one value is empty.
const KEY_OVERHEAD: usize = 10 + 4 + 1 + 2 + 1 + 2;

/// A lease with a key of `bytes` bytes and the last check at `now`.
fn new_lease(bytes: usize, now: u64) -> KeyLease {
    let value = "v".repeat(bytes - KEY_OVERHEAD);
    let key = CounterKey::unique("d", [("k", &*value)].into_iter(), KeyStrategy::Gcra);
    assert_eq!(key.as_bytes().len(), bytes);
    let charge = Charge {
        key,
        placement: Placement::default(),
        strategy: Strategy::Gcra(Gcra::new(100, Nanos::SECOND, 100).unwrap()),
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    };
    let (overshoot, size) = (Overshoot::AtMost(Hits(10)), LeaseSizing::Learned);
    let terms = LeaseTerms { overshoot, duration: Nanos::SECOND, sizing: size };
    KeyLease::new(LeasedCounter { charge: &charge, terms }, Nanos(now), MessageNumber(1), |_, _| {})
}

const fn key_hash(number: u64) -> LeaseKeyHash {
    [0, number]
}

/// The numbers below `upto` that have a lease.
fn leased_numbers(ledgers: &LeaseShard, upto: u64) -> Vec<u64> {
    (0..upto).filter(|number| ledgers.get(&key_hash(*number)).is_some()).collect()
}

#[test]
fn full_shards_evict_the_least_recently_used_key() {
    let mut ledgers = LeaseShard::new(LEASES);
    for number in 0..LEASES as u64 {
        assert!(ledgers.insert(key_hash(number), new_lease(50, 1_000 - number)).is_empty());
    }
    let gone = ledgers.insert(key_hash(1_000), new_lease(50, 2_000));
    assert_eq!((gone.len(), ledgers.len()), (1, LEASES));
    assert!(
        ledgers.get(&key_hash(LEASES as u64 - 1)).is_none()
            && ledgers.get(&key_hash(1_000)).is_some()
    );
}

#[test]
fn the_byte_limit_evicts_as_many_keys_as_needed() {
    let (mut ledgers, part) = (LeaseShard::new(LEASES), (LEASES * BYTES_PER_KEY) / 4);
    for number in 0..4 {
        assert!(ledgers.insert(key_hash(number), new_lease(part, number)).is_empty());
    }
    assert_eq!(ledgers.insert(key_hash(4), new_lease(part, 4)).len(), 1);
    assert_eq!(ledgers.insert(key_hash(5), new_lease(part + 1, 5)).len(), 2);
    assert_eq!(leased_numbers(&ledgers, 6), [3, 4, 5]);
    assert_eq!(ledgers.insert(key_hash(6), new_lease(part - 1, 6)).len(), 0);
}

#[test]
fn removed_keys_free_their_bytes() {
    let mut ledgers = LeaseShard::new(LEASES);
    for number in 0..3 {
        ledgers.insert(key_hash(number), new_lease((LEASES * BYTES_PER_KEY) / 3, number));
    }
    assert!(ledgers.remove(&key_hash(1)).is_some());
    assert!(ledgers.insert(key_hash(3), new_lease((LEASES * BYTES_PER_KEY) / 3, 3)).is_empty());
    ledgers.retain(|_| false);
    assert!(ledgers.insert(key_hash(4), new_lease((LEASES * BYTES_PER_KEY) / 2, 4)).is_empty());
    assert!(ledgers.insert(key_hash(5), new_lease((LEASES * BYTES_PER_KEY) / 2, 5)).is_empty());
    assert_eq!(leased_numbers(&ledgers, 6), [4, 5]);
}

#[test]
fn a_key_that_cannot_fit_evicts_nothing() {
    let mut ledgers = LeaseShard::new(LEASES);
    let mut awaits = new_lease((LEASES * BYTES_PER_KEY) / 2, 0);
    assert!(awaits.borrow(Nanos(0), MessageNumber(2), Hits(1)).is_some());
    ledgers.insert(key_hash(0), awaits);
    ledgers.insert(key_hash(1), new_lease(50, 1));
    for bytes in [(LEASES * BYTES_PER_KEY) / 2 + 1, (LEASES * BYTES_PER_KEY) + 1] {
        assert!(ledgers.insert(key_hash(2), new_lease(bytes, 2)).is_empty());
        assert_eq!(leased_numbers(&ledgers, 3), [0, 1], "one whose answer is awaited stays");
    }
    assert_eq!(ledgers.insert(key_hash(2), new_lease((LEASES * BYTES_PER_KEY) / 2, 2)).len(), 1);
    assert_eq!(leased_numbers(&ledgers, 3), [0, 2]);
}
