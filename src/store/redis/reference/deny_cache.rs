//! The deny cache of counters under envoyproxy/ratelimit's keys. A cached denial needs no store
//! call.
//!
//! Guarantees:
//! - The cache uses at most 4 KiB more than the configured bytes.
//! - An entry lasts until its window ends, it expires, or this process refunds hits.
//! - If this process refunds hits during a store call, a denial by that call is not cached.
//! - A cached denial also denies the key under every smaller limit.
//! - Evicting a key never changes a decision: its next check needs a store call.
//!
//! Not covered:
//! - Charges without a reply of the store: they add no entry.
//! - A limit that a reload changes: cached denials stay, as in envoyproxy/ratelimit.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use crate::kernel::units::Nanos;
use crate::store::stats::DenyCacheStats;

/// The number of shards. With this many, two cores rarely wait for the same lock.
const SHARDS: usize = 16;

/// The number of refund counts in each shard. A refund count is shared by the keys with the same
/// hash; with this many, two keys in use rarely share one.
const REFUND_COUNTS: usize = 32;

/// The memory of an entry in addition to its key, in bytes (the key is stored twice). It covers two
/// heap allocations, and slots in a hash map and a queue that may be half empty.
const KEY_OVERHEAD: usize = 160;

#[derive(Debug)]
pub(super) struct KeyDenyCache {
    shards: [Mutex<DenyCacheShard>; SHARDS],
    random: RandomState,
    max_shard_bytes: usize,
}

/// A denial of a key: the limit, and the instant until which the key is over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyDenial {
    pub(super) limit: u32,
    pub(super) end: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct CachedDenial {
    /// The instant at which the denial expires.
    end: Nanos,
    /// The largest limit that denied the key.
    limit: u32,
    /// The instant of the last insert or hit, in seconds since 1970. 32 bits add no memory, because
    /// they fit into the padding.
    last_access_secs: u32,
}

#[derive(Debug, Default)]
struct DenyCacheShard {
    entries: HashMap<Box<[u8]>, CachedDenial>,
    /// The keys in the order of insertion, the oldest first. An invalidated key stays until it is
    /// the oldest.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// For each group of keys, the number of refunds to these keys.
    refund_counts: Box<[u64; REFUND_COUNTS]>,
    /// The statistics; its number of keys is not used.
    stats: DenyCacheStats,
}

/// The result of a lookup before the store call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DenyCacheLookup {
    pub(super) is_over: bool,
    /// The refund count of the key at the lookup.
    refund_count: u64,
}

impl KeyDenyCache {
    /// Creates a cache of at most `bytes` bytes in all; 0 disables the cache.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            shards: Default::default(),
            random: RandomState::new(),
            max_shard_bytes: bytes / SHARDS,
        }
    }

    pub(super) fn look_up(&self, key: &[u8], limit: u32, now: Nanos) -> DenyCacheLookup {
        if self.max_shard_bytes == 0 {
            return DenyCacheLookup::default();
        }
        let (shard, count) = self.locate(key);
        let mut shard = shard.lock();
        DenyCacheLookup {
            is_over: shard.denies(key, limit, now),
            refund_count: shard.refund_counts[count],
        }
    }

    /// Caches a denial of `key`, and evicts the oldest keys if necessary. Does nothing if hits of
    /// `key` were refunded since the given lookup.
    pub(super) fn insert(
        &self,
        key: &[u8],
        denial: KeyDenial,
        now: Nanos,
        before: DenyCacheLookup,
    ) {
        let KeyDenial { limit, end } = denial;
        if self.max_shard_bytes < key_cost(key) {
            return;
        }
        let (shard, count) = self.locate(key);
        let mut shard = shard.lock();
        if shard.refund_counts[count] != before.refund_count {
            return;
        }
        if let Some(known) = shard.entries.get_mut(key) {
            if known.limit <= limit || known.end <= now {
                (known.limit, known.end) = (limit, end);
            }
            let later = known.touch(now);
            shard.stats.last_access_sum += later;
            shard.stats.overwritten += 1;
        } else {
            let found_at = whole_secs(now);
            shard
                .entries
                .insert(key.into(), CachedDenial { end, limit, last_access_secs: found_at });
            shard.order.push_back(key.into());
            shard.bytes += key_cost(key);
            shard.stats.last_access_sum += u64::from(found_at);
        }
        while self.max_shard_bytes < shard.bytes {
            let Some(oldest) = shard.order.pop_front() else { break };
            let gone = shard.entries.remove(&oldest).map_or(0, |known| known.last_access_secs);
            shard.stats.last_access_sum -= u64::from(gone);
            shard.stats.evicted += 1;
            shard.bytes = shard.bytes.saturating_sub(key_cost(&oldest));
        }
    }

    /// Drops the denial of `key` after a refund, and invalidates the lookups of calls in flight.
    pub(super) fn invalidate(&self, key: &[u8]) {
        if self.max_shard_bytes == 0 {
            return;
        }
        let (shard, count) = self.locate(key);
        let mut shard = shard.lock();
        shard.refund_counts[count] += 1;
        // The key stays in `order` until it is the oldest, so it still counts toward the size of
        // the cache.
        if let Some(known) = shard.entries.get_mut(key) {
            known.end = Nanos(0);
        }
    }

    pub(super) fn stats(&self) -> DenyCacheStats {
        let shard_stats = |shard: &Mutex<DenyCacheShard>| {
            let shard = shard.lock();
            let keys = u64::try_from(shard.entries.len()).unwrap_or(u64::MAX);
            DenyCacheStats { keys, ..shard.stats }
        };
        self.shards.iter().map(shard_stats).fold(DenyCacheStats::default(), std::ops::Add::add)
    }

    /// Returns the shard of `key`, and the index of its refund count in that shard.
    fn locate(&self, key: &[u8]) -> (&Mutex<DenyCacheShard>, usize) {
        let hash = self.random.hash_one(key) % (SHARDS * REFUND_COUNTS) as u64;
        let index = usize::try_from(hash).unwrap_or(0);
        (&self.shards[index % SHARDS], index / SHARDS)
    }
}

