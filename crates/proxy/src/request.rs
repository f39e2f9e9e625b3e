//! The descriptors of a request, and their hashes.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use crate::wire::api;

/// The keys and values of one descriptor.
pub type DescriptorEntries<'a> = SmallVec<[(&'a str, Cow<'a, str>); 4]>;

/// The largest length of a key or a value, in bytes.
pub const MAX_TEXT_BYTES: usize = u16::MAX as usize;

/// The largest size of the domain, the keys and the values of a request, in bytes. It is half of
/// the largest message of Sluicegate. Each entry counts as 64 bytes more.
pub const MAX_REQUEST_BYTES: usize = 512 * 1_024;

/// The largest number of descriptors of a request.
const MAX_DESCRIPTORS: usize = 1_000;

const ENTRY_OVERHEAD: usize = 64;

/// A keyed hash of a domain and a descriptor.
pub(crate) type DescriptorHash = [u64; 2];

/// Returns `true` if Sluicegate accepts these descriptors. It ends the stream of a proxy that sends
/// others.
pub(crate) fn is_accepted(domain: &str, descriptors: &[DescriptorEntries<'_>]) -> bool {
    let mut bytes = domain.len();
    for (key, value) in descriptors.iter().flatten() {
        if MAX_TEXT_BYTES < key.len() || MAX_TEXT_BYTES < value.len() {
            return false;
        }
        bytes = bytes.saturating_add(key.len() + value.len() + ENTRY_OVERHEAD);
    }
    let has_entries = descriptors.iter().all(|entries| !entries.is_empty());
    has_entries && descriptors.len() <= MAX_DESCRIPTORS && bytes <= MAX_REQUEST_BYTES
}

/// A domain and a descriptor, independent of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedDescriptor {
    pub(crate) hash: DescriptorHash,
    pub(crate) domain: Arc<str>,
    pub(crate) entries: Box<[(Box<str>, Box<str>)]>,
}

impl OwnedDescriptor {
    pub(crate) fn new(hash: DescriptorHash, domain: &str, entries: &DescriptorEntries<'_>) -> Self {
        let entries = entries.iter().map(|(key, value)| (Box::from(*key), Box::from(&**value)));
        Self { hash, domain: domain.into(), entries: entries.collect() }
    }

    pub(crate) fn entry_messages(&self) -> Vec<api::LeaseEntry> {
        crate::wire::entries(self.entries.iter().map(|(key, value)| (&**key, &**value)))
    }
}

/// Hashes descriptors with a random key, so that no client can choose descriptors of one hash.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorHasher(SipHasher13);

impl DescriptorHasher {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        Self(SipHasher13::new_with_keys(random.hash_one(1_u8), random.hash_one(2_u8)))
    }

    /// Returns the hash of a descriptor. No allocation.
    pub(crate) fn hash(&self, domain: &str, entries: &DescriptorEntries<'_>) -> DescriptorHash {
        let mut hasher = self.0;
        write_text(&mut hasher, domain);
        for (key, value) in entries {
            write_text(&mut hasher, key);
            write_text(&mut hasher, value);
        }
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }

    /// Returns the hash of the keys of a descriptor, without their values.
    pub(crate) fn hash_keys(
        &self,
        domain: &str,
        entries: &DescriptorEntries<'_>,
    ) -> DescriptorHash {
        let mut hasher = self.0;
        // No length of a text, so that no descriptor has this hash.
        hasher.write_u64(u64::MAX);
        write_text(&mut hasher, domain);
        entries.iter().for_each(|(key, _)| write_text(&mut hasher, key));
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

fn write_text(hasher: &mut SipHasher13, text: &str) {
    hasher.write_usize(text.len());
    hasher.write(text.as_bytes());
}
