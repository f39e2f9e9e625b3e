//! Which id holds what, and which releases came before their acquire.
//!
//! Where acquire and release are two calls, the proxy mints the id and nothing orders the calls.
//! A release of an unknown id leaves a tombstone, and the acquire that follows finds its request
//! already over.
//!
//! Guarantees: what an id holds is given out once, to its release or to its deadline; an id is
//! claimed by one at a time, and the tombstone of one that is claimed stays. Tombstones are bounded for each source and over all; a full table
//! refuses, it never evicts, so that nobody can wash out another's release.
//! Cost: O(log n) in ids and tombstones; one or two copies of the id per entry.
//! Leaves out: what is held. A released id that is acquired again is a new request.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::units::Nanos;

/// How many releases of unknown ids are remembered, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Tombstones of one source.
    pub per_source: u32,
    /// Tombstones of all sources together.
    pub total: u32,
    /// How long one is kept: longer than a release can overtake its acquire by.
    pub keep: Nanos,
}

/// What became of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired<H> {
    /// The id holds it now.
    Held,
    /// Its release came first: the request is over, and what it would have held is given back.
    Over(H),
    /// The id already holds something: ids are for one request.
    Taken(H),
}

/// What became of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released<H> {
    /// What the id held, to be given back.
    Held(H),
    /// The id is unknown: a tombstone waits for its acquire.
    Early,
    /// The id is unknown and the source, or all together, left too many tombstones: forgotten.
    Refused,
}

/// The ids of one replica: `I` names requests, `S` where releases come from, `H` is what is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Register<I: Ord, S: Ord, H> {
    bounds: Bounds,
    /// Those of which it is not known yet whether they will hold something.
    claimed: BTreeSet<I>,
    held: BTreeMap<I, (Nanos, H)>,
    deadlines: BTreeSet<(Nanos, I)>,
    tombstones: BTreeMap<I, (Nanos, S)>,
    /// In the order they were left, which is the order they end.
    endings: BTreeSet<(Nanos, I)>,
    left_by: BTreeMap<S, u32>,
}

impl<I: Ord + Clone, S: Ord + Clone, H> Register<I, S, H> {
    /// An empty register.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            claimed: BTreeSet::new(),
            held: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            endings: BTreeSet::new(),
            left_by: BTreeMap::new(),
        }
    }

    /// Something is asked for on behalf of `id`, until [`Register::unclaim`]; false where that is so
    /// already. A release does not heed it: one that comes meanwhile has come before its acquire.
    pub fn claim(&mut self, id: I) -> bool {
        self.claimed.insert(id)
    }

    /// What was asked for on behalf of `id` came, or did not.
    pub fn unclaim(&mut self, id: &I) {
        self.claimed.remove(id);
    }

    /// `id` holds `what` until it is released or `until` comes.
    pub fn acquire(&mut self, now: Nanos, id: I, until: Nanos, what: H) -> Acquired<H> {
        self.forget(now);
        if self.held.contains_key(&id) {
            return Acquired::Taken(what);
        }
        if self.answer_tombstone(&id) {
            return Acquired::Over(what);
        }
        self.deadlines.insert((until, id.clone()));
        self.held.insert(id, (until, what));
        Acquired::Held
    }

    /// `id` is over, says `source`.
    pub fn release(&mut self, now: Nanos, id: &I, source: &S) -> Released<H> {
        self.forget(now);
        if let Some((until, what)) = self.held.remove(id) {
            self.deadlines.remove(&(until, id.clone()));
            return Released::Held(what);
        }
        // Said twice is said once: the first tombstone stays.
        if self.tombstones.contains_key(id) {
            return Released::Early;
        }
        if self.is_full_for(source) {
            return Released::Refused;
        }
        self.bury(now, id, source);
        Released::Early
    }

    /// What `id` holds.
    pub fn held(&mut self, id: &I) -> Option<&mut H> {
        self.held.get_mut(id).map(|(_, what)| what)
    }

    /// Moves the deadline of `id`; false when it holds nothing.
    pub fn renew(&mut self, id: &I, until: Nanos) -> bool {
        let Some((old, _)) = self.held.get_mut(id) else { return false };
        let old = std::mem::replace(old, until);
        self.deadlines.remove(&(old, id.clone()));
        self.deadlines.insert((until, id.clone()))
    }

    /// An id whose deadline has come, with what it held; asked until there is none.
    pub fn expire(&mut self, now: Nanos) -> Option<(I, H)> {
        self.forget(now);
        if now < self.deadlines.first()?.0 {
            return None;
        }
        let (_, id) = self.deadlines.pop_first()?;
        let (_, what) = self.held.remove(&id)?;
        Some((id, what))
    }

    /// When [`Register::expire`] has something to do next; a tombstone's end counts.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let (held, left) = (self.deadlines.first(), self.endings.first());
        held.into_iter().chain(left).map(|&(until, _)| until).min()
    }

    /// What is remembered at most, and how long.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// How many ids hold something.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Does no id hold anything?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// How many releases wait for their acquire.
    #[must_use]
    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    fn forget(&mut self, now: Nanos) {
        while let Some((until, _)) = self.endings.first() {
            if now < *until {
                return;
            }
            let Some((_, id)) = self.endings.pop_first() else { return };
            if self.claimed.contains(&id) {
                self.keep_on(now, id);
            } else {
                self.answer_tombstone(&id);
            }
        }
    }

    /// Keeps the tombstone of an id that is asked for still: what comes then is over, however late.
    fn keep_on(&mut self, now: Nanos, id: I) {
        let Some((until, _)) = self.tombstones.get_mut(&id) else { return };
        *until = now.plus(self.bounds.keep.max(Nanos::MICRO));
        self.endings.insert((*until, id));
    }

    /// Takes the tombstone of `id` away; false when there is none.
    fn answer_tombstone(&mut self, id: &I) -> bool {
        let Some((until, source)) = self.tombstones.remove(id) else { return false };
        self.endings.remove(&(until, id.clone()));
        let left = self.left_by.remove(&source).unwrap_or(0).saturating_sub(1);
        if 0 < left {
            self.left_by.insert(source, left);
        }
        true
    }

    fn is_full_for(&self, source: &S) -> bool {
        let total = u32::try_from(self.tombstones.len()).unwrap_or(u32::MAX);
        let left = self.left_by.get(source).copied().unwrap_or(0);
        self.bounds.total <= total || self.bounds.per_source <= left
    }

    fn bury(&mut self, now: Nanos, id: &I, source: &S) {
        let until = now.plus(self.bounds.keep);
        self.endings.insert((until, id.clone()));
        self.tombstones.insert(id.clone(), (until, source.clone()));
        let left = self.left_by.entry(source.clone()).or_insert(0);
        *left = left.saturating_add(1);
    }
}
