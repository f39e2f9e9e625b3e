//! The bans that a replica knows, and the changes that replicas exchange, as pure functions.
//!
//! Guarantees:
//! - Of two changes to a ban, the one with the larger number wins; if equal, the lift.
//! - A lift is remembered longer than the ban that it ended, so the ban cannot return.
//! - Messages contain remaining durations, not instants, so clocks may differ.
//! - At most [`MAX_BANS`] bans are kept. A full list refuses a new one.
//! - A message has at most [`MAX_PAGE_BANS`] bans and [`MAX_PAGE_BYTES`]: the newest, then the others
//!   in turn.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kernel::units::Nanos;

/// The largest number of bans, including remembered lifts. They take at most 30 MB.
pub const MAX_BANS: usize = 10_000;

/// The largest size of the name of a ban, in bytes: domain, descriptor and limit. A key with a longer
/// name is not banned.
pub const MAX_BAN_NAME_BYTES: usize = 1_024;

/// The most bans in one message.
pub(super) const MAX_PAGE_BANS: usize = 100;

/// The largest total size of the names in one message, and about that in the messages of all replicas,
/// in bytes. Each replica reads all messages once a second.
pub(super) const MAX_PAGE_BYTES: usize = 16 << 10;
pub(super) const MAX_FLEET_BYTES: usize = 128 << 10;

/// Enough for one ban.
pub(super) const MIN_PAGE_BYTES: usize = MAX_BAN_NAME_BYTES;

/// A change is sent with each message for this time, because a reader may miss some messages.
const NEW_FOR: Nanos = Nanos::from_secs(5);

/// A lift is remembered for this time after the end of its ban: until then, other replicas may still
/// send the ban.
const REMEMBER_MARGIN: Nanos = Nanos::from_secs(60);

/// The largest number of a change. JSON numbers are doubles, which are exact up to 2^53.
const MAX_NUMBER: u64 = 1 << 53;

/// The key and the limit of a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BanName {
    pub(crate) domain: Box<str>,
    /// The entries of the counter as text.
    pub(crate) descriptor: Box<str>,
    /// The name of the limit in a list `rate_limits`; empty for `rate_limit`.
    pub(crate) limit: Box<str>,
}

/// A ban that begins or is lifted, as replicas send it to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BanChange {
    /// The domain.
    pub domain: Box<str>,
    /// The entries of the counter as text.
    pub descriptor: Box<str>,
    /// The name of the limit in a list `rate_limits`; empty for `rate_limit`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub limit: Box<str>,
    /// The time until the ban ends, in milliseconds; 0 if it was lifted.
    pub left_ms: u64,
    /// The time for which the change is still sent, in milliseconds.
    pub known_ms: u64,
    /// The number of the change. Of two changes to a ban, the larger number wins.
    pub number: u64,
}

/// The counter key of a ban, and the length of a ban of its limit.
#[derive(Clone, Debug)]
pub(crate) struct BannedCounter {
    pub(crate) key: Arc<[u8]>,
    pub(crate) length: Nanos,
}

/// The last change to a ban.
#[derive(Debug)]
struct BanState {
    counter: Arc<[u8]>,
    /// The end of the ban; [`Nanos(0)`](Nanos) if it was lifted.
    until: Nanos,
    number: u64,
    changed_at: Nanos,
    remembered_until: Nanos,
}

/// The bans that a replica knows.
#[derive(Debug, Default)]
pub(crate) struct BanList {
    states: BTreeMap<BanName, BanState>,
    /// The end of the ban of each counter.
    ends: HashMap<Arc<[u8]>, Nanos>,
    /// No change is forgotten before this instant.
    next_forgotten: Nanos,
    /// The last ban of the last message that was not new.
    last_sent: BanName,
}

impl BanName {
    fn bytes(&self) -> usize {
        self.domain.len() + self.descriptor.len() + self.limit.len()
    }
}

impl BanChange {
    pub(super) fn name(&self) -> BanName {
        let Self { domain, descriptor, limit, .. } = self.clone();
        BanName { domain, descriptor, limit }
    }
}

impl BanList {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns the rest of the ban of a counter at `now`.
    pub(super) fn left(&self, counter: &[u8], now: Nanos) -> Option<Nanos> {
        self.ends.get(counter).filter(|until| now < **until).map(|until| until.since(now))
    }

    /// Returns the bans that apply at `now`, with their ends.
    pub(super) fn active(&self, now: Nanos) -> impl Iterator<Item = (&BanName, Nanos)> {
        let states = self.states.iter().filter(move |(_, state)| now < state.until);
        states.map(|(name, state)| (name, state.until))
    }

    /// Begins a ban that ends after `left`, unless the counter has one. Returns `false` if the list is
    /// full.
    pub(super) fn begin(
        &mut self,
        name: BanName,
        counter: &BannedCounter,
        left: Nanos,
        now: Nanos,
    ) -> bool {
        let own = self.states.get(&name);
        if own.is_some_and(|own| now < own.until) {
            return true;
        }
        let until = now.plus(left.min(counter.length));
        // Remember this change at least as long as the lift that it replaces.
        let remembered_until = own.map_or(until, |own| own.remembered_until.max(until));
        let number = self.next_number(&name);
        let counter = Arc::clone(&counter.key);
        self.insert(name, BanState { counter, until, number, changed_at: now, remembered_until })
    }

