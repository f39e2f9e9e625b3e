//! The counters that are known to be over their limit, so that nobody has to be asked.
//!
//! Guarantees: at most so many bytes; a key is known until its window ends, which its own text
//! names; who forgets errs on the side of asking.
//! Leaves out: taking part when the store was not asked; a changed limit, which the reference does
//! not heed here either.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use crate::backend::inside::Remembered;
use crate::kernel::units::Nanos;

/// Shards, so that two cores seldom meet.
const SHARDS: usize = 16;

/// What a key costs beside its own bytes, which are held twice: two boxes and places in two
/// tables that may be half empty.
const OVERHEAD: usize = 160;

/// Keys that are over.
#[derive(Debug)]
pub(super) struct Denied {
    shards: [Mutex<Shard>; SHARDS],
    random: RandomState,
    /// Bytes per shard.
    most: usize,
}

#[derive(Debug, Default)]
struct Shard {
    ends: HashMap<Box<[u8]>, Nanos>,
    /// The oldest first. A key that was forgotten may still stand here.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Its keys apart, which are counted by the table.
    counted: Remembered,
}

impl Denied {
    /// For at most `bytes` in all; 0 remembers nothing.
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), random: RandomState::new(), most: bytes / SHARDS }
    }

    /// Whether `key` is known to be over at `now`.
    pub(super) fn holds(&self, key: &[u8], now: Nanos) -> bool {
        if self.most == 0 {
            return false;
        }
        let mut shard = self.shard(key).lock();
        let end = shard.ends.get(key).copied();
        let is_known = end.is_some_and(|end| now < end);
        let counted = &mut shard.counted;
        if is_known {
            counted.hits += 1;
        } else {
            counted.misses += 1;
            counted.expired += u64::from(end.is_some());
        }
        is_known
    }

    /// Remembers `key` until `end`, at the cost of the oldest ones where there is no room.
    pub(super) fn remember(&self, key: &[u8], end: Nanos) {
        if self.most < cost(key) {
            return;
        }
        let mut shard = self.shard(key).lock();
        if shard.ends.insert(key.into(), end).is_none() {
            shard.order.push_back(key.into());
            shard.bytes += cost(key);
        } else {
            shard.counted.overwritten += 1;
        }
        while self.most < shard.bytes {
            let Some(oldest) = shard.order.pop_front() else { break };
            shard.ends.remove(&oldest);
            shard.counted.evicted += 1;
            shard.bytes = shard.bytes.saturating_sub(cost(&oldest));
        }
    }

    /// Forgets `key`: hits were given back to it.
    pub(super) fn forget(&self, key: &[u8]) {
        if self.most != 0 {
            // Its place in the order stays and is paid for until it is the oldest.
            if let Some(end) = self.shard(key).lock().ends.get_mut(key) {
                *end = Nanos(0);
            }
        }
    }

    /// What it came to so far.
    pub(super) fn seen(&self) -> Remembered {
        let of = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            let keys = u64::try_from(shard.ends.len()).unwrap_or(u64::MAX);
            Remembered { keys, ..shard.counted }
        };
        self.shards.iter().map(of).fold(Remembered::default(), std::ops::Add::add)
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        let hash = usize::try_from(self.random.hash_one(key) % SHARDS as u64).unwrap_or(0);
        &self.shards[hash]
    }
}

const fn cost(key: &[u8]) -> usize {
    key.len().saturating_mul(2).saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::{Denied, Remembered, SHARDS, cost};
    use crate::kernel::units::Nanos;

    const END: Nanos = Nanos(10);

    #[test]
    fn a_key_is_known_until_its_window_ends_or_hits_are_given_back() {
        let denied = Denied::new(1_000_000);
        assert!(!denied.holds(b"k", Nanos(1)));
        denied.remember(b"k", END);
        assert!(denied.holds(b"k", Nanos(9)) && !denied.holds(b"k", END));
        denied.forget(b"k");
        assert!(!denied.holds(b"k", Nanos(1)));
        denied.remember(b"k", END);
        assert!(denied.holds(b"k", Nanos(1)), "and is over again");
    }

    #[test]
    fn it_never_grows_beyond_its_bytes_and_gives_up_the_oldest() {
        let room = 4;
        let denied = Denied::new(SHARDS * room * cost(b"key 0000"));
        let keys: Vec<_> = (0..1_000).map(|n| format!("key {n:04}").into_bytes()).collect();
        for key in &keys {
            denied.remember(key, END);
            assert!(denied.holds(key, Nanos(0)), "the newest is known");
        }
        let known = keys.iter().filter(|key| denied.holds(key, Nanos(0))).count();
        assert!(0 < known && known <= SHARDS * room, "{known}");
        let queued: usize = denied.shards.iter().map(|shard| shard.lock().order.len()).sum();
        assert_eq!(queued, known, "nothing lies about that is not known");
        assert!(!denied.holds(&keys[0], Nanos(0)));
    }

    #[test]
    fn lookups_are_hits_or_misses_and_what_gives_way_is_counted() {
        let denied = Denied::new(1_000_000);
        denied.holds(b"k", Nanos(1));
        denied.remember(b"k", END);
        denied.remember(b"k", END);
        denied.holds(b"k", Nanos(1));
        denied.holds(b"k", Nanos(1));
        denied.holds(b"k", END);
        let wanted =
            Remembered { keys: 1, hits: 2, misses: 2, expired: 1, evicted: 0, overwritten: 1 };
        assert_eq!(denied.seen(), wanted);
        let small = Denied::new(SHARDS * cost(b"key 0000"));
        for n in 0..100 {
            small.remember(format!("key {n:04}").as_bytes(), END);
        }
        let seen = small.seen();
        assert!(0 < seen.evicted && seen.keys + seen.evicted == 100, "{seen:?}");
    }

    #[test]
    fn of_no_bytes_nothing_is_remembered_nor_is_what_alone_would_be_too_much() {
        let nothing = Denied::new(0);
        nothing.remember(b"k", END);
        assert!(!nothing.holds(b"k", Nanos(0)));
        let little = Denied::new(SHARDS * cost(b"k"));
        little.remember(&[b'k'; 100], END);
        assert!(!little.holds(&[b'k'; 100], Nanos(0)));
        little.remember(b"k", END);
        assert!(little.holds(b"k", Nanos(0)));
    }
}
