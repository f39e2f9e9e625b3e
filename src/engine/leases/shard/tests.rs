//! Limits of a shard by count and by bytes, and eviction.

use super::{Held, Ledgers, MOST_BYTES, Place, WAYS};
use crate::backend::{Charge, Home};
use crate::engine::leases::Leased;
use crate::kernel::decision::{Cost, Standing};
use crate::kernel::key::{CounterKey, Counting};
use crate::kernel::lease::sizer::Size;
use crate::kernel::lease::{Number, Overshoot, Terms};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::units::{Hits, Nanos};

/// The length of a key without its one value, in bytes.
const BESIDE: usize = 10 + 4 + 1 + 2 + 1 + 2;

/// A lease with a key of `bytes` bytes and the last check at `now`.
fn held(bytes: usize, now: u64) -> Held {
    let value = "v".repeat(bytes - BESIDE);
    let key = CounterKey::injective("d", [("k", &*value)].into_iter(), Counting::Gcra);
    assert_eq!(key.as_bytes().len(), bytes);
    let charge = Charge {
        key,
        home: Home::default(),
        strategy: Strategy::Gcra(Gcra::new(100, Nanos::SECOND, 100).unwrap()),
        cost: Cost::Charge(Hits(1)),
        standing: Standing::default(),
        per_second: false,
    };
    let (overshoot, size) = (Overshoot::AtMost(Hits(10)), Size::Learned);
    let terms = Terms { overshoot, term: Nanos::SECOND, size };
    Held::new(Leased { charge: &charge, terms }, Nanos(now), Number(1))
}

const fn place(number: u64) -> Place {
    [0, number]
}

/// The numbers below `upto` that have a lease.
fn there(ledgers: &Ledgers, upto: u64) -> Vec<u64> {
    (0..upto).filter(|number| ledgers.get(&place(*number)).is_some()).collect()
}

#[test]
fn full_shards_evict_the_least_recently_used_key() {
    let mut ledgers = Ledgers::default();
    for number in 0..WAYS as u64 {
        assert!(ledgers.insert(place(number), held(50, 1_000 - number)).is_empty());
    }
    let gone = ledgers.insert(place(1_000), held(50, 2_000));
    assert_eq!((gone.len(), ledgers.len()), (1, WAYS));
    assert!(ledgers.get(&place(WAYS as u64 - 1)).is_none() && ledgers.get(&place(1_000)).is_some());
}

#[test]
fn the_byte_limit_evicts_as_many_keys_as_needed() {
    let (mut ledgers, part) = (Ledgers::default(), MOST_BYTES / 4);
    for number in 0..4 {
        assert!(ledgers.insert(place(number), held(part, number)).is_empty());
    }
    assert_eq!(ledgers.insert(place(4), held(part, 4)).len(), 1);
    assert_eq!(ledgers.insert(place(5), held(part + 1, 5)).len(), 2);
    assert_eq!(there(&ledgers, 6), [3, 4, 5]);
    assert_eq!(ledgers.insert(place(6), held(part - 1, 6)).len(), 0);
}

#[test]
fn removed_keys_free_their_bytes() {
    let mut ledgers = Ledgers::default();
    for number in 0..3 {
        ledgers.insert(place(number), held(MOST_BYTES / 3, number));
    }
    assert!(ledgers.remove(&place(1)).is_some());
    assert!(ledgers.insert(place(3), held(MOST_BYTES / 3, 3)).is_empty());
    ledgers.retain(|_| false);
    assert!(ledgers.insert(place(4), held(MOST_BYTES / 2, 4)).is_empty());
    assert!(ledgers.insert(place(5), held(MOST_BYTES / 2, 5)).is_empty());
    assert_eq!(there(&ledgers, 6), [4, 5]);
}

#[test]
fn an_insertion_that_cannot_fit_evicts_nothing() {
    let mut ledgers = Ledgers::default();
    let mut awaits = held(MOST_BYTES / 2, 0);
    assert!(awaits.borrow(Nanos(0), Number(2), Hits(1)).is_some());
    ledgers.insert(place(0), awaits);
    ledgers.insert(place(1), held(50, 1));
    for bytes in [MOST_BYTES / 2 + 1, MOST_BYTES + 1] {
        assert!(ledgers.insert(place(2), held(bytes, 2)).is_empty());
        assert_eq!(there(&ledgers, 3), [0, 1], "one whose answer is awaited stays");
    }
    assert_eq!(ledgers.insert(place(2), held(MOST_BYTES / 2, 2)).len(), 1);
    assert_eq!(there(&ledgers, 3), [0, 2]);
}
