//! The key of one counter.
//!
//! Guarantees:
//! - [`CounterKey::injective`]: different domains, entries or strategies have different keys.
//! - [`CounterKey::joined`]: the same key as envoyproxy/ratelimit, collisions included.
//!
//! Not covered:
//! - Hashing and placement of keys (see the store).

use super::units::{Nanos, Unit};

/// The part of a limit that is in its key: the strategy, and window length where it matters.
///
/// A different value starts a fresh counter. The number of
/// requests is not in the key, so a changed limit keeps its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// GCRA. The debt in hits survives a change of the limit and of the period.
    Gcra,
    /// Windows of this length, aligned to the Unix epoch.
    FixedWindow(Nanos),
    /// Calendar windows.
    Calendar(Unit),
    /// Two interpolated windows of this length.
    SlidingWindow(Nanos),
    /// A log of arrivals. A change of the period keeps the log.
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

/// The key of one counter: bytes that a store hashes or saves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey(Bytes);

/// A small-buffer optimization: nearly every key is short and needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bytes {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Vec<u8>),
}

/// The longest key without an allocation, in bytes. With
/// its length and the enum tag it fills one cache line.
const SHORT: usize = 62;

/// The fixed-size prefix of a key: two tag bytes and a length in nanoseconds.
type Head = ([u8; 2], u64);

/// The encoded size of a [`Head`], in bytes.
const HEAD: usize = 10;

const CEILING: Head = ([b'b', 0], 0);

impl CounterKey {
    /// An empty key, used as a buffer for the `write_` methods.
    pub const EMPTY: Self = Self(Bytes::Short { len: 0, bytes: [0; SHORT] });

    /// Creates a key that is unique to this domain, these entries and this strategy.
    ///
    /// Every part is preceded by its length. `domain` must be shorter than 4 GiB, keys and values
    /// shorter than 64 KiB. The edge rejects longer ones. Cost: no allocation up to 62 bytes.
    pub fn injective<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_injective(domain, entries, counting);
        key
    }

    /// Writes the key of [`CounterKey::injective`] in place. This avoids moving a large value.
    pub fn write_injective<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) {
        self.write_lengths(head(b'i', counting), domain, entries);
    }

    /// Creates the key of a concurrency limit's bucket; unique, and never equal to a counter's key.
    pub fn ceiling<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_lengths(CEILING, domain, entries);
        key
    }

    /// Parses the domain and the entries from a bucket's key. Returns `None` for any other bytes.
    #[must_use]
    pub fn read_ceiling(name: &[u8]) -> Option<(&str, Vec<(&str, &str)>)> {
        let (form, rest) = name.split_first_chunk::<2>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        if (*form, u64::from_le_bytes(*length)) != CEILING {
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (domain, mut rest) = rest.split_at_checked(length)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (key, more) = piece(rest)?;
            let (value, more) = piece(more)?;
            entries.push((key, value));
            rest = more;
        }
        Some((std::str::from_utf8(domain).ok()?, entries))
    }

    fn write_lengths<'a>(
        &mut self,
        head: Head,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) {
        let mut rest = self.of(length(&[HEAD, 4, domain.len()], entries.clone(), 2));
        // Saturates. Longer parts would share a prefix, but the edge rejects them.
        let short = |piece: &str| u16::try_from(piece.len()).unwrap_or(u16::MAX).to_le_bytes();
        let length = u32::try_from(domain.len()).unwrap_or(u32::MAX).to_le_bytes();
        rest.put_head(head);
        rest.put(&length);
        rest.put(domain.as_bytes());
        for (name, value) in entries {
            for piece in [name, value] {
                rest.put(&short(piece));
                rest.put(piece.as_bytes());
            }
        }
    }

    /// Creates the key of envoyproxy/ratelimit,
    /// `domain_key_value_…`, for windows of its seven units.
    ///
    /// The key of envoyproxy/ratelimit ends with the start of the
    /// window. Here the start is part of the counter's state.
    pub fn joined<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_joined(domain, entries, counting);
        key
    }

    /// Writes the key of [`CounterKey::joined`] in place.
    pub fn write_joined<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) {
        let mut rest = self.of(length(&[HEAD, domain.len(), 1], entries.clone(), 1));
        rest.put_head(head(b'j', counting));
        let pieces = entries.flat_map(|(name, value)| [name, value]);
        for piece in std::iter::once(domain).chain(pieces) {
            rest.put(piece.as_bytes());
            rest.put(b"_");
        }
    }

    /// Formats a key of [`CounterKey::injective`] or [`CounterKey::ceiling`]
    /// for humans: the domain and the entries, joined with `_`.
    #[must_use]
    pub fn words(bytes: &[u8]) -> String {
        let take = |rest: &mut &[u8], width: usize| {
            let (length, left) = rest.split_at_checked(width)?;
            let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let (word, left) = left.split_at_checked(length)?;
            *rest = left;
            Some(String::from_utf8_lossy(word).into_owned())
        };
        let mut rest = bytes.get(HEAD..).unwrap_or_default();
        let domain = take(&mut rest, 4);
        let entries = std::iter::from_fn(|| take(&mut rest, 2));
        domain.into_iter().chain(entries).collect::<Vec<_>>().join("_")
    }

    /// Resets the key to `len` zero bytes and returns a writer for them.
    fn of(&mut self, len: usize) -> Rest<'_> {
        self.0 = match u8::try_from(len) {
            Ok(len) if usize::from(len) <= SHORT => Bytes::Short { len, bytes: [0; SHORT] },
            _ => Bytes::Long(vec![0; len]),
        };
        Rest(match &mut self.0 {
            Bytes::Short { bytes, .. } => bytes.get_mut(..len).unwrap_or_default(),
            Bytes::Long(bytes) => bytes,
        })
    }

    /// The encoded key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Bytes::Long(bytes) => bytes,
        }
    }

    /// Returns the key as envoyproxy/ratelimit writes it, without the start of
    /// the window. `None` if this key was not made by [`CounterKey::joined`].
    #[must_use]
    pub fn spelling(&self) -> Option<&[u8]> {
        let (head, spelling) = self.as_bytes().split_at_checked(HEAD)?;
        (head.first() == Some(&b'j')).then_some(spelling)
    }
}

/// A writer for the unwritten rest of a key.
struct Rest<'k>(&'k mut [u8]);

impl Rest<'_> {
    #[inline]
    fn put(&mut self, piece: &[u8]) {
        if let Some((place, behind)) = std::mem::take(&mut self.0).split_at_mut_checked(piece.len())
        {
            place.copy_from_slice(piece);
            self.0 = behind;
        }
    }

    // Written as two parts: `head` was just built from two parts,
    // and copying it as one block would stall the processor.
    #[inline]
    fn put_head(&mut self, (form, length): Head) {
        self.put(&form);
        self.put(&length.to_le_bytes());
    }
}

/// The length of a key: the parts in `begin`, then each name and value with `besides` extra bytes.
fn length<'a>(
    begin: &[usize],
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    besides: usize,
) -> usize {
    let begin = begin.iter().copied().fold(0, usize::saturating_add);
    let pieces = entries.flat_map(|(name, value)| [name, value]);
    pieces.fold(begin, |len, piece| len.saturating_add(besides).saturating_add(piece.len()))
}

/// Splits the first length-prefixed string off `bytes`.
fn piece(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (piece, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((std::str::from_utf8(piece).ok()?, rest))
}

const fn head(form: u8, counting: Counting) -> Head {
    let (code, length) = counting.code();
    ([form, code], length)
}
