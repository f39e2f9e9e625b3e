//! The map from request ids to permits, and the memory of early releases.
//!
//! Acquire and release can be two calls with an id that the proxy mints.
//! Nothing orders these calls. A release of an unknown id is kept as an early
//! release. A later acquire of that id finds that its request is already over.
//!
//! Guarantees:
//! - An id's value is returned once: by its release or at its deadline.
//! - Only one caller at a time can claim an id.
//! - The early release of a claimed id does not expire.
//! - Early releases are bounded per source and in total.
//! - A full table rejects and never evicts, so one source cannot displace another's releases.
//! - Cost: O(log n) in ids and early releases; at most two id copies per entry.
//!
//! Not covered:
//! - The type of the value.
//! - Id reuse: an acquire after a release is a new request.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::units::Nanos;

/// The bounds on early releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// The most early releases of one source.
    pub per_source: u32,
    /// The most early releases of all sources together.
    pub total: u32,
    /// The lifetime of an early release: longer than a release can precede its acquire.
    pub keep: Nanos,
}

/// The result of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired<H> {
    /// The id now owns the value.
    Held,
    /// The release arrived first: the request is over, and the value is returned.
    Over(H),
    /// The id already has a value, because an id is for one request; the new value is returned.
    Taken(H),
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released<H> {
    /// The value of the id, for the caller to free.
    Held(H),
    /// The id is unknown: its release is kept for a later acquire.
    Early,
    /// The id is unknown and the table of early releases is full, so the release is dropped.
    Refused,
}

/// The ids of one replica: `I` is a request id, `S` the source of a release, `H` the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Register<I: Ord, S: Ord, H> {
    bounds: Bounds,
    /// Ids with an acquire in progress.
    claimed: BTreeSet<I>,
    held: BTreeMap<I, (Nanos, H)>,
    deadlines: BTreeSet<(Nanos, I)>,
    tombstones: BTreeMap<I, (Nanos, S)>,
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

    /// Marks `id` as being acquired until [`Register::unclaim`]; `false` if it already is.
    ///
    /// A release ignores the mark: a release in the meantime is an early release.
    pub fn claim(&mut self, id: I) -> bool {
        self.claimed.insert(id)
    }

    /// Removes the mark, after the acquire succeeded or failed.
    pub fn unclaim(&mut self, id: &I) {
        self.claimed.remove(id);
    }

    /// Stores `what` under `id` until its release or until `until`.
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

    /// Releases `id` on behalf of `source`.
    pub fn release(&mut self, now: Nanos, id: &I, source: &S) -> Released<H> {
        self.forget(now);
        if let Some((until, what)) = self.held.remove(id) {
            self.deadlines.remove(&(until, id.clone()));
            return Released::Held(what);
        }
        // A repeated release changes nothing: the first one stays.
        if self.tombstones.contains_key(id) {
            return Released::Early;
        }
        if self.is_full_for(source) {
            return Released::Refused;
        }
        self.bury(now, id, source);
        Released::Early
    }

    /// The value of `id`.
    pub fn held(&mut self, id: &I) -> Option<&mut H> {
        self.held.get_mut(id).map(|(_, what)| what)
    }

    /// Moves the deadline of `id`; `false` if it has no value.
    pub fn renew(&mut self, id: &I, until: Nanos) -> bool {
        let Some((old, _)) = self.held.get_mut(id) else { return false };
        let old = std::mem::replace(old, until);
        self.deadlines.remove(&(old, id.clone()));
        self.deadlines.insert((until, id.clone()))
    }

    /// Removes and returns one overdue id with its value. Call it until it returns `None`.
    pub fn expire(&mut self, now: Nanos) -> Option<(I, H)> {
        self.forget(now);
        if now < self.deadlines.first()?.0 {
            return None;
        }
        let (_, id) = self.deadlines.pop_first()?;
        let (_, what) = self.held.remove(&id)?;
        Some((id, what))
    }

    /// The next instant at which [`Register::expire`] has an effect, early releases included.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let (held, left) = (self.deadlines.first(), self.endings.first());
        held.into_iter().chain(left).map(|&(until, _)| until).min()
    }

    /// The bounds on early releases.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The number of ids with a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns `true` if no id has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The number of early releases.
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

    /// Extends the early release of a claimed id, so that even a late acquire finds it.
    fn keep_on(&mut self, now: Nanos, id: I) {
        let Some((until, _)) = self.tombstones.get_mut(&id) else { return };
        *until = now.plus(self.bounds.keep.max(Nanos::MICRO));
        self.endings.insert((*until, id));
    }

    /// Removes the early release of `id`; `false` if there is none.
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