impl DenyCacheShard {
    fn denies(&mut self, key: &[u8], limit: u32, now: Nanos) -> bool {
        let found = self.entries.get_mut(key);
        let was_over = found.as_ref().is_some_and(|found| found.end <= now);
        let is_over = |found: &&mut CachedDenial| now < found.end && limit <= found.limit;
        if let Some(found) = found.filter(is_over) {
            self.stats.hits += 1;
            self.stats.last_access_sum += found.touch(now);
            return true;
        }
        self.stats.misses += 1;
        self.stats.expired += u64::from(was_over);
        false
    }
}

impl CachedDenial {
    /// Sets the last access to `now`, and returns the seconds since the previous access. Returns 0
    /// if the clock was set back.
    fn touch(&mut self, now: Nanos) -> u64 {
        let later = whole_secs(now).saturating_sub(self.last_access_secs);
        self.last_access_secs += later;
        later.into()
    }
}

fn whole_secs(now: Nanos) -> u32 {
    u32::try_from(now.0 / Nanos::from_secs(1).0).unwrap_or(u32::MAX)
}

const fn key_cost(key: &[u8]) -> usize {
    key.len().saturating_mul(2).saturating_add(KEY_OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::{DenyCacheLookup, DenyCacheStats, KeyDenial, KeyDenyCache, SHARDS, key_cost};
    use crate::kernel::units::Nanos;

    const END: Nanos = Nanos(10);

    impl KeyDenyCache {
        fn denies(&self, key: &[u8], now: Nanos) -> bool {
            self.denies_under(0, key, now)
        }

        fn denies_under(&self, limit: u32, key: &[u8], now: Nanos) -> bool {
            self.look_up(key, limit, now).is_over
        }

        /// Caches a denial of `key` until `end`, without a refund between lookup and insert.
        fn deny_until(&self, key: &[u8], end: Nanos, now: Nanos) {
            self.deny(KeyDenial { limit: 0, end }, key, now);
        }

        fn deny(&self, over: KeyDenial, key: &[u8], now: Nanos) {
            let (shard, count) = self.locate(key);
            let given_back = shard.lock().refund_counts[count];
            self.insert(
                key,
                over,
                now,
                DenyCacheLookup { is_over: false, refund_count: given_back },
            );
        }
    }

    #[test]
    fn denials_are_cached_until_window_end_or_refund() {
        let denied = KeyDenyCache::new(1_000_000);
        assert!(!denied.denies(b"k", Nanos(1)));
        denied.deny_until(b"k", END, Nanos(0));
        assert!(denied.denies(b"k", Nanos(9)) && !denied.denies(b"k", END));
        denied.invalidate(b"k");
        assert!(!denied.denies(b"k", Nanos(1)));
        denied.deny_until(b"k", END, Nanos(0));
        assert!(denied.denies(b"k", Nanos(1)), "and is over again");
    }

    #[test]
    fn cached_denials_also_deny_smaller_limits() {
        let denied = KeyDenyCache::new(1_000_000);
        let over = |limit, end| denied.deny(KeyDenial { limit, end }, b"k", Nanos(0));
        let holds = |limit, at| denied.denies_under(limit, b"k", Nanos(at));
        over(10, END);
        assert!(holds(9, 1) && holds(10, 1) && !holds(11, 1));
        over(1_000, END);
        over(10, Nanos(20));
        assert!(holds(1_000, 1) && !holds(1_001, 1), "the smaller one takes nothing from it");
        assert!(!holds(10, 10), "nor adds to how long it is so");
        denied.deny(KeyDenial { limit: 10, end: Nanos(20) }, b"k", END);
        assert!(holds(10, 11) && !holds(11, 11), "what is over with is not known");
    }

    #[test]
    fn a_denial_from_before_a_refund_is_not_cached() {
        let denied = KeyDenyCache::new(1_000_000);
        let over = KeyDenial { limit: 0, end: END };
        let before = denied.look_up(b"k", 0, Nanos(0));
        denied.invalidate(b"k");
        let after = denied.look_up(b"k", 0, Nanos(0));
        denied.insert(b"k", over, Nanos(0), before);
        assert!(!denied.denies(b"k", Nanos(1)));
        denied.insert(b"k", over, Nanos(0), after);
        assert!(denied.denies(b"k", Nanos(1)), "asked for since");
    }

    #[test]
    fn a_full_cache_evicts_the_oldest_key() {
        let room = 4;
        let denied = KeyDenyCache::new(SHARDS * room * key_cost(b"key 0000"));
        let keys: Vec<_> = (0..1_000).map(|n| format!("key {n:04}").into_bytes()).collect();
        for key in &keys {
            denied.deny_until(key, END, Nanos(0));
            assert!(denied.denies(key, Nanos(0)), "the newest is known");
        }
        let known = keys.iter().filter(|key| denied.denies(key, Nanos(0))).count();
        assert!(0 < known && known <= SHARDS * room, "{known}");
        let queued: usize = denied.shards.iter().map(|shard| shard.lock().order.len()).sum();
        assert_eq!(queued, known, "nothing lies about that is not known");
        assert!(!denied.denies(&keys[0], Nanos(0)));
    }

    #[test]
    fn cache_statistics_count_hits_misses_and_evictions() {
        let denied = KeyDenyCache::new(1_000_000);
        denied.denies(b"k", Nanos(1));
        denied.deny_until(b"k", END, Nanos(0));
        denied.deny_until(b"k", END, Nanos(0));
        denied.denies(b"k", Nanos(1));
        denied.denies(b"k", Nanos(1));
        denied.denies(b"k", END);
        let wanted = DenyCacheStats {
            keys: 1,
            hits: 2,
            misses: 2,
            expired: 1,
            overwritten: 1,
            ..DenyCacheStats::default()
        };
        assert_eq!(denied.stats(), wanted);
        let small = KeyDenyCache::new(SHARDS * key_cost(b"key 0000"));
        for n in 0..100 {
            small.deny_until(format!("key {n:04}").as_bytes(), END, Nanos(0));
        }
        let seen = small.stats();
        assert!(0 < seen.evicted && seen.keys + seen.evicted == 100, "{seen:?}");
    }

    /// freecache, the cache of envoyproxy/ratelimit, reports the same number: the mean time of the
    /// last access over all keys, in seconds since 1970.
    #[test]
    fn average_access_time_covers_only_cached_keys() {
        let (denied, at) = (KeyDenyCache::new(1_000_000), Nanos::from_secs);
        assert_eq!(denied.stats().mean_last_access(), 0, "none");
        denied.deny_until(b"a", at(900), at(100));
        denied.deny_until(b"b", at(900), at(200));
        assert_eq!(denied.stats().mean_last_access(), 150);
        assert!(denied.denies(b"a", at(300)));
        assert_eq!(denied.stats().mean_last_access(), 250);
        assert!(!denied.denies(b"c", at(800)) && !denied.denies(b"a", at(900)));
        assert_eq!(denied.stats().mean_last_access(), 250, "misses are no access");
        denied.deny_until(b"b", at(950), at(400));
        assert_eq!(denied.stats().mean_last_access(), 350);
        assert!(denied.denies(b"b", at(150)), "the clock was set back");
        assert_eq!(denied.stats().mean_last_access(), 350);
        let small = KeyDenyCache::new(SHARDS * key_cost(b"key 0000"));
        for n in 0..100_u64 {
            small.deny_until(format!("key {n:04}").as_bytes(), at(900), at(n + 1));
        }
        let average = small.stats().mean_last_access();
        assert!((1..=100).contains(&average), "what gave way does not count: {average}");
    }

    #[test]
    fn oversized_keys_are_not_cached() {
        let nothing = KeyDenyCache::new(0);
        nothing.deny_until(b"k", END, Nanos(0));
        assert!(!nothing.denies(b"k", Nanos(0)));
        let little = KeyDenyCache::new(SHARDS * key_cost(b"k"));
        little.deny_until(&[b'k'; 100], END, Nanos(0));
        assert!(!little.denies(&[b'k'; 100], Nanos(0)));
        little.deny_until(b"k", END, Nanos(0));
        assert!(little.denies(b"k", Nanos(0)));
    }
}