    /// Ends a ban that applies at `now`. Returns `false` if there is none.
    pub(super) fn lift(&mut self, name: &BanName, now: Nanos) -> bool {
        let number = self.next_number(name);
        let Some(state) = self.states.get_mut(name).filter(|state| now < state.until) else {
            return false;
        };
        (state.until, state.number, state.changed_at) = (Nanos(0), number, now);
        state.remembered_until = state.remembered_until.plus(REMEMBER_MARGIN);
        self.ends.remove(&state.counter);
        true
    }

    /// Applies a change from another replica to the ban of a counter of this configuration.
    pub(super) fn apply(&mut self, change: &BanChange, counter: &BannedCounter, now: Nanos) {
        let name = change.name();
        let until = |ms: u64, longest: Nanos| {
            now.plus(Nanos(ms.saturating_mul(Nanos::MILLI.0)).min(longest))
        };
        let is_lift = change.left_ms == 0;
        let own = self.states.get(&name);
        let is_newer = own.is_none_or(|own| {
            let is_active = own.until != Nanos(0);
            own.number < change.number || own.number == change.number && is_lift && is_active
        });
        if MAX_NUMBER < change.number || !is_newer {
            return;
        }
        let known_until = until(change.known_ms, counter.length.plus(REMEMBER_MARGIN));
        let state = BanState {
            counter: Arc::clone(&counter.key),
            until: if is_lift { Nanos(0) } else { until(change.left_ms, counter.length) },
            number: change.number,
            changed_at: now,
            // Remember this change at least as long as the change that it replaces.
            remembered_until: own.map_or(known_until, |own| own.remembered_until.max(known_until)),
        };
        self.insert(name, state);
    }

    /// Returns the changes for the next message, whose names have at most `max_bytes`.
    pub(super) fn page(&mut self, now: Nanos, max_bytes: usize) -> Vec<BanChange> {
        self.forget(now);
        let is_new = |state: &BanState| now.since(state.changed_at) < NEW_FOR;
        let new = self.states.iter().filter(|(_, state)| is_new(state));
        let after = self.states.range((Excluded(&self.last_sent), Unbounded));
        let others = after.chain(self.states.range(..=&self.last_sent));
        let others = others.filter(|(_, state)| !is_new(state));
        let (mut page, mut bytes, mut last_sent) = (Vec::new(), 0, None);
        for (name, state) in new.chain(others).take(MAX_PAGE_BANS) {
            bytes += name.bytes();
            if max_bytes < bytes {
                break;
            }
            page.push(change_of(name, state, now));
            last_sent = (!is_new(state)).then_some(name).or(last_sent);
        }
        if let Some(last_sent) = last_sent.cloned() {
            self.last_sent = last_sent;
        }
        page
    }

    /// Finds the counter of each ban again. A ban without one is removed.
    pub(super) fn find_counters(&mut self, find: impl Fn(&BanName) -> Option<BannedCounter>) {
        self.ends.clear();
        for (name, mut state) in std::mem::take(&mut self.states) {
            if let Some(counter) = find(&name) {
                state.counter = counter.key;
                self.insert(name, state);
            }
        }
    }

    fn next_number(&self, name: &BanName) -> u64 {
        self.states.get(name).map_or(1, |state| state.number.saturating_add(1).min(MAX_NUMBER))
    }

    fn insert(&mut self, name: BanName, state: BanState) -> bool {
        let is_known = self.states.contains_key(&name);
        if !is_known && MAX_BANS <= self.states.len() {
            self.forget(state.changed_at);
        }
        let has_room = is_known || self.states.len() < MAX_BANS;
        if MAX_BAN_NAME_BYTES < name.bytes() || !has_room {
            return false;
        }
        if state.until == Nanos(0) {
            self.ends.remove(&state.counter);
        } else {
            self.ends.insert(Arc::clone(&state.counter), state.until);
        }
        let is_first = self.states.is_empty();
        let ends = if is_first { state.remembered_until } else { self.next_forgotten };
        self.next_forgotten = ends.min(state.remembered_until);
        self.states.insert(name, state);
        true
    }

    /// Forgets changes whose time is over. Cost: nothing if there is none, otherwise all changes.
    fn forget(&mut self, now: Nanos) {
        if now < self.next_forgotten {
            return;
        }
        self.states.retain(|_, state| now < state.remembered_until);
        self.ends.retain(|_, until| now < *until);
        let ends = self.states.values().map(|state| state.remembered_until);
        self.next_forgotten = ends.min().unwrap_or_default();
    }
}

fn change_of(name: &BanName, state: &BanState, now: Nanos) -> BanChange {
    let BanName { domain, descriptor, limit } = name.clone();
    // Rounded up, because 0 is a lift.
    let millis = |until: Nanos| until.since(now).0.div_ceil(Nanos::MILLI.0);
    let left_ms = millis(state.until);
    let known_ms = millis(state.remembered_until);
    BanChange { domain, descriptor, limit, left_ms, known_ms, number: state.number }
}

#[cfg(test)]
mod tests;
