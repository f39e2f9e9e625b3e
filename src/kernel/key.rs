//! The name of one counter.
//!
//! Guarantees: with [`CounterKey::injective`] distinct domains, entries or ways of counting have
//! distinct keys, because every piece stands behind its length. [`CounterKey::joined`] is the
//! reference's spelling and is as ambiguous as the reference's on purpose: counters that collide
//! there must collide here.
//! Leaves out: hashing and where a key lives, which is the backend's.

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
pub struct CounterKey(Bytes);

/// Nearly every key is short, and then lives without an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bytes {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Vec<u8>),
}

/// The most bytes of a short key: with its length and the variant, one cache line.
const SHORT: usize = 62;

/// What stands before every key: its form, and how it counts.
type Head = ([u8; 2], u64);

/// The bytes of a head.
const HEAD: usize = 10;

/// The head of a ceiling's bucket.
const CEILING: Head = ([b'b', 0], 0);

impl CounterKey {
    /// No counter's key: what one is written into.
    pub const EMPTY: Self = Self(Bytes::Short { len: 0, bytes: [0; SHORT] });

    /// A key no other domain, entries or counting can have.
    ///
    /// `domain` is shorter than 4 GiB, keys and values are shorter than 64 KiB; who reads questions refuses
    /// longer ones. Cost: no allocation up to 62 bytes.
    pub fn injective<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_injective(domain, entries, counting);
        key
    }

    /// Becomes the same. In place: a key is large, and what was written in pieces is slow to move.
    pub fn write_injective<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) {
        self.write_lengths(head(b'i', counting), domain, entries);
    }

    /// The name of a ceiling's bucket: as unmistakable, and no counter's key.
    pub fn ceiling<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_lengths(CEILING, domain, entries);
        key
    }

    /// The domain and the entries of a ceiling's bucket, as they were written into its name; `None`
    /// for bytes that are no such name.
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
        // The longest length stands for all that are longer, and only what is refused is.
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

    /// The reference's spelling, `domain_key_value_…`, for windows of its seven units.
    ///
    /// The start of the window, which ends the reference's key, is the counter's state here.
    pub fn joined<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        counting: Counting,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_joined(domain, entries, counting);
        key
    }

    /// Becomes the same.
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

    /// The words that a key of [`CounterKey::injective`] or [`CounterKey::ceiling`] was made of, for those
    /// who read: its domain and its entries, with `_` between them.
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

    /// Becomes so many zeros, to be written into.
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

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Bytes::Long(bytes) => bytes,
        }
    }

    /// The reference's spelling, without the start of the window that comes last there, where this
    /// key has it.
    #[must_use]
    pub fn spelling(&self) -> Option<&[u8]> {
        let (head, spelling) = self.as_bytes().split_at_checked(HEAD)?;
        (head.first() == Some(&b'j')).then_some(spelling)
    }
}

/// What is still to be written of a key.
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

    // In two pieces, because `head` was just made of two, and what was is slow to copy as one.
    #[inline]
    fn put_head(&mut self, (form, length): Head) {
        self.put(&form);
        self.put(&length.to_le_bytes());
    }
}

/// The length of a key that begins with pieces of `begin`, where each name and value takes so many bytes `besides` itself.
fn length<'a>(
    begin: &[usize],
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    besides: usize,
) -> usize {
    let begin = begin.iter().copied().fold(0, usize::saturating_add);
    let pieces = entries.flat_map(|(name, value)| [name, value]);
    pieces.fold(begin, |len, piece| len.saturating_add(besides).saturating_add(piece.len()))
}

/// The first key or value of an injective key's rest, and what comes after it.
fn piece(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (piece, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((std::str::from_utf8(piece).ok()?, rest))
}

const fn head(form: u8, counting: Counting) -> Head {
    let (code, length) = counting.code();
    ([form, code], length)
}
