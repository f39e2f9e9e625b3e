//! The buckets of a replica by name, bounded in number and in bytes.
//!
//! Guarantees:
//! - There are at most `most` buckets.
//! - All names together have at most `most` × [`BYTES_EACH`] bytes, or [`LEAST_BYTES`].
//! - At the bound, a new bucket replaces idle ones among the next [`LOOKS`].
//! - Buckets with permits, waiters, a share or unsent reports are never removed.
//! - Retries examine other buckets, so they find an idle one if there is any.
//!
//! Not covered:
//! - The lock around this map.
//! - The content of a bucket.
//!
//! Cost: a look-up is one hash of the name. Making room takes the locks of [`LOOKS`]
//! buckets under the lock of the map, independent of the number of buckets.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket::Bucket;
use crate::kernel::units::Nanos;

/// The number of buckets that one new bucket examines. Bounded, so
/// that a flood of new names cannot scan all buckets each time.
const LOOKS: usize = 16;
/// The bytes of names per allowed bucket. The bound applies to the sum.
const BYTES_EACH: usize = 512;
/// The lower bound of that sum, for small numbers of buckets.
const LEAST_BYTES: usize = 1 << 20;

/// A name, shared by the map and the ring.
type Key = Arc<[u8]>;
/// An examined bucket, and the instant since when it is idle.
type Looked = (Option<Nanos>, Key, Arc<Bucket>);

#[derive(Debug)]
pub(super) struct Buckets {
    by_name: HashMap<Key, Arc<Bucket>>,
    /// The same buckets in the order of examination.
    ring: VecDeque<(Key, Arc<Bucket>)>,
    most: usize,
    bytes: usize,
    most_bytes: usize,
    made: u64,
}

impl Buckets {
    pub(super) fn new(most: usize) -> Self {
        let most_bytes = most.saturating_mul(BYTES_EACH).max(LEAST_BYTES);
        let (by_name, ring) = (HashMap::new(), VecDeque::new());
        Self { by_name, ring, most, bytes: 0, most_bytes, made: 0 }
    }

    pub(super) const fn most(&self) -> usize {
        self.most
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Arc<Bucket>> {
        self.by_name.get(name)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], &Arc<Bucket>)> {
        self.ring.iter().map(|(name, bucket)| (&**name, bucket))
    }

    /// Returns the bucket `name`, and creates it if necessary. `make` receives
    /// a number that no other bucket gets. Returns `None` if there is no room.
    pub(super) fn get_or_make(
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
        let (name, bucket) = (Key::from(name), Arc::new(make(self.made)));
        self.made = self.made.wrapping_add(1);
        self.bytes = self.bytes.saturating_add(name.len());
        self.by_name.insert(Arc::clone(&name), Arc::clone(&bucket));
        self.ring.push_back((name, Arc::clone(&bucket)));
        Some(bucket)
    }

    /// Removes the buckets that are idle since an instant that satisfies `old`.
    pub(super) fn retire(&mut self, old: impl Fn(Nanos) -> bool) {
        let (by_name, bytes) = (&mut self.by_name, &mut self.bytes);
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
        self.len() < self.most && self.bytes.saturating_add(name.len()) <= self.most_bytes
    }

    /// Removes idle buckets among the next few until
    /// `name` fits. Returns `false` if it does not fit.
    fn make_room(&mut self, name: &[u8]) -> bool {
        // A name that can never fit must not evict other buckets.
        if self.most == 0 || self.most_bytes < name.len() {
            return false;
        }
        for (rests_since, name_of, bucket) in self.next_few() {
            let goes = rests_since.is_some() && !self.has_room(name) && bucket.retire(is_known);
            if goes {
                self.by_name.remove(&name_of);
                self.bytes = self.bytes.saturating_sub(name_of.len());
            } else {
                self.ring.push_back((name_of, bucket));
            }
        }
        self.has_room(name)
    }

    /// Takes the next buckets out of the ring, longest idle first.
    fn next_few(&mut self) -> SmallVec<[Looked; LOOKS]> {
        let few = LOOKS.min(self.ring.len());
        let looked = |(name, bucket): (Key, Arc<Bucket>)| {
            (bucket.rests_since().filter(|since| is_known(*since)), name, bucket)
        };
        let mut few: SmallVec<[Looked; LOOKS]> = self.ring.drain(..few).map(looked).collect();
        few.sort_by_key(|(rests_since, ..)| *rests_since);
        few
    }
}

/// Returns `false` for a new bucket: the request that created it has not arrived there yet.
fn is_known(rests_since: Nanos) -> bool {
    rests_since != Nanos(0)
}
