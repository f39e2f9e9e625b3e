//! The deny cache of counters under envoyproxy/ratelimit's keys, which saves store calls.
//!
//! Guarantees:
//! - The cache uses at most the given bytes and 4 KiB more.
//! - An entry lasts until its window ends, it expires, or this process refunds hits.
//! - A result that was requested before a refund is never cached after it.
//! - A key over a limit is also over every smaller limit.
//! - A missing entry only costs a store call.
//!
//! Not covered:
//! - Charges that the store did not decide: they add no entry.
//! - A changed limit, which envoyproxy/ratelimit's cache ignores as well.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use crate::backend::inside::Remembered;
use crate::kernel::units::Nanos;

/// The number of shards, so that two cores rarely contend.
const SHARDS: usize = 16;

/// The number of refund counts in each shard. Keys share the
/// counts: with so many, two keys in use rarely share one.
const COUNTS: usize = 32;

/// The cost of a key in addition to its own bytes, which are stored twice.
/// It covers two boxes and the slots in two tables that may be half empty.
const OVERHEAD: usize = 160;

#[derive(Debug)]
pub(super) struct Denied {
    shards: [Mutex<Shard>; SHARDS],
    random: RandomState,
    most: usize,
}

/// A denial of a key: the limit, and the instant until which the key is over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) limit: u32,
    pub(super) end: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The instant at which the entry expires.
    end: Nanos,
    /// The largest limit that the key is over.
    limit: u32,
    /// The instant of the last insert or hit, in seconds since 1970. 32 bits fit into the padding.
    found_at: u32,
}

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<Box<[u8]>, Known>,
    /// Keys by insertion, the oldest first. Forgotten keys stay until they are the oldest.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// The number of refunds to the keys of each count.
    given_back: Box<[u64; COUNTS]>,
    /// The statistics without the number of keys.
    counted: Remembered,
}

/// The result of a lookup before the store call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) is_over: bool,
    /// The refund count of the key at the lookup.
    given_back: u64,
}

impl Denied {
    /// Creates a cache of at most `bytes` in all; 0 disables it.
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), random: RandomState::new(), most: bytes / SHARDS }
    }

    pub(super) fn look(&self, key: &[u8], limit: u32, now: Nanos) -> Look {
        if self.most == 0 {
            return Look::default();
        }
        let (shard, count) = self.place(key);
        let mut shard = shard.lock();
        Look { is_over: shard.holds(key, limit, now), given_back: shard.given_back[count] }
    }

    /// Caches the denial `over` of `key` and evicts the oldest keys if
    /// necessary. Does nothing if hits were refunded since the lookup `before`.
    pub(super) fn remember(&self, key: &[u8], over: Over, now: Nanos, before: Look) {
        let Over { limit, end } = over;
        if self.most < cost(key) {
            return;
        }
        let (shard, count) = self.place(key);
        let mut shard = shard.lock();
        if shard.given_back[count] != before.given_back {
            return;
        }
        if let Some(known) = shard.known.get_mut(key) {
            if known.limit <= limit || known.end <= now {
                (known.limit, known.end) = (limit, end);
            }
            let later = known.again(now);
            shard.counted.found_at += later;
            shard.counted.overwritten += 1;
        } else {
            let found_at = seconds(now);
            shard.known.insert(key.into(), Known { end, limit, found_at });
            shard.order.push_back(key.into());
            shard.bytes += cost(key);
            shard.counted.found_at += u64::from(found_at);
        }
        while self.most < shard.bytes {
            let Some(oldest) = shard.order.pop_front() else { break };
            let gone = shard.known.remove(&oldest).map_or(0, |known| known.found_at);
            shard.counted.found_at -= u64::from(gone);
            shard.counted.evicted += 1;
            shard.bytes = shard.bytes.saturating_sub(cost(&oldest));
        }
    }

    /// Drops the denial of `key` after a refund, and invalidates the lookups of calls in flight.
    pub(super) fn forget(&self, key: &[u8]) {
        if self.most == 0 {
            return;
        }
        let (shard, count) = self.place(key);
        let mut shard = shard.lock();
        shard.given_back[count] += 1;
        // The key stays in `order`, and counts toward the size, until it is the oldest.
        if let Some(known) = shard.known.get_mut(key) {
            known.end = Nanos(0);
        }
    }

    pub(super) fn seen(&self) -> Remembered {
        let of = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            let keys = u64::try_from(shard.known.len()).unwrap_or(u64::MAX);
            Remembered { keys, ..shard.counted }
        };
        self.shards.iter().map(of).fold(Remembered::default(), std::ops::Add::add)
    }

    /// Returns the shard of `key` and the index of its refund count.
    fn place(&self, key: &[u8]) -> (&Mutex<Shard>, usize) {
        let hash = self.random.hash_one(key) % (SHARDS * COUNTS) as u64;
        let place = usize::try_from(hash).unwrap_or(0);
        (&self.shards[place % SHARDS], place / SHARDS)
    }
}

