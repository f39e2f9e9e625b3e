//! The key of one counter: the bytes that name it in the store.
//!
//! Guarantees:
//! - [`CounterKey::unique`]: different domains, entries or strategies get different keys.
//! - [`CounterKey::compatible`]: the key of envoyproxy/ratelimit, which can be equal for two
//!   descriptors.

use super::units::{Nanos, Unit};

/// The strategy and window length of a limit, as its counter key contains them. A change of either
/// starts an empty counter. A change of the requests per unit keeps the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStrategy {
    /// The generic cell rate algorithm. Its debt in hits survives a change of limit and period.
    Gcra,
    /// Windows of this length, aligned to the Unix epoch.
    FixedWindow(Nanos),
    /// Windows of a calendar unit, for example calendar months.
    Calendar(Unit),
    /// Two windows of this length; the hits of the previous window count in part.
    SlidingWindow(Nanos),
    /// A log of arrivals. A change of the period keeps the log.
    SlidingLog,
}

impl KeyStrategy {
    const fn tag(self) -> (u8, u64) {
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
pub struct CounterKey(KeyBytes);

/// A small-buffer optimization: nearly every key is short and needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum KeyBytes {
    Short { len: u8, bytes: [u8; MAX_INLINE_LEN] },
    Long(Vec<u8>),
}

/// The longest key without an allocation, in bytes: one cache line with its length and enum tag.
const MAX_INLINE_LEN: usize = 62;

/// The fixed-size prefix of a key: two tag bytes and the window length in nanoseconds, or 0.
type KeyHead = ([u8; 2], u64);

const HEAD_LEN: usize = 10;

/// The first byte of the key of a penalty's counter. The byte after it tells strikes and bans apart.
const PENALTY_TAG: u8 = b'p';

const BUCKET_HEAD: KeyHead = ([b'b', 0], 0);

/// The first bytes of a budget's key. The number after them is the unit.
const BUDGET_TAG: [u8; 2] = [b'u', 0];

impl CounterKey {
    /// An empty key, used as a buffer for the `write_` methods.
    pub const EMPTY: Self = Self(KeyBytes::Short { len: 0, bytes: [0; MAX_INLINE_LEN] });

    /// Creates a key that is unique to this domain, these entries and this strategy.
    ///
    /// `domain` must be shorter than 4 GiB, and the keys and values of entries shorter than 64 KiB.
    /// The protocol servers (`edge`) reject longer keys, and the descriptor tree hashes longer
    /// values. Cost: no allocation up to 62 bytes.
    pub fn unique<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        strategy: KeyStrategy,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_unique(domain, entries, strategy);
        key
    }

