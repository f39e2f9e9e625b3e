//! Finds the keys with the most hits in bounded memory: Space-Saving in small sets of slots.
//!
//! A table of many [`KeySet`]s counts one list of keys. The hash of a key selects its set, so
//! the keys of two sets are disjoint, and the table's result is the union of its sets. A set has
//! [`SLOTS_PER_SET`] slots. A new key takes a free slot, or the slot with the smallest rate: it
//! inherits the hits of that slot as its error.
//!
//! In a full set, most new keys of busy traffic are rare ones. So their hits are only summed. A new
//! key takes a slot as soon as the sum exceeds 1/16 of the last minute's hits of the slot that was
//! taken last. The sum is a part of its error. A rare key thereby costs as little as a known one.
//! The sum starts at 0 in each minute, so that a past burst hides no later key.
//!
//! Each slot counts the current and the previous minute, and the current and the previous hour.
//! The hits of the last minute are estimated as in a sliding window:
//!
//! ```text
//! hits of the last minute = hits of this minute + hits of the previous minute × rest / minute
//! ```
//!
//! | hits at 10:00 to 10:01 | at 10:01:15 since 10:01 | estimate |
//! |---|---|---|
//! | 80 | 20 | 20 + 80 × 45/60 = 80 |
//!
//! Guarantees:
//! - A set has at most [`SLOTS_PER_SET`] keys and texts.
//! - The hits minus the error of a row were counted for its key.
//! - The text of a key is made only when the key takes a slot.
//! - Windows advance with the instants of the calls, without a timer.
//!
//! Not covered:
//! - Locks, and the choice of the set.
//! - The length of texts.
//!
//! Source: Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements
//! in Data Streams" (2005).

use crate::units::{Hits, Nanos};

/// The number of keys that a set counts.
pub const SLOTS_PER_SET: usize = 16;

/// The steps in which the rest of a window is measured.
const REST_STEPS: u64 = 1_024;

/// The hits that a full set sums before a new key takes a slot: 1/16 of the last minute's hits of a
/// slot.
const MISSED_SHIFT: u32 = 4;

const WINDOWS: usize = TopWindow::ALL.len();

crate::named_enum! {
    /// The window over which hits are counted.
    pub enum TopWindow {
        /// The last minute.
        Minute = "minute",
        /// The last hour.
        Hour = "hour",
    }
}

impl TopWindow {
    /// The length of the window.
    #[must_use]
    pub const fn length(self) -> Nanos {
        match self {
            Self::Minute => Nanos::from_secs(60),
            Self::Hour => Nanos::from_secs(3_600),
        }
    }

    /// The number of windows in an hour, by which hits become comparable rates.
    const fn per_hour(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 1,
        }
    }

    fn generation(self, now: Nanos) -> u64 {
        now.0.checked_div(self.length().0).unwrap_or(0)
    }

    /// Returns the part of the previous generation that the window at `now` still covers, in
    /// [`REST_STEPS`].
    fn rest(self, now: Nanos) -> u64 {
        let length = self.length().0;
        let passed = now.0.checked_rem(length).unwrap_or(0);
        let left = length.saturating_sub(passed);
        left.saturating_mul(REST_STEPS).checked_div(length).unwrap_or(0)
    }
}

/// A key with its estimated hits in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRow<'s> {
    /// The text of the key.
    pub text: &'s str,
    /// The estimated hits in the window.
    pub hits: Hits,
    /// The part of `hits` that may belong to keys which had the slot before.
    pub error: Hits,
}

/// The keys with the most hits among those whose hash selects this set.
#[derive(Debug, Default)]
pub struct KeySet {
    /// The numbers of the current minute and hour.
    generations: [u64; WINDOWS],
    /// The end of the current minute.
    minute_end: Nanos,
    /// The hits of keys without a slot in this minute since the last key took one, and their maximum.
    missed: u64,
    max_missed: u64,
    /// The hashes of the keys, in the order of `slots`.
    hashes: [u64; SLOTS_PER_SET],
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    text: Box<str>,
    windows: [WindowHits; WINDOWS],
}

/// The hits of one key in two generations of a window, and the part that it inherited.
#[derive(Clone, Copy, Debug, Default)]
struct WindowHits {
    current: u64,
    previous: u64,
    current_error: u64,
    previous_error: u64,
}

impl WindowHits {
    const fn estimate(self, rest: u64) -> u64 {
        estimate(self.current, self.previous, rest)
    }

    const fn add(&mut self, hits: u64) {
        self.current = self.current.saturating_add(hits);
    }

    const fn add_error(&mut self, hits: u64) {
        self.add(hits);
        self.current_error = self.current_error.saturating_add(hits);
    }

