//! Compares a pattern with `*` with one entry of a descriptor.
//!
//! Guarantees:
//! - The pattern is compared with `key_value`, as in envoyproxy/ratelimit.
//! - Each `*` matches any text, even an empty one.
//! - No memory is allocated, for entries of any length.

/// The text `key_value` of one entry, as three pieces that are not joined in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompositeKey<'a>([&'a [u8]; 3]);

impl<'a> CompositeKey<'a> {
    pub(crate) fn new(key: &'a str, value: &'a str) -> Self {
        Self([key.as_bytes(), b"_", value.as_bytes()])
    }

    pub(super) fn from_joined(name: &'a str) -> Self {
        Self([b"", b"", name.as_bytes()])
    }

    pub(super) fn len(self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }

    /// Returns the last eight bytes as a big-endian number, or fewer bytes after zeros.
    #[inline]
    pub(super) fn suffix(self) -> u64 {
        let last = self.0[2];
        if let Some(suffix) = last.last_chunk() {
            return u64::from_be_bytes(*suffix);
        }
        if let ([b"", b"", _], Some(first_four), Some(last_four)) =
            (self.0, last.first_chunk(), last.last_chunk())
        {
            // A text of four to seven bytes: its first four and its last four bytes overlap.
            let shift = 8 * (last.len() - 4);
            return u64::from(u32::from_be_bytes(*first_four)) << shift
                | u64::from(u32::from_be_bytes(*last_four));
        }
        let mut bytes_to_skip = self.len().saturating_sub(size_of::<u64>());
        let mut suffix = 0;
        for piece in self.0 {
            let skipped = bytes_to_skip.min(piece.len());
            bytes_to_skip -= skipped;
            suffix = piece[skipped..].iter().fold(suffix, |n, byte| n << 8 | u64::from(*byte));
        }
        suffix
    }

    #[inline]
    pub(super) fn starts_with(self, mut literal: &[u8]) -> bool {
        if literal.is_empty() {
            return true;
        }
        for piece in self.0 {
            if let Some(start) = piece.get(..literal.len()) {
                return start == literal;
            }
            let Some(rest) = literal.strip_prefix(piece) else { return false };
            literal = rest;
        }
        false
    }

    pub(super) fn has_literal_at(self, mut position: usize, mut literal: &[u8]) -> bool {
        for piece in self.0 {
            if position >= piece.len() {
                position -= piece.len();
                continue;
            }
            let len = literal.len().min(piece.len() - position);
            if piece[position..position + len] != literal[..len] {
                return false;
            }
            literal = &literal[len..];
            position = 0;
        }
        literal.is_empty()
    }

    fn find_end(self, literal: &[u8], from: usize, to: usize) -> Option<usize> {
        let last_start = to.checked_sub(literal.len())?;
        let start = (from..=last_start).find(|&start| self.has_literal_at(start, literal))?;
        Some(start + literal.len())
    }
}

/// Returns `true` if `pattern`, which contains at least one `*`, matches `text`.
pub(crate) fn matches(pattern: &str, text: CompositeKey<'_>) -> bool {
    let mut literals = pattern.split('*').map(str::as_bytes);
    let first = literals.next().unwrap_or_default();
    let last = literals.next_back().unwrap_or_default();
    let Some(to) = text.len().checked_sub(last.len()).filter(|&to| first.len() <= to) else {
        return false;
    };
    text.starts_with(first)
        && text.has_literal_at(to, last)
        && literals
            .try_fold(first.len(), |from, literal| text.find_end(literal, from, to))
            .is_some()
}

/// Returns `true` if pattern `wide` matches every text that pattern `narrow` matches. Exact,
/// because only a `*` of `wide` can match a `*` of `narrow`, and then matches any text.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    matches(wide, CompositeKey::from_joined(narrow))
}
