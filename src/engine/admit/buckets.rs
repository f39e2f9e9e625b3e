//! All buckets of a replica, by name, within a number and a size.
//!
//! Guarantees: there are never more buckets than `most`, nor more bytes of their names than [`BYTES_EACH`] for each of
//! those together ([`LEAST_BYTES`] where that is more). One more makes those go that rest, of [`LOOKS`] that are looked
//! at those first that have rested for longest; whatever is in flight, waits, has a seat in the fleet (or has given it
//! up, and the store has not answered that yet) or is told to a store stays. Who finds no room has had as many looked at, and the next one finds others: one bucket that rests is
//! found by whoever asks often enough.
//! Cost: a look-up one hash of the name; making room, under the map's lock, [`LOOKS`] locks of buckets, however many there are.
//! Leaves out: the lock around all of them, and what a bucket is.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket::Bucket;
use crate::kernel::units::Nanos;

/// How many buckets one more looks at for those that may go: a flood of new names must not buy a look at all of them
/// apiece.
const LOOKS: usize = 16;
/// How many bytes of names there may be for each bucket that there may be, all together.
const BYTES_EACH: usize = 512;
/// How many there may be where few buckets may.
const LEAST_BYTES: usize = 1 << 20;

/// A bucket's name, of which there is one copy here.
type Key = Arc<[u8]>;
/// A bucket that was looked at, and since when it has rested, if it does.
type Looked = (Option<Nanos>, Key, Arc<Bucket>);

#[derive(Debug)]
pub(super) struct Buckets {
    by_name: HashMap<Key, Arc<Bucket>>,
    /// The same in the order in which they are looked at.
    ring: VecDeque<(Key, Arc<Bucket>)>,
    most: usize,
    bytes: usize,
    most_bytes: usize,
    /// How many were ever made.
    made: u64,
}

impl Buckets {
    /// None yet, and never more than `most`.
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

    /// That of `name`; where there is none it is made, of a number that no other has, and nothing where there is no room.
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

    /// Drops those that rest and are `old` enough.
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

    /// Whether there is room for `name` once those that rest, of the next few, have gone as far as it takes.
    fn make_room(&mut self, name: &[u8]) -> bool {
        // Whoever asks for what there never is room for sends nobody away.
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

    /// Takes the next few out of the ring, those that have rested for longest first.
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

/// Nobody has come to a new bucket yet, and whoever made it is about to.
fn is_known(rests_since: Nanos) -> bool {
    rests_since != Nanos(0)
}
