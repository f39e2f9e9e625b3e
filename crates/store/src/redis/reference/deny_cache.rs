//! The deny cache of counters under envoyproxy/ratelimit's keys: a cached denial needs no store
//! call.
//!
//! Guarantees:
//! - The cache uses at most 4 KiB more than the configured bytes.
//! - An entry lasts until its window ends, it expires, or this process refunds hits.
//! - If this process refunds hits during a store call, a denial by that call is not cached.
//! - A cached denial also denies the key under every smaller limit.
//! - Evicting a key never changes a decision: its next check needs a store call.
//!
//! A reload that changes a limit does not drop cached denials, as in envoyproxy/ratelimit.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use crate::kernel::units::Nanos;
use crate::stats::DenyCacheStats;

/// The number of shards. With this many, two cores rarely wait for the same lock.
const SHARDS: usize = 16;

/// The number of refund counts in each shard: keys with the same hash share one, but two keys in
/// use rarely do.
const REFUND_COUNTS: usize = 32;

/// The memory of an entry in bytes, without its key, which is stored twice: two allocations, and
/// slots in a hash map and a queue that may be half empty.
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
    end: Nanos,
    /// The largest limit that denied the key.
    limit: u32,
    /// The Unix time in seconds of the last insert or hit; 32 bits fit into the padding.
    last_access_secs: u32,
}

#[derive(Debug, Default)]
struct DenyCacheShard {
    entries: HashMap<Box<[u8]>, CachedDenial>,
    /// The keys in the order of insertion; an invalidated key stays until it is the oldest.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// For each group of keys, the number of refunds to these keys.
    refund_counts: Box<[u64; REFUND_COUNTS]>,
    /// The statistics without the number of keys.
    stats: DenyCacheStats,
}

/// The result of a lookup before the store call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DenyCacheLookup {
    pub(super) is_denied: bool,
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
        let (shard, count_index) = self.locate(key);
        let mut shard = shard.lock();
        DenyCacheLookup {
            is_denied: shard.denies(key, limit, now),
            refund_count: shard.refund_counts[count_index],
        }
    }

    /// Caches a denial of `key`, and evicts the oldest keys if necessary. Does nothing if hits of
    /// `key` were refunded since `lookup`.
    pub(super) fn insert(
        &self,
        key: &[u8],
        denial: KeyDenial,
        now: Nanos,
        lookup: DenyCacheLookup,
    ) {
        let KeyDenial { limit, end } = denial;
        if self.max_shard_bytes < key_cost(key) {
            return;
        }
        let (shard, count_index) = self.locate(key);
        let mut shard = shard.lock();
        if shard.refund_counts[count_index] != lookup.refund_count {
            return;
        }
        if let Some(entry) = shard.entries.get_mut(key) {
            if entry.limit <= limit || entry.end <= now {
                (entry.limit, entry.end) = (limit, end);
            }
            let elapsed = entry.touch(now);
            shard.stats.last_access_sum += elapsed;
            shard.stats.overwritten += 1;
        } else {
            let last_access_secs = whole_secs(now);
            shard.entries.insert(key.into(), CachedDenial { end, limit, last_access_secs });
            shard.order.push_back(key.into());
            shard.bytes += key_cost(key);
            shard.stats.last_access_sum += u64::from(last_access_secs);
        }
        while self.max_shard_bytes < shard.bytes {
            let Some(oldest) = shard.order.pop_front() else { break };
            let evicted = shard.entries.remove(&oldest);
            shard.stats.last_access_sum -=
                evicted.map_or(0, |entry| u64::from(entry.last_access_secs));
            shard.stats.evicted += 1;
            shard.bytes = shard.bytes.saturating_sub(key_cost(&oldest));
        }
    }

    /// Drops the denial of `key` after a refund, and invalidates the lookups of calls in flight.
    pub(super) fn invalidate(&self, key: &[u8]) {
        if self.max_shard_bytes == 0 {
            return;
        }
        let (shard, count_index) = self.locate(key);
        let mut shard = shard.lock();
        shard.refund_counts[count_index] += 1;
        // The key stays in `order` until it is the oldest, so it still counts toward the cache
        // size.
        if let Some(entry) = shard.entries.get_mut(key) {
            entry.end = Nanos(0);
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
        let entry = self.entries.get_mut(key);
        let is_expired = entry.as_ref().is_some_and(|entry| entry.end <= now);
        let denies = |entry: &&mut CachedDenial| now < entry.end && limit <= entry.limit;
        if let Some(entry) = entry.filter(denies) {
            self.stats.hits += 1;
            self.stats.last_access_sum += entry.touch(now);
            return true;
        }
        self.stats.misses += 1;
        self.stats.expired += u64::from(is_expired);
        false
    }
}

