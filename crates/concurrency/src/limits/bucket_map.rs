//! The buckets of this replica by name, bounded in number and in total name size.
//!
//! Guarantees:
//! - There are at most `max_buckets` buckets.
//! - All names together have at most `max_buckets` × [`NAME_BYTES_PER_BUCKET`] bytes, or
//!   [`MIN_NAME_BYTES`] if that is more.
//! - At a bound, a new bucket replaces idle buckets among [`EXAMINED_PER_INSERT`] examined ones.
//! - A bucket with permits, waiting requests, a share or unsent reports is never removed.
//! - Each insertion examines other buckets, so repeated attempts find every idle bucket.
//!
//! Not covered:
//! - Locking: the caller locks the whole map.
//! - The requests of a bucket: see `bucket`.
//!
//! Cost: a look-up is one hash of the name. An insertion at a bound locks up to
//! [`EXAMINED_PER_INSERT`] buckets while the map is locked, however many buckets there are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::kernel::units::Nanos;
use crate::limits::bucket::Bucket;

/// The number of buckets that one insertion at a bound examines. It is small, so that a flood of
/// new names does not scan all buckets each time.
const EXAMINED_PER_INSERT: usize = 16;
/// The allowed name bytes per bucket. Only the total of all names is bounded, so one name may be
/// longer.
const NAME_BYTES_PER_BUCKET: usize = 512;
/// The smallest bound on the total name bytes, for maps of few buckets.
const MIN_NAME_BYTES: usize = 1 << 20;

/// A bucket name, shared by the two collections of [`BucketMap`].
type SharedName = Arc<[u8]>;
/// An examined bucket: the instant since which it is idle (`None` if it is in use), its name, and
/// itself.
type ExaminedBucket = (Option<Nanos>, SharedName, Arc<Bucket>);

#[derive(Debug)]
pub(super) struct BucketMap {
    by_name: HashMap<SharedName, Arc<Bucket>>,
    /// The same buckets, in the order in which insertions examine them.
    examination_queue: VecDeque<(SharedName, Arc<Bucket>)>,
    max_buckets: usize,
    name_bytes: usize,
    max_name_bytes: usize,
    created: u64,
}

impl BucketMap {
    pub(super) fn new(most: usize) -> Self {
        let most_bytes = most.saturating_mul(NAME_BYTES_PER_BUCKET).max(MIN_NAME_BYTES);
        let (by_name, ring) = (HashMap::new(), VecDeque::new());
        Self {
            by_name,
            examination_queue: ring,
            max_buckets: most,
            name_bytes: 0,
            max_name_bytes: most_bytes,
            created: 0,
        }
    }

    pub(super) const fn max_buckets(&self) -> usize {
        self.max_buckets
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Arc<Bucket>> {
        self.by_name.get(name)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], &Arc<Bucket>)> {
        self.examination_queue.iter().map(|(name, bucket)| (&**name, bucket))
    }

    /// Returns the bucket `name`, and creates it if necessary. `make` receives a different number
    /// for each new bucket. Returns `None` if a bound is reached and no examined bucket is idle.
    pub(super) fn get_or_create(
        &mut self,
        name: &[u8],
        make: impl FnOnce(u64) -> Bucket,
    ) -> Option<Arc<Bucket>> {
        if let Some(bucket) = self.get(name) {
            return Some(Arc::clone(bucket));
        }
        if !self.has_room(name) && !self.make_room(name) {
            return None;
        }
        let (name, bucket) = (SharedName::from(name), Arc::new(make(self.created)));
        self.created = self.created.wrapping_add(1);
        self.name_bytes = self.name_bytes.saturating_add(name.len());
        self.by_name.insert(Arc::clone(&name), Arc::clone(&bucket));
        self.examination_queue.push_back((name, Arc::clone(&bucket)));
        Some(bucket)
    }

    /// Removes each idle bucket if the predicate accepts the instant since which it is idle.
    pub(super) fn retire_idle(&mut self, is_old: impl Fn(Nanos) -> bool) {
        let (by_name, bytes) = (&mut self.by_name, &mut self.name_bytes);
        self.examination_queue.retain(|(name, bucket)| {
            let retired = bucket.retire(&is_old);
            if retired {
                by_name.remove(name);
                *bytes = bytes.saturating_sub(name.len());
            }
            !retired
        });
    }

    fn has_room(&self, name: &[u8]) -> bool {
        self.len() < self.max_buckets
            && self.name_bytes.saturating_add(name.len()) <= self.max_name_bytes
    }

    /// Examines the next [`EXAMINED_PER_INSERT`] buckets, and removes idle ones until the new
    /// `name` fits. Returns `false` if `name` still does not fit.
    fn make_room(&mut self, name: &[u8]) -> bool {
        // A name that is longer than the bound must not evict other buckets.
        if self.max_buckets == 0 || self.max_name_bytes < name.len() {
            return false;
        }
        for (rests_since, name_of, bucket) in self.take_next() {
            let is_removed =
                rests_since.is_some() && !self.has_room(name) && bucket.retire(has_been_used);
            if is_removed {
                self.by_name.remove(&name_of);
                self.name_bytes = self.name_bytes.saturating_sub(name_of.len());
            } else {
                self.examination_queue.push_back((name_of, bucket));
            }
        }
        self.has_room(name)
    }

    /// Takes the buckets to examine next out of their queue, and returns them sorted by the instant
    /// since which they are idle.
    fn take_next(&mut self) -> SmallVec<[ExaminedBucket; EXAMINED_PER_INSERT]> {
        let few = EXAMINED_PER_INSERT.min(self.examination_queue.len());
        let examine = |(name, bucket): (SharedName, Arc<Bucket>)| {
            (bucket.unused_since().filter(|since| has_been_used(*since)), name, bucket)
        };
        let mut few: SmallVec<[ExaminedBucket; EXAMINED_PER_INSERT]> =
            self.examination_queue.drain(..few).map(examine).collect();
        few.sort_by_key(|(rests_since, ..)| *rests_since);
        few
    }
}

/// Returns `false` for a new bucket: the request that created it has not tried to acquire a permit
/// yet.
fn has_been_used(rests_since: Nanos) -> bool {
    rests_since != Nanos(0)
}
