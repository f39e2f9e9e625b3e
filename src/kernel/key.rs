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

/// The bytes before the first piece: the code and the length of [`Counting`].
const HEAD: usize = 9;

/// The name of one counter: bytes that a backend hashes or stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey(SmallVec<[u8; 64]>);

impl CounterKey {
    /// A key no other domain, entries or counting can have.
    pub fn injective<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
        counting: Counting,
    ) -> Self {
        let mut key = Self::open(counting);
        key.piece(domain);
        for (name, value) in entries {
            key.piece(name);
            key.piece(value);
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
        let mut key = Self::open(counting);
        // No length is this long, so no injective key begins like this.
        key.0.extend_from_slice(&[0xff; 4]);
        for piece in std::iter::once(domain).chain(entries.flat_map(|(name, value)| [name, value]))
        {
            key.0.extend_from_slice(piece.as_bytes());
            key.0.push(b'_');
        }
        key
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that keys which must live side by side have in common: the domain. A key of the
    /// reference's spelling, in which no domain can be told, has only itself.
    #[must_use]
    pub fn domain(&self) -> &[u8] {
        let domain = self.0.get(HEAD..).and_then(|rest| {
            let (length, rest) = rest.split_first_chunk()?;
            rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)
        });
        domain.unwrap_or(&self.0)
    }

    fn open(counting: Counting) -> Self {
        let (code, length) = counting.code();
        let mut bytes = SmallVec::new();
        bytes.push(code);
        bytes.extend_from_slice(&length.to_le_bytes());
        Self(bytes)
    }

    fn piece(&mut self, text: &str) {
        // Texts are shorter than 64 KiB (`Refusal::EntryTooLong`), so the length is always exact.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}
