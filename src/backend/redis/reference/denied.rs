//! The counters that are known to be over a limit, so that nobody has to be asked.
//!
//! Guarantees: at most so many bytes, and 4 KiB beside them; a key is known until its window ends, which
//! its own text names, until it was said to be at the longest, or until hits are given back to it here: what was asked before that and is answered
//! after it is not remembered. It is known to be over the limit that it was found over and all smaller ones. Who forgets errs
//! on the side of asking.
//! Leaves out: taking part when the store was not asked; a changed limit, which the reference does
//! not heed here either.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use crate::backend::inside::Remembered;
use crate::kernel::units::Nanos;

/// Shards, so that two cores seldom meet.
const SHARDS: usize = 16;

/// Counts of each shard, which tell whether hits were given back meanwhile: so many that of two keys one
/// seldom stands in for the other.
const COUNTS: usize = 32;

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

/// Until when a key is over which limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) limit: u32,
    pub(super) end: Nanos,
}

/// A key that is over.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// When its window ends.
    end: Nanos,
    /// The limit that it is over, and all smaller ones.
    limit: u32,
    /// When it was last put or found, in seconds. In so few bits that it costs no room.
    found_at: u32,
}

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<Box<[u8]>, Known>,
    /// The oldest first. A key that was forgotten may still stand here.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// How often hits were given back to the keys of each count.
    given_back: Box<[u64; COUNTS]>,
    /// Its keys apart, which are counted by the table.
    counted: Remembered,
}

/// What is known of a key that is about to be asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// Whether it is over.
    pub(super) is_over: bool,
    /// How often hits had been given back to it and to those that are counted with it.
    given_back: u64,
}

impl Denied {
    /// For at most `bytes` in all; 0 remembers nothing.
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), random: RandomState::new(), most: bytes / SHARDS }
    }

    /// What is known of `key` at `now`, which is asked for under `limit`.
    pub(super) fn look(&self, key: &[u8], limit: u32, now: Nanos) -> Look {
        if self.most == 0 {
            return Look::default();
        }
        let (shard, count) = self.place(key);
        let mut shard = shard.lock();
        Look { is_over: shard.holds(key, limit, now), given_back: shard.given_back[count] }
    }

    /// Remembers at `now` what `key` is over, at the cost of the oldest ones where there is no room;
    /// `before` is the look at it before it was asked for.
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

    /// Forgets `key`, and what those will be told who ask for it now: hits were given back to it.
    pub(super) fn forget(&self, key: &[u8]) {
        if self.most == 0 {
            return;
        }
        let (shard, count) = self.place(key);
        let mut shard = shard.lock();
        shard.given_back[count] += 1;
        // Its place in the order stays and is paid for until it is the oldest.
        if let Some(known) = shard.known.get_mut(key) {
            known.end = Nanos(0);
        }
    }

    /// What it came to so far.
    pub(super) fn seen(&self) -> Remembered {
        let of = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            let keys = u64::try_from(shard.known.len()).unwrap_or(u64::MAX);
            Remembered { keys, ..shard.counted }
        };
        self.shards.iter().map(of).fold(Remembered::default(), std::ops::Add::add)
    }

    /// The shard of `key`, and its count there.
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
    /// It is found or put at `now`; how many seconds later than before. A clock that was set back adds none.
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

        /// Remembers what nobody gave hits back to meanwhile.
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
    fn a_key_is_known_until_its_window_ends_or_hits_are_given_back() {
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
    fn a_key_is_over_the_largest_limit_that_it_was_found_over_and_those_below() {
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
    fn what_was_asked_before_hits_were_given_back_is_not_remembered_after() {
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
    fn it_never_grows_beyond_its_bytes_and_gives_up_the_oldest() {
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
    fn lookups_are_hits_or_misses_and_what_gives_way_is_counted() {
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

    /// As freecache, the reference's cache, says it: the mean of the seconds since 1970 of each key's last access.
    #[test]
    fn when_keys_were_last_put_or_found_is_averaged_over_those_that_are_there() {
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
    fn of_no_bytes_nothing_is_remembered_nor_is_what_alone_would_be_too_much() {
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
