//! The keys whose event was sent in the current window.
//!
//! Guarantees:
//! - A key is new once in each window, also if checks of two windows overlap.
//! - The table has at most [`SHARDS`] times [`KEYS_PER_SHARD`] keys, about 3 MB.
//! - A full shard is searched for ended windows only when one has ended.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::EventKey;
use crate::kernel::units::Nanos;

const SHARDS: usize = 64;

const KEYS_PER_SHARD: usize = 1_024;

/// The result of looking up a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    /// The key has no event in this window yet. It is in the table now.
    New,
    /// The key had an event in this window.
    Known,
    /// The key is not in the table, and the table has no room.
    Full,
}

#[derive(Debug)]
pub(super) struct RecentKeys {
    shards: Box<[Mutex<KeyShard>]>,
    /// Hash key, random for each process: no client can choose keys of equal hashes.
    secret: [u8; 16],
}

#[derive(Debug, Default)]
struct KeyShard {
    /// The start and the end of the last window of each key, by the hash of the key.
    windows: HashMap<u128, (Nanos, Nanos)>,
    /// No window in `windows` ends before this instant.
    first_end: Nanos,
}

impl RecentKeys {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random.hash_one(0_u8).to_le_bytes());
        secret[8..].copy_from_slice(&random.hash_one(1_u8).to_le_bytes());
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), secret }
    }

    /// Adds the key with its window. Costs one hash of the key and a lock of a shard.
    pub(super) fn insert(&self, key: EventKey<'_>, now: Nanos) -> Novelty {
        let (hash, shard) = self.find(key);
        shard.map_or(Novelty::Full, |shard| shard.lock().insert(hash, key, now))
    }

    /// Forgets the window of the key, because its event was not queued.
    #[cold]
    pub(super) fn remove(&self, key: EventKey<'_>) {
        let (hash, shard) = self.find(key);
        let Some(mut shard) = shard.map(Mutex::lock) else { return };
        if shard.windows.get(&hash).is_some_and(|(start, _)| *start == key.window.start) {
            shard.windows.remove(&hash);
        }
    }

    /// Returns the hash of the key, and its shard.
    fn find(&self, key: EventKey<'_>) -> (u128, Option<&Mutex<KeyShard>>) {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(key.event_type.as_bytes());
        hasher.write_u8(0);
        hasher.write(key.key);
        let hash = hasher.finish128();
        let shard = usize::try_from(hash.h1 % 64).ok().and_then(|index| self.shards.get(index));
        (hash.as_u128(), shard)
    }
}

impl KeyShard {
    fn insert(&mut self, hash: u128, EventKey { window, .. }: EventKey<'_>, now: Nanos) -> Novelty {
        if let Some(last) = self.windows.get_mut(&hash) {
            if window.start <= last.0 {
                return Novelty::Known;
            }
            *last = (window.start, window.end);
            self.first_end = self.first_end.min(window.end);
            return Novelty::New;
        }
        if KEYS_PER_SHARD <= self.windows.len() && !self.remove_ended(now) {
            return Novelty::Full;
        }
        let is_empty = self.windows.is_empty();
        self.first_end = if is_empty { window.end } else { self.first_end.min(window.end) };
        self.windows.insert(hash, (window.start, window.end));
        Novelty::New
    }

    /// Removes ended windows. Returns `true` if there is room now.
    fn remove_ended(&mut self, now: Nanos) -> bool {
        if now < self.first_end {
            return false;
        }
        self.windows.retain(|_, (_, end)| now < *end);
        self.first_end = self.windows.values().map(|(_, end)| *end).min().unwrap_or_default();
        self.windows.len() < KEYS_PER_SHARD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud_events::EventWindow;

    fn insert(recent: &RecentKeys, key: &[u8], second: u64) -> Novelty {
        let now = Nanos::from_secs(second);
        let window = EventWindow::aligned(now, Nanos::from_secs(60));
        recent.insert(EventKey { event_type: "t", key, window }, now)
    }

    #[test]
    fn a_key_is_new_once_in_each_window() {
        let recent = RecentKeys::new();
        let seen = [0, 59, 60, 119, 59, 120].map(|second| insert(&recent, b"k", second));
        let [new, known] = [Novelty::New, Novelty::Known];
        assert_eq!(seen, [new, known, new, known, known, new]);
        assert_eq!(insert(&recent, b"other", 120), new);
    }

    #[test]
    fn a_full_table_accepts_new_keys_after_windows_end() {
        let recent = RecentKeys::new();
        let most = SHARDS * KEYS_PER_SHARD;
        let mut full = 0;
        for key in 0..2 * most {
            full += usize::from(insert(&recent, &key.to_le_bytes(), 1) == Novelty::Full);
        }
        let kept: usize = recent.shards.iter().map(|shard| shard.lock().windows.len()).sum();
        assert_eq!((kept, full), (most, most), "2^17 keys fill every shard");
        assert_eq!(insert(&recent, b"later", 59), Novelty::Full);
        assert_eq!(insert(&recent, b"later", 60), Novelty::New);
    }
}
