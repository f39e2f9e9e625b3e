//! The name of one counter.
//!
//! Guarantees: with [`CounterKey::injective`] distinct domains, entries or ways of counting have
//! distinct keys, because every piece stands behind its length. [`CounterKey::joined`] is the
//! reference's spelling and is as ambiguous as the reference's on purpose: counters that collide
//! there must collide here.
//! Leaves out: hashing and where a key lives, which is the backend's.

use smallvec::SmallVec;

use super::units::{Nanos, Unit};

/// How a counter counts, as far as its key is concerned: changing it starts a fresh counter.
///
/// The limit's number is not in it, so a changed limit keeps its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// GCRA; keeps its debt in hits across changed limits, of any period.
    Gcra,
    /// Windows of this length, aligned to the epoch.
    FixedWindow(Nanos),
    /// A calendar's windows.
    Calendar(Unit),
    /// Two interpolated windows of this length.
    SlidingWindow(Nanos),
    /// A log of arrivals; its period may change.
    SlidingLog,
}

impl Counting {
    const fn code(self) -> (u8, u64) {
        match self {
            Self::Gcra => (b'g', 0),
            Self::FixedWindow(length) => (b'f', length.0),
            Self::Calendar(unit) => (b'c', unit.length().0),
            Self::SlidingWindow(length) => (b's', length.0),
            Self::SlidingLog => (b'l', 0),
        }
    }
}

/// The name of one counter: bytes that a backend hashes or stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey(SmallVec<[u8; 64]>);

impl CounterKey {
    /// A key no other domain, entries or counting can have.
    ///
    /// `domain` is shorter than 4 GiB, keys and values are shorter than 64 KiB; the engine refuses
    /// longer ones.
    pub fn injective<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
        counting: Counting,
    ) -> Self {
        let mut key = Self::open(b'i', counting);
        // The longest length stands for all that are longer, and only what is refused is.
        let length = u32::try_from(domain.len()).unwrap_or(u32::MAX);
        key.put(&length.to_le_bytes(), domain);
        for (name, value) in entries {
            for piece in [name, value] {
                let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
                key.put(&length.to_le_bytes(), piece);
            }
        }
        key
    }

    /// The reference's spelling, `domain_key_value_…`, for windows of its seven units.
    ///
    /// The start of the window, which ends the reference's key, is the counter's state here.
    pub fn joined<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
        counting: Counting,
    ) -> Self {
        let mut key = Self::open(b'j', counting);
        key.put(&[], domain);
        for piece in entries.flat_map(|(name, value)| [name, value]) {
            key.put(b"_", piece);
        }
        key.put(b"_", "");
        key
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn open(form: u8, counting: Counting) -> Self {
        let (code, length) = counting.code();
        let mut bytes = SmallVec::from_slice(&[form, code]);
        if length != 0 {
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        Self(bytes)
    }

    /// Room first, then two copies: growing byte by byte costs more than the rest of a decision.
    fn put(&mut self, head: &[u8], text: &str) {
        let start = self.0.len();
        let middle = start.saturating_add(head.len());
        let end = middle.saturating_add(text.len());
        self.0.resize(end, 0);
        if let Some((first, second)) =
            self.0.get_mut(start..).and_then(|new| new.split_at_mut_checked(head.len()))
        {
            first.copy_from_slice(head);
            second.copy_from_slice(text.as_bytes());
        }
    }
}