impl CachedDenial {
    /// Sets the last access to `now`, and returns the seconds since the previous access; 0 if the
    /// clock was set back.
    fn touch(&mut self, now: Nanos) -> u64 {
        let elapsed = whole_secs(now).saturating_sub(self.last_access_secs);
        self.last_access_secs += elapsed;
        elapsed.into()
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
            self.look_up(key, limit, now).is_denied
        }

        /// Caches a denial of `key` until `end`, without a refund between lookup and insert.
        fn deny_until(&self, key: &[u8], end: Nanos, now: Nanos) {
            self.deny(KeyDenial { limit: 0, end }, key, now);
        }

        fn deny(&self, denial: KeyDenial, key: &[u8], now: Nanos) {
            let (shard, count_index) = self.locate(key);
            let refund_count = shard.lock().refund_counts[count_index];
            self.insert(key, denial, now, DenyCacheLookup { is_denied: false, refund_count });
        }
    }

    #[test]
    fn denials_are_cached_until_window_end_or_refund() {
        let cache = KeyDenyCache::new(1_000_000);
        assert!(!cache.denies(b"k", Nanos(1)));
        cache.deny_until(b"k", END, Nanos(0));
        assert!(cache.denies(b"k", Nanos(9)) && !cache.denies(b"k", END));
        cache.invalidate(b"k");
        assert!(!cache.denies(b"k", Nanos(1)));
        cache.deny_until(b"k", END, Nanos(0));
        assert!(cache.denies(b"k", Nanos(1)), "denied again");
    }

    #[test]
    fn cached_denials_also_deny_smaller_limits() {
        let cache = KeyDenyCache::new(1_000_000);
        let deny = |limit, end| cache.deny(KeyDenial { limit, end }, b"k", Nanos(0));
        let denies = |limit, at| cache.denies_under(limit, b"k", Nanos(at));
        deny(10, END);
        assert!(denies(9, 1) && denies(10, 1) && !denies(11, 1));
        deny(1_000, END);
        deny(10, Nanos(20));
        assert!(
            denies(1_000, 1) && !denies(1_001, 1),
            "a smaller limit does not replace the entry"
        );
        assert!(!denies(10, 10), "a smaller limit does not extend the entry");
        cache.deny(KeyDenial { limit: 10, end: Nanos(20) }, b"k", END);
        assert!(denies(10, 11) && !denies(11, 11), "an expired entry is replaced");
    }

    #[test]
    fn a_denial_from_before_a_refund_is_not_cached() {
        let cache = KeyDenyCache::new(1_000_000);
        let denial = KeyDenial { limit: 0, end: END };
        let before = cache.look_up(b"k", 0, Nanos(0));
        cache.invalidate(b"k");
        let after = cache.look_up(b"k", 0, Nanos(0));
        cache.insert(b"k", denial, Nanos(0), before);
        assert!(!cache.denies(b"k", Nanos(1)));
        cache.insert(b"k", denial, Nanos(0), after);
        assert!(cache.denies(b"k", Nanos(1)), "the lookup is newer than the refund");
    }

    #[test]
    fn a_full_cache_evicts_the_oldest_key() {
        let room = 4;
        let cache = KeyDenyCache::new(SHARDS * room * key_cost(b"key 0000"));
        let keys: Vec<_> = (0..1_000).map(|n| format!("key {n:04}").into_bytes()).collect();
        for key in &keys {
            cache.deny_until(key, END, Nanos(0));
            assert!(cache.denies(key, Nanos(0)), "the newest key is cached");
        }
        let cached = keys.iter().filter(|key| cache.denies(key, Nanos(0))).count();
        assert!(0 < cached && cached <= SHARDS * room, "{cached}");
        let queued: usize = cache.shards.iter().map(|shard| shard.lock().order.len()).sum();
        assert_eq!(queued, cached, "nothing lies about that is not cached");
        assert!(!cache.denies(&keys[0], Nanos(0)));
    }

    #[test]
    fn cache_statistics_count_hits_misses_and_evictions() {
        let cache = KeyDenyCache::new(1_000_000);
        cache.denies(b"k", Nanos(1));
        cache.deny_until(b"k", END, Nanos(0));
        cache.deny_until(b"k", END, Nanos(0));
        cache.denies(b"k", Nanos(1));
        cache.denies(b"k", Nanos(1));
        cache.denies(b"k", END);
        let expected = DenyCacheStats {
            keys: 1,
            hits: 2,
            misses: 2,
            expired: 1,
            overwritten: 1,
            ..DenyCacheStats::default()
        };
        assert_eq!(cache.stats(), expected);
        let small = KeyDenyCache::new(SHARDS * key_cost(b"key 0000"));
        for n in 0..100 {
            small.deny_until(format!("key {n:04}").as_bytes(), END, Nanos(0));
        }
        let stats = small.stats();
        assert!(0 < stats.evicted && stats.keys + stats.evicted == 100, "{stats:?}");
    }

    /// freecache, the cache of envoyproxy/ratelimit, reports the same number.
    #[test]
    fn average_access_time_covers_only_cached_keys() {
        let (cache, at) = (KeyDenyCache::new(1_000_000), Nanos::from_secs);
        assert_eq!(cache.stats().mean_last_access(), 0, "no keys");
        cache.deny_until(b"a", at(900), at(100));
        cache.deny_until(b"b", at(900), at(200));
        assert_eq!(cache.stats().mean_last_access(), 150);
        assert!(cache.denies(b"a", at(300)));
        assert_eq!(cache.stats().mean_last_access(), 250);
        assert!(!cache.denies(b"c", at(800)) && !cache.denies(b"a", at(900)));
        assert_eq!(cache.stats().mean_last_access(), 250, "misses are no access");
        cache.deny_until(b"b", at(950), at(400));
        assert_eq!(cache.stats().mean_last_access(), 350);
        assert!(cache.denies(b"b", at(150)), "the clock was set back");
        assert_eq!(cache.stats().mean_last_access(), 350);
        let small = KeyDenyCache::new(SHARDS * key_cost(b"key 0000"));
        for n in 0..100_u64 {
            small.deny_until(format!("key {n:04}").as_bytes(), at(900), at(n + 1));
        }
        let average = small.stats().mean_last_access();
        assert!((1..=100).contains(&average), "evicted keys do not count: {average}");
    }

    #[test]
    fn oversized_keys_are_not_cached() {
        let disabled = KeyDenyCache::new(0);
        disabled.deny_until(b"k", END, Nanos(0));
        assert!(!disabled.denies(b"k", Nanos(0)));
        let small = KeyDenyCache::new(SHARDS * key_cost(b"k"));
        small.deny_until(&[b'k'; 100], END, Nanos(0));
        assert!(!small.denies(&[b'k'; 100], Nanos(0)));
        small.deny_until(b"k", END, Nanos(0));
        assert!(small.denies(b"k", Nanos(0)));
    }
}