    const fn advance(&mut self, by: u64) {
        (self.previous, self.previous_error) =
            if by == 1 { (self.current, self.current_error) } else { (0, 0) };
        (self.current, self.current_error) = (0, 0);
    }

    /// All hits so far are the error of the next key.
    const fn inherit(&mut self) {
        (self.current_error, self.previous_error) = (self.current, self.previous);
    }
}

const fn estimate(current: u64, previous: u64, rest: u64) -> u64 {
    let Some(still_covered) = previous.saturating_mul(rest).checked_div(REST_STEPS) else {
        return current;
    };
    current.saturating_add(still_covered)
}

impl KeySet {
    /// Adds `hits` to the key with this hash at `now`. `text` makes the text of a key that takes a
    /// slot. An instant before the last one counts in the current windows.
    pub fn count(&mut self, hash: u64, hits: Hits, now: Nanos, text: impl FnOnce() -> Box<str>) {
        self.advance(now);
        let known = self.hashes.iter().take(self.slots.len()).position(|known| *known == hash);
        let index = match known {
            Some(index) => Some(index),
            None if self.slots.len() < SLOTS_PER_SET => self.take_free(hash, text),
            None if self.missed.saturating_add(hits.0) < self.max_missed => {
                self.missed = self.missed.saturating_add(hits.0);
                return;
            }
            None => self.take_slowest(hash, now, text),
        };
        let Some(index) = index else { return };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.windows.iter_mut().for_each(|window| window.add(hits.0));
        }
    }

    /// Returns the keys and their hits in `window` at `now`, in no order. Keys without hits are
    /// left out.
    pub fn rows(&self, window: TopWindow, now: Nanos) -> impl Iterator<Item = TopRow<'_>> {
        let index = usize::from(window == TopWindow::Hour);
        let last = self.generations.get(index).copied().unwrap_or(0);
        let passed = window.generation(now).saturating_sub(last);
        let rest = window.rest(now);
        self.slots.iter().filter_map(move |slot| {
            let mut hits = *slot.windows.get(index)?;
            if passed != 0 {
                hits.advance(passed);
            }
            let estimated = hits.estimate(rest);
            let error = estimate(hits.current_error, hits.previous_error, rest);
            let row = TopRow { text: &slot.text, hits: Hits(estimated), error: Hits(error) };
            (estimated != 0).then_some(row)
        })
    }

    /// Returns `true` if no key had hits in the current or in the previous hour.
    #[must_use]
    pub fn is_idle(&self, now: Nanos) -> bool {
        self.rows(TopWindow::Hour, now).next().is_none()
    }

    /// The memory of this set in bytes, without the overhead of the allocator.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let slots = self.slots.capacity().saturating_mul(size_of::<Slot>());
        let texts: usize = self.slots.iter().map(|slot| slot.text.len()).sum();
        size_of::<Self>().saturating_add(slots).saturating_add(texts)
    }

    /// Starts new generations if `now` is in a later minute or hour.
    fn advance(&mut self, now: Nanos) {
        if now < self.minute_end {
            return;
        }
        let minute = TopWindow::Minute.length();
        let passed = now.0.checked_rem(minute.0).unwrap_or(0);
        self.minute_end = now.since(Nanos(passed)).plus(minute);
        // After a burst, the old maximum would hide new keys until their hits exceed the burst's.
        (self.missed, self.max_missed) = (0, 0);
        for (index, window) in TopWindow::ALL.into_iter().enumerate() {
            let Some(generation) = self.generations.get_mut(index) else { continue };
            let passed = window.generation(now).saturating_sub(*generation);
            if passed == 0 {
                continue;
            }
            *generation = generation.saturating_add(passed);
            let windows = self.slots.iter_mut().filter_map(|slot| slot.windows.get_mut(index));
            windows.for_each(|hits| hits.advance(passed));
        }
    }

    fn take_free(&mut self, hash: u64, text: impl FnOnce() -> Box<str>) -> Option<usize> {
        let index = self.slots.len();
        *self.hashes.get_mut(index)? = hash;
        self.slots.push(Slot { text: text(), windows: Default::default() });
        Some(index)
    }

    fn take_slowest(
        &mut self,
        hash: u64,
        now: Nanos,
        text: impl FnOnce() -> Box<str>,
    ) -> Option<usize> {
        let index = self.slowest(now)?;
        let slot = self.slots.get_mut(index)?;
        let [minute, _] = &slot.windows;
        self.max_missed = minute.estimate(TopWindow::Minute.rest(now)) >> MISSED_SHIFT;
        let missed = std::mem::take(&mut self.missed);
        for window in &mut slot.windows {
            window.inherit();
            window.add_error(missed);
        }
        slot.text = text();
        *self.hashes.get_mut(index)? = hash;
        Some(index)
    }

    /// Returns the slot with the smallest rate. Both windows count equally, so that neither an old
    /// key without recent hits nor a single recent hit displaces the key of an active client.
    fn slowest(&self, now: Nanos) -> Option<usize> {
        let rests = TopWindow::ALL.map(|window| window.rest(now));
        let rate = |slot: &Slot| {
            let windows = slot.windows.iter().zip(TopWindow::ALL).zip(rests);
            windows.fold(0_u64, |sum, ((hits, window), rest)| {
                sum.saturating_add(hits.estimate(rest).saturating_mul(window.per_hour()))
            })
        };
        self.slots.iter().enumerate().min_by_key(|(_, slot)| rate(slot)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(7_200);

    fn count(set: &mut KeySet, key: u64, hits: u64, now: Nanos) {
        set.count(key, Hits(hits), now, || format!("key={key}").into());
    }

    fn rows(set: &KeySet, window: TopWindow, now: Nanos) -> Vec<(String, u64, u64)> {
        let mut rows: Vec<_> = set
            .rows(window, now)
            .map(|row| (row.text.to_owned(), row.hits.0, row.error.0))
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn hits_of_a_minute_slide_out_in_the_next_minute() {
        let mut set = KeySet::default();
        count(&mut set, 1, 80, START);
        let next = START.plus(Nanos::from_secs(60));
        count(&mut set, 1, 20, next);
        // The table of the module: 20 + 80 × 45/60.
        let at = next.plus(Nanos::from_secs(15));
        assert_eq!(rows(&set, TopWindow::Minute, at), [("key=1".to_owned(), 80, 0)]);
        assert_eq!(rows(&set, TopWindow::Hour, at), [("key=1".to_owned(), 100, 0)]);
        let later = START.plus(Nanos::from_secs(180));
        assert_eq!(rows(&set, TopWindow::Minute, later), []);
        assert_eq!(rows(&set, TopWindow::Hour, later), [("key=1".to_owned(), 100, 0)]);
        assert!(!set.is_idle(later));
        assert!(set.is_idle(START.plus(Nanos::from_secs(2 * 3_600))));
    }

    #[test]
    fn a_new_key_inherits_the_smallest_count_as_error() {
        let mut set = KeySet::default();
        for key in 1..=16 {
            count(&mut set, key, 10 * key, START);
        }
        count(&mut set, 99, 5, START);
        let rows = rows(&set, TopWindow::Minute, START);
        assert_eq!(rows.len(), 16);
        assert!(rows.contains(&("key=99".to_owned(), 15, 10)));
        assert!(!rows.iter().any(|(text, ..)| text == "key=1"));
        assert!(rows.contains(&("key=16".to_owned(), 160, 0)));
    }

    #[test]
    fn rare_keys_of_a_busy_set_are_summed() {
        let mut set = KeySet::default();
        for key in 1..=16 {
            count(&mut set, key, 160, START);
        }
        // Takes a slot. From now on, the hits of new keys are summed up to 160/16.
        count(&mut set, 50, 1, START);
        (51..60).for_each(|key| count(&mut set, key, 1, START));
        let total =
            |set: &KeySet| set.rows(TopWindow::Hour, START).map(|row| row.hits.0).sum::<u64>();
        assert_eq!(total(&set), 16 * 160 + 1);
        count(&mut set, 60, 1, START);
        assert_eq!(total(&set), 16 * 160 + 11);
        let rows = rows(&set, TopWindow::Minute, START);
        assert!(rows.contains(&("key=60".to_owned(), 160 + 10, 160 + 9)), "{rows:?}");
    }

    #[test]
    fn a_key_after_a_burst_has_its_own_count() {
        let mut set = KeySet::default();
        // The attack: 100,000 random keys in one minute.
        (0..100_000).for_each(|key| count(&mut set, key, 1, START));
        let now = START.plus(Nanos::from_secs(120));
        count(&mut set, 200_000, 3, now);
        assert_eq!(rows(&set, TopWindow::Minute, now), [("key=200000".to_owned(), 3, 0)]);
    }

    #[test]
    fn a_key_with_recent_hits_displaces_a_silent_one() {
        let mut set = KeySet::default();
        count(&mut set, 1, 10, START);
        for key in 2..=16 {
            count(&mut set, key, 1_000, START);
        }
        let now = START.plus(Nanos::from_secs(600));
        // 100 hits in a minute are a higher rate than 1,000 hits in an hour.
        count(&mut set, 50, 100, now);
        assert!(rows(&set, TopWindow::Hour, now).contains(&("key=50".to_owned(), 110, 10)));
        count(&mut set, 51, 1, now);
        let recent = rows(&set, TopWindow::Minute, now);
        assert_eq!(recent, [("key=50".to_owned(), 100, 0), ("key=51".to_owned(), 1, 0)]);
    }
}
