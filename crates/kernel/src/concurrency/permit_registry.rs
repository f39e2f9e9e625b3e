//! The map from request ids to permits, with the early releases.
//!
//! Acquire and release can be two calls with a request id that the proxy creates, and the release
//! can arrive first. A release of an unknown id is kept as an early release. A later acquire of
//! that id finds that its request is already over.
//!
//! Guarantees:
//! - The value of an id is returned once: by its release or at its deadline.
//! - At most one acquire of an id is in progress at a time ([`PermitRegistry::claim`]).
//! - The early release of a claimed id does not expire.
//! - Early releases are bounded per source and in total.
//! - When early releases reach a bound, new ones are rejected and none is evicted.
//! - Cost: O(log n) in ids and early releases; at most two copies of an id per entry.
//! - An acquire of an id after its release is a new request.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::Nanos;

/// The bounds on early releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EarlyReleaseLimits {
    /// The largest number of early releases from one source.
    pub per_source: u32,
    /// The largest number of early releases from all sources together.
    pub total: u32,
    /// The time for which an early release is kept: longer than a release can precede its acquire.
    pub lifetime: Nanos,
}

/// The result of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterOutcome<H> {
    /// The value is stored under the id.
    Registered,
    /// The release arrived first: the request is over, and the value is returned.
    AlreadyReleased(H),
    /// The id already has a value. An id is for one request, so the new value is returned.
    AlreadyRegistered(H),
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome<H> {
    /// The value of the id, for the caller to free.
    Released(H),
    /// The id is unknown, so its release is kept as an early release for a later acquire.
    EarlyRelease,
    /// The id is unknown and a bound of early releases is reached, so the release is dropped.
    TableFull,
}

/// The request ids of one replica, each with a value that stands for a permit. `I` is a request id,
/// `S` the source of a release, `H` the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitRegistry<I: Ord, S: Ord, H> {
    bounds: EarlyReleaseLimits,
    claimed: BTreeSet<I>,
    values: BTreeMap<I, (Nanos, H)>,
    deadlines: BTreeSet<(Nanos, I)>,
    early_releases: BTreeMap<I, (Nanos, S)>,
    early_release_expiries: BTreeSet<(Nanos, I)>,
    early_releases_by_source: BTreeMap<S, u32>,
}

impl<I: Ord + Clone, S: Ord + Clone, H> PermitRegistry<I, S, H> {
    /// An empty registry.
    #[must_use]
    pub const fn new(limits: EarlyReleaseLimits) -> Self {
        Self {
            bounds: limits,
            claimed: BTreeSet::new(),
            values: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            early_releases: BTreeMap::new(),
            early_release_expiries: BTreeSet::new(),
            early_releases_by_source: BTreeMap::new(),
        }
    }

    /// Marks `id` as being acquired, until [`PermitRegistry::unclaim`]; `false` if it already is. A
    /// release during the acquire becomes an early release.
    pub fn claim(&mut self, id: I) -> bool {
        self.claimed.insert(id)
    }

    /// Removes the mark of [`PermitRegistry::claim`], after the acquire succeeded or failed.
    pub fn unclaim(&mut self, id: &I) {
        self.claimed.remove(id);
    }

    /// Stores `value` under `id` until its release or until `deadline`.
    pub fn acquire(&mut self, now: Nanos, id: I, deadline: Nanos, value: H) -> RegisterOutcome<H> {
        self.expire_early_releases(now);
        if self.values.contains_key(&id) {
            return RegisterOutcome::AlreadyRegistered(value);
        }
        if self.remove_early_release(&id) {
            return RegisterOutcome::AlreadyReleased(value);
        }
        self.deadlines.insert((deadline, id.clone()));
        self.values.insert(id, (deadline, value));
        RegisterOutcome::Registered
    }

    /// Releases `id` on behalf of `source`.
    pub fn release(&mut self, now: Nanos, id: &I, source: &S) -> ReleaseOutcome<H> {
        self.expire_early_releases(now);
        if let Some((until, value)) = self.values.remove(id) {
            self.deadlines.remove(&(until, id.clone()));
            return ReleaseOutcome::Released(value);
        }
        // A repeated early release changes nothing: the first one stays.
        if self.early_releases.contains_key(id) {
            return ReleaseOutcome::EarlyRelease;
        }
        if self.is_full_for(source) {
            return ReleaseOutcome::TableFull;
        }
        self.insert_early_release(now, id, source);
        ReleaseOutcome::EarlyRelease
    }

    /// The value of `id`.
    pub fn value_mut(&mut self, id: &I) -> Option<&mut H> {
        self.values.get_mut(id).map(|(_, value)| value)
    }

    /// Moves the deadline of `id`; `false` if it has no value.
    pub fn renew(&mut self, id: &I, deadline: Nanos) -> bool {
        let Some((old, _)) = self.values.get_mut(id) else { return false };
        let old = std::mem::replace(old, deadline);
        self.deadlines.remove(&(old, id.clone()));
        self.deadlines.insert((deadline, id.clone()))
    }

    /// Removes and returns one overdue id with its value. Call this until it returns `None`.
    pub fn remove_overdue(&mut self, now: Nanos) -> Option<(I, H)> {
        self.expire_early_releases(now);
        if now < self.deadlines.first()?.0 {
            return None;
        }
        let (_, id) = self.deadlines.pop_first()?;
        let (_, value) = self.values.remove(&id)?;
        Some((id, value))
    }

    /// The bounds on early releases.
    #[must_use]
    pub const fn limits(&self) -> EarlyReleaseLimits {
        self.bounds
    }

    /// The number of ids with a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns `true` if no id has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The number of early releases.
    #[must_use]
    pub fn early_release_count(&self) -> usize {
        self.early_releases.len()
    }

    fn expire_early_releases(&mut self, now: Nanos) {
        while let Some((until, _)) = self.early_release_expiries.first() {
            if now < *until {
                return;
            }
            let Some((_, id)) = self.early_release_expiries.pop_first() else { return };
            if self.claimed.contains(&id) {
                self.extend_early_release(now, id);
            } else {
                self.remove_early_release(&id);
            }
        }
    }

    /// Extends the early release of an id that is being acquired, so that a late acquire finds it.
    fn extend_early_release(&mut self, now: Nanos, id: I) {
        let Some((until, _)) = self.early_releases.get_mut(&id) else { return };
        *until = now.plus(self.bounds.lifetime.max(Nanos::MICRO));
        self.early_release_expiries.insert((*until, id));
    }

    fn remove_early_release(&mut self, id: &I) -> bool {
        let Some((until, source)) = self.early_releases.remove(id) else { return false };
        self.early_release_expiries.remove(&(until, id.clone()));
        let source_count =
            self.early_releases_by_source.remove(&source).unwrap_or(0).saturating_sub(1);
        if 0 < source_count {
            self.early_releases_by_source.insert(source, source_count);
        }
        true
    }

    fn is_full_for(&self, source: &S) -> bool {
        let total = u32::try_from(self.early_releases.len()).unwrap_or(u32::MAX);
        let source_count = self.early_releases_by_source.get(source).copied().unwrap_or(0);
        self.bounds.total <= total || self.bounds.per_source <= source_count
    }

    fn insert_early_release(&mut self, now: Nanos, id: &I, source: &S) {
        let until = now.plus(self.bounds.lifetime);
        self.early_release_expiries.insert((until, id.clone()));
        self.early_releases.insert(id.clone(), (until, source.clone()));
        let source_count = self.early_releases_by_source.entry(source.clone()).or_insert(0);
        *source_count = source_count.saturating_add(1);
    }
}