impl Shard {
    fn holds(&mut self, key: &[u8], limit: u32, now: Nanos) -> bool {
        let found = self.known.get_mut(key);
        let was_over = found.as_ref().is_some_and(|found| found.end <= now);
        let is_over = |found: &&mut Known| now < found.end && limit <= found.limit;
        if let Some(found) = found.filter(is_over) {
            self.counted.hits += 1;
            self.counted.found_at += found.again(now);
            return true;
        }
        self.counted.misses += 1;
        self.counted.expired += u64::from(was_over);
        false
    }
}

impl Known {
    /// Sets the last access to `now` and returns the seconds
    /// since the one before. Returns 0 if the clock was set back.
    fn again(&mut self, now: Nanos) -> u64 {
        let later = seconds(now).saturating_sub(self.found_at);
        self.found_at += later;
        later.into()
    }
}

fn seconds(now: Nanos) -> u32 {
    u32::try_from(now.0 / Nanos::from_secs(1).0).unwrap_or(u32::MAX)
}

const fn cost(key: &[u8]) -> usize {
    key.len().saturating_mul(2).saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::{Denied, Look, Over, Remembered, SHARDS, cost};
    use crate::kernel::units::Nanos;

    const END: Nanos = Nanos(10);

    impl Denied {
        fn holds(&self, key: &[u8], now: Nanos) -> bool {
            self.holds_under(0, key, now)
        }

        fn holds_under(&self, limit: u32, key: &[u8], now: Nanos) -> bool {
            self.look(key, limit, now).is_over
        }

        /// Caches a denial without a refund in between.
        fn put(&self, key: &[u8], end: Nanos, now: Nanos) {
            self.put_over(Over { limit: 0, end }, key, now);
        }

        fn put_over(&self, over: Over, key: &[u8], now: Nanos) {
            let (shard, count) = self.place(key);
            let given_back = shard.lock().given_back[count];
            self.remember(key, over, now, Look { is_over: false, given_back });
        }
    }

    #[test]
    fn keys_are_cached_until_window_end_or_refund() {
        let denied = Denied::new(1_000_000);
        assert!(!denied.holds(b"k", Nanos(1)));
        denied.put(b"k", END, Nanos(0));
        assert!(denied.holds(b"k", Nanos(9)) && !denied.holds(b"k", END));
        denied.forget(b"k");
        assert!(!denied.holds(b"k", Nanos(1)));
        denied.put(b"k", END, Nanos(0));
        assert!(denied.holds(b"k", Nanos(1)), "and is over again");
    }

    #[test]
    fn denials_cover_smaller_limits_too() {
        let denied = Denied::new(1_000_000);
        let over = |limit, end| denied.put_over(Over { limit, end }, b"k", Nanos(0));
        let holds = |limit, at| denied.holds_under(limit, b"k", Nanos(at));
        over(10, END);
        assert!(holds(9, 1) && holds(10, 1) && !holds(11, 1));
        over(1_000, END);
        over(10, Nanos(20));
        assert!(holds(1_000, 1) && !holds(1_001, 1), "the smaller one takes nothing from it");
        assert!(!holds(10, 10), "nor adds to how long it is so");
        denied.put_over(Over { limit: 10, end: Nanos(20) }, b"k", END);
        assert!(holds(10, 11) && !holds(11, 11), "what is over with is not known");
    }

    #[test]
    fn a_refund_discards_denials_of_earlier_lookups() {
        let denied = Denied::new(1_000_000);
        let over = Over { limit: 0, end: END };
        let before = denied.look(b"k", 0, Nanos(0));
        denied.forget(b"k");
        let after = denied.look(b"k", 0, Nanos(0));
        denied.remember(b"k", over, Nanos(0), before);
        assert!(!denied.holds(b"k", Nanos(1)));
        denied.remember(b"k", over, Nanos(0), after);
        assert!(denied.holds(b"k", Nanos(1)), "asked for since");
    }

    #[test]
    fn a_full_cache_evicts_the_oldest_key() {
        let room = 4;
        let denied = Denied::new(SHARDS * room * cost(b"key 0000"));
        let keys: Vec<_> = (0..1_000).map(|n| format!("key {n:04}").into_bytes()).collect();
        for key in &keys {
            denied.put(key, END, Nanos(0));
            assert!(denied.holds(key, Nanos(0)), "the newest is known");
        }
        let known = keys.iter().filter(|key| denied.holds(key, Nanos(0))).count();
        assert!(0 < known && known <= SHARDS * room, "{known}");
        let queued: usize = denied.shards.iter().map(|shard| shard.lock().order.len()).sum();
        assert_eq!(queued, known, "nothing lies about that is not known");
        assert!(!denied.holds(&keys[0], Nanos(0)));
    }

    #[test]
    fn cache_statistics_count_hits_misses_and_evictions() {
        let denied = Denied::new(1_000_000);
        denied.holds(b"k", Nanos(1));
        denied.put(b"k", END, Nanos(0));
        denied.put(b"k", END, Nanos(0));
        denied.holds(b"k", Nanos(1));
        denied.holds(b"k", Nanos(1));
        denied.holds(b"k", END);
        let wanted = Remembered {
            keys: 1,
            hits: 2,
            misses: 2,
            expired: 1,
            overwritten: 1,
            ..Remembered::default()
        };
        assert_eq!(denied.seen(), wanted);
        let small = Denied::new(SHARDS * cost(b"key 0000"));
        for n in 0..100 {
            small.put(format!("key {n:04}").as_bytes(), END, Nanos(0));
        }
        let seen = small.seen();
        assert!(0 < seen.evicted && seen.keys + seen.evicted == 100, "{seen:?}");
    }

    /// freecache, the cache of envoyproxy/ratelimit, reports the same
    /// number: the mean of each key's last access in seconds since 1970.
    #[test]
    fn average_access_time_covers_only_cached_keys() {
        let (denied, at) = (Denied::new(1_000_000), Nanos::from_secs);
        assert_eq!(denied.seen().average_found_at(), 0, "none");
        denied.put(b"a", at(900), at(100));
        denied.put(b"b", at(900), at(200));
        assert_eq!(denied.seen().average_found_at(), 150);
        assert!(denied.holds(b"a", at(300)));
        assert_eq!(denied.seen().average_found_at(), 250);
        assert!(!denied.holds(b"c", at(800)) && !denied.holds(b"a", at(900)));
        assert_eq!(denied.seen().average_found_at(), 250, "misses are no access");
        denied.put(b"b", at(950), at(400));
        assert_eq!(denied.seen().average_found_at(), 350);
        assert!(denied.holds(b"b", at(150)), "the clock was set back");
        assert_eq!(denied.seen().average_found_at(), 350);
        let small = Denied::new(SHARDS * cost(b"key 0000"));
        for n in 0..100_u64 {
            small.put(format!("key {n:04}").as_bytes(), at(900), at(n + 1));
        }
        let average = small.seen().average_found_at();
        assert!((1..=100).contains(&average), "what gave way does not count: {average}");
    }

    #[test]
    fn oversized_keys_are_not_cached() {
        let nothing = Denied::new(0);
        nothing.put(b"k", END, Nanos(0));
        assert!(!nothing.holds(b"k", Nanos(0)));
        let little = Denied::new(SHARDS * cost(b"k"));
        little.put(&[b'k'; 100], END, Nanos(0));
        assert!(!little.holds(&[b'k'; 100], Nanos(0)));
        little.put(b"k", END, Nanos(0));
        assert!(little.holds(b"k", Nanos(0)));
    }
}
