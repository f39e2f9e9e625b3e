//! The buckets of a replica by name, bounded in number and in bytes.
//!
//! Guarantees:
//! - There are at most `max_buckets` buckets.
//! - All names together have at most `max_buckets` × [`NAME_BYTES_PER_BUCKET`] bytes, or [`MIN_NAME_BYTES`].
//! - At the bound, a new bucket replaces idle ones among the next [`EXAMINED_PER_INSERT`].
//! - Buckets with permits, waiters, a share or unsent reports are never removed.
//! - Retries examine other buckets, so they find an idle one if there is any.
//!
//! Not covered:
//! - The lock around this map.
//! - The content of a bucket.
//!
//! Cost: a look-up is one hash of the name. Making room takes the locks of [`EXAMINED_PER_INSERT`]
//! buckets under the lock of the map, independent of the number of buckets.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket::Bucket;
use crate::kernel::units::Nanos;

/// The number of buckets that one new bucket examines. Bounded, so
/// that a flood of new names cannot scan all buckets each time.
const EXAMINED_PER_INSERT: usize = 16;
/// The bytes of names per allowed bucket. The bound applies to the sum.
const NAME_BYTES_PER_BUCKET: usize = 512;
/// The lower bound of that sum, for small numbers of buckets.
const MIN_NAME_BYTES: usize = 1 << 20;

/// A name, shared by the map and the ring.
type SharedName = Arc<[u8]>;
/// An examined bucket, and the instant since when it is idle.
type ExaminedBucket = (Option<Nanos>, SharedName, Arc<Bucket>);

#[derive(Debug)]
pub(super) struct BucketMap {
    by_name: HashMap<SharedName, Arc<Bucket>>,
    /// The same buckets in the order of examination.
    ring: VecDeque<(SharedName, Arc<Bucket>)>,
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
            ring,
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
        self.ring.iter().map(|(name, bucket)| (&**name, bucket))
    }

    /// Returns the bucket `name`, and creates it if necessary. `make` receives
    /// a number that no other bucket gets. Returns `None` if there is no room.
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
        self.ring.push_back((name, Arc::clone(&bucket)));
        Some(bucket)
    }

    /// Removes the buckets that are idle since an instant that satisfies `old`.
    pub(super) fn retire_idle(&mut self, old: impl Fn(Nanos) -> bool) {
        let (by_name, bytes) = (&mut self.by_name, &mut self.name_bytes);
        self.ring.retain(|(name, bucket)| {
            let retired = bucket.retire(&old);
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

    /// Removes idle buckets among the next few until
    /// `name` fits. Returns `false` if it does not fit.
    fn make_room(&mut self, name: &[u8]) -> bool {
        // A name that can never fit must not evict other buckets.
        if self.max_buckets == 0 || self.max_name_bytes < name.len() {
            return false;
        }
        for (rests_since, name_of, bucket) in self.take_next() {
            let goes =
                rests_since.is_some() && !self.has_room(name) && bucket.retire(has_been_used);
            if goes {
                self.by_name.remove(&name_of);
                self.name_bytes = self.name_bytes.saturating_sub(name_of.len());
            } else {
                self.ring.push_back((name_of, bucket));
            }
        }
        self.has_room(name)
    }

    /// Takes the next buckets out of the ring, longest idle first.
    fn take_next(&mut self) -> SmallVec<[ExaminedBucket; EXAMINED_PER_INSERT]> {
        let few = EXAMINED_PER_INSERT.min(self.ring.len());
        let looked = |(name, bucket): (SharedName, Arc<Bucket>)| {
            (bucket.unused_since().filter(|since| has_been_used(*since)), name, bucket)
        };
        let mut few: SmallVec<[ExaminedBucket; EXAMINED_PER_INSERT]> =
            self.ring.drain(..few).map(looked).collect();
        few.sort_by_key(|(rests_since, ..)| *rests_since);
        few
    }
}

/// Returns `false` for a new bucket: the request that created it has not arrived there yet.
fn has_been_used(rests_since: Nanos) -> bool {
    rests_since != Nanos(0)
}
