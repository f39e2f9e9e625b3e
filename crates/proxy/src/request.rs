//! The descriptors of a request, and their hashes.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use crate::wire::api;

/// The keys and values of one descriptor.
pub type DescriptorEntries<'a> = SmallVec<[(&'a str, Cow<'a, str>); 4]>;

/// The largest length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// The longest value that a rule keeps, in bytes. Of a longer one, Sluicegate names a text with its
/// hash.
pub const MAX_VALUE_BYTES: usize = 256;

/// The largest size of the domain, the keys and the values of a descriptor, in bytes, and of all
/// descriptors of a request if a value counts as at most [`MAX_VALUE_BYTES`]. It is half of the
/// largest message of Sluicegate. Each entry counts as 64 bytes more.
pub const MAX_REQUEST_BYTES: usize = 512 * 1_024;

/// The largest number of descriptors of a request.
const MAX_DESCRIPTORS: usize = 1_000;

const ENTRY_OVERHEAD: usize = 64;

/// A keyed hash of a domain and a descriptor.
pub(crate) type DescriptorHash = [u64; 2];

/// Returns `true` if Sluicegate accepts these descriptors. It ends the stream of a proxy that sends
/// others.
pub(crate) fn is_accepted(domain: &str, descriptors: &[DescriptorEntries<'_>]) -> bool {
    let mut kept_bytes = domain.len();
    for entries in descriptors {
        let mut bytes = domain.len();
        for (key, value) in entries {
            if MAX_KEY_BYTES < key.len() {
                return false;
            }
            bytes = bytes.saturating_add(key.len() + value.len() + ENTRY_OVERHEAD);
            kept_bytes += key.len() + value.len().min(MAX_VALUE_BYTES) + ENTRY_OVERHEAD;
        }
        if entries.is_empty() || MAX_REQUEST_BYTES < bytes {
            return false;
        }
    }
    descriptors.len() <= MAX_DESCRIPTORS && kept_bytes <= MAX_REQUEST_BYTES
}

/// Returns the size of copies of the texts in bytes, with a constant for each entry.
pub(crate) fn text_bytes(domain: &str, descriptors: &[DescriptorEntries<'_>]) -> usize {
    let entries = descriptors.iter().flatten();
    let bytes = entries.map(|(key, value)| key.len() + value.len() + ENTRY_OVERHEAD);
    domain.len() * descriptors.len() + bytes.sum::<usize>()
}

/// Returns `true` if a rule does not keep all values of the descriptor.
pub(crate) fn has_long_value(entries: &DescriptorEntries<'_>) -> bool {
    entries.iter().any(|(_, value)| MAX_VALUE_BYTES < value.len())
}

/// A domain and a descriptor, independent of the request. Copies share the texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedDescriptor {
    pub(crate) hash: DescriptorHash,
    pub(crate) domain: Arc<str>,
    pub(crate) entries: Arc<[(Box<str>, Box<str>)]>,
}

impl OwnedDescriptor {
    pub(crate) fn new(hash: DescriptorHash, domain: &str, entries: &DescriptorEntries<'_>) -> Self {
        let entries = entries.iter().map(|(key, value)| (Box::from(*key), Box::from(&**value)));
        Self { hash, domain: domain.into(), entries: entries.collect() }
    }

    /// Returns the descriptor with the texts of its counter instead of long values. Without a
    /// counter no rule matches, and a long value becomes empty.
    pub(crate) fn with_short_values(self, counter: &[(Box<str>, Box<str>)]) -> Self {
        if !self.has_long_value() {
            return self;
        }
        let mut texts = counter.iter().map(|(_, value)| &**value);
        let entries = self.entries.iter().map(|(key, value)| {
            let text = texts.next().unwrap_or_default();
            let is_kept = value.len() <= MAX_VALUE_BYTES;
            (key.clone(), if is_kept { value.clone() } else { text.into() })
        });
        Self { entries: entries.collect(), ..self }
    }

    pub(crate) fn has_long_value(&self) -> bool {
        self.entries.iter().any(|(_, value)| MAX_VALUE_BYTES < value.len())
    }

    /// Returns the size of the texts in bytes, with a constant for each entry.
    pub(crate) fn text_bytes(&self) -> usize {
        let entries = self.entries.iter().map(|(key, value)| key.len() + value.len());
        self.domain.len() + entries.map(|bytes| bytes + ENTRY_OVERHEAD).sum::<usize>()
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