    /// Writes the key of [`CounterKey::unique`] in place. This avoids moving a large value.
    pub fn write_unique<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        strategy: KeyStrategy,
    ) {
        self.write_length_prefixed(head(b'i', strategy), domain, entries);
    }

    /// Writes the key of the limit `name` in a list `rate_limits`. Different names get different
    /// keys. They never equal a key of [`CounterKey::unique`].
    pub fn write_of_list<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        strategy: KeyStrategy,
        name: &'a str,
    ) {
        let entries = entries.chain(std::iter::once(("", name)));
        self.write_length_prefixed(head(b'n', strategy), domain, entries);
    }

    /// Creates the key of a concurrency limit's bucket; it is never equal to a counter's key.
    pub fn concurrency_bucket<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_length_prefixed(BUCKET_HEAD, domain, entries);
        key
    }

    /// Creates the key of a budget; it is never equal to a counter's key. `unit` is the number of the
    /// budget's unit: an amount in another unit is another budget.
    pub fn budget<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        unit: u64,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_length_prefixed((BUDGET_TAG, unit), domain, entries);
        key
    }

    /// Creates the key of the counter with the strikes against this counter's key.
    #[must_use]
    pub fn strikes(&self) -> Self {
        self.of_penalty(b's')
    }

    /// Creates the key of the counter that has a hit while this counter's key is banned.
    #[must_use]
    pub fn ban(&self) -> Self {
        self.of_penalty(b'b')
    }

    /// Creates a key that is never equal to that of a limit: the bytes of this one after a tag.
    fn of_penalty(&self, part: u8) -> Self {
        let (mut key, own) = (Self::EMPTY, self.as_bytes());
        let mut rest = key.reset_zeroed(own.len().saturating_add(2));
        rest.put(&[PENALTY_TAG, part]);
        rest.put(own);
        key
    }

    /// Parses the domain and the entries from a budget's key. Returns `None` for any other bytes.
    #[must_use]
    pub fn parse_budget(name: &[u8]) -> Option<(&str, Vec<(&str, &str)>)> {
        let (head, rest) = name.split_at_checked(HEAD_LEN)?;
        head.starts_with(&BUDGET_TAG).then(|| split_domain_and_entries(rest)).flatten()
    }

    /// Parses the domain and the entries from a bucket's key. Returns `None` for any other bytes.
    #[must_use]
    pub fn parse_concurrency_bucket(name: &[u8]) -> Option<(&str, Vec<(&str, &str)>)> {
        parse_with_head(name, BUCKET_HEAD)
    }

    /// Parses a key of [`CounterKey::unique`] or [`CounterKey::write_of_list`]. Returns `None` for
    /// any other key.
    #[must_use]
    pub fn parse(&self) -> Option<ParsedKey<'_>> {
        let (head, rest) = self.as_bytes().split_at_checked(HEAD_LEN)?;
        let (domain, mut entries) = split_domain_and_entries(rest)?;
        let limit_name = match head.first()? {
            b'i' => None,
            b'n' => Some(entries.pop()?.1),
            _ => return None,
        };
        Some(ParsedKey { domain, entries, limit_name })
    }

    fn write_length_prefixed<'a>(
        &mut self,
        head: KeyHead,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) {
        let mut rest =
            self.reset_zeroed(encoded_len(&[HEAD_LEN, 4, domain.len()], entries.clone(), 2));
        // Longer strings, whose keys could be equal, never get here: `edge` rejects or the tree
        // hashes them.
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

    /// Creates the key of envoyproxy/ratelimit, `domain_key_value_…`, for windows of its seven
    /// units. The key omits the start of the window, which envoyproxy/ratelimit appends: the
    /// counter's state contains the start.
    pub fn compatible<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        strategy: KeyStrategy,
    ) -> Self {
        let mut key = Self::EMPTY;
        key.write_compatible(domain, entries, strategy);
        key
    }

    /// Writes the key of [`CounterKey::compatible`] in place.
    pub fn write_compatible<'a>(
        &mut self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        strategy: KeyStrategy,
    ) {
        let mut rest =
            self.reset_zeroed(encoded_len(&[HEAD_LEN, domain.len(), 1], entries.clone(), 1));
        rest.put_head(head(b'j', strategy));
        let pieces = entries.flat_map(|(name, value)| [name, value]);
        for piece in std::iter::once(domain).chain(pieces) {
            rest.put(piece.as_bytes());
            rest.put(b"_");
        }
    }

    /// Formats a key of [`CounterKey::unique`] or [`CounterKey::concurrency_bucket`]
    /// for humans: the domain and the entries, joined with `_`.
    #[must_use]
    pub fn describe(bytes: &[u8]) -> String {
        let take_string = |rest: &mut &[u8], width: usize| {
            let (length, tail) = rest.split_at_checked(width)?;
            let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let (text, tail) = tail.split_at_checked(length)?;
            *rest = tail;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let mut rest = bytes.get(HEAD_LEN..).unwrap_or_default();
        let domain = take_string(&mut rest, 4);
        let entries = std::iter::from_fn(|| take_string(&mut rest, 2));
        domain.into_iter().chain(entries).collect::<Vec<_>>().join("_")
    }

    fn reset_zeroed(&mut self, len: usize) -> KeyWriter<'_> {
        self.0 = match u8::try_from(len) {
            Ok(len) if usize::from(len) <= MAX_INLINE_LEN => {
                KeyBytes::Short { len, bytes: [0; MAX_INLINE_LEN] }
            }
            _ => KeyBytes::Long(vec![0; len]),
        };
        KeyWriter(match &mut self.0 {
            KeyBytes::Short { bytes, .. } => bytes.get_mut(..len).unwrap_or_default(),
            KeyBytes::Long(bytes) => bytes,
        })
    }

    /// The encoded key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            KeyBytes::Long(bytes) => bytes,
        }
    }

    /// Returns the key as envoyproxy/ratelimit writes it, without the start of the window; `None`
    /// unless [`CounterKey::compatible`] made this key.
    #[must_use]
    pub fn compatible_bytes(&self) -> Option<&[u8]> {
        let (head, spelling) = self.as_bytes().split_at_checked(HEAD_LEN)?;
        (head.first() == Some(&b'j')).then_some(spelling)
    }
}

/// The parts of a counter key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedKey<'k> {
    /// The domain.
    pub domain: &'k str,
    /// The keys and values of the entries.
    pub entries: Vec<(&'k str, &'k str)>,
    /// The name of the limit in a list; `None` for the only limit of a rule.
    pub limit_name: Option<&'k str>,
}

struct KeyWriter<'k>(&'k mut [u8]);

impl KeyWriter<'_> {
    #[inline]
    fn put(&mut self, piece: &[u8]) {
        if let Some((target, rest)) = std::mem::take(&mut self.0).split_at_mut_checked(piece.len())
        {
            target.copy_from_slice(piece);
            self.0 = rest;
        }
    }

    // Two writes: `head` was just built from two parts, and one copy of both would stall the
    // processor.
    #[inline]
    fn put_head(&mut self, (form, length): KeyHead) {
        self.put(&form);
        self.put(&length.to_le_bytes());
    }
}

/// Returns the length of a key in bytes: `fixed_parts`, then each entry's key and value, each with
/// `overhead` extra bytes.
fn encoded_len<'a>(
    fixed_parts: &[usize],
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    overhead: usize,
) -> usize {
    let fixed_parts = fixed_parts.iter().copied().fold(0, usize::saturating_add);
    let pieces = entries.flat_map(|(name, value)| [name, value]);
    pieces.fold(fixed_parts, |len, piece| len.saturating_add(overhead).saturating_add(piece.len()))
}

fn parse_with_head(name: &[u8], head: KeyHead) -> Option<(&str, Vec<(&str, &str)>)> {
    let (form, rest) = name.split_first_chunk::<2>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    if (*form, u64::from_le_bytes(*length)) != head {
        return None;
    }
    split_domain_and_entries(rest)
}

/// Reads the domain and the entries after the head of a key.
fn split_domain_and_entries(bytes: &[u8]) -> Option<(&str, Vec<(&str, &str)>)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (domain, mut rest) = rest.split_at_checked(length)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (key, more) = split_string(rest)?;
        let (value, more) = split_string(more)?;
        entries.push((key, value));
        rest = more;
    }
    Some((std::str::from_utf8(domain).ok()?, entries))
}

/// Splits the first length-prefixed string off `bytes`.
fn split_string(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (piece, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((std::str::from_utf8(piece).ok()?, rest))
}

const fn head(form: u8, strategy: KeyStrategy) -> KeyHead {
    let (code, length) = strategy.tag();
    ([form, code], length)
}
