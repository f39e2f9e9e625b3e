//! Compares a pattern with `*` with one entry of a descriptor.
//!
//! Guarantees:
//! - The pattern is compared with `key_value`, as in envoyproxy/ratelimit.
//! - The text before the first `*` must be its start, the text after the last `*` its end.
//! - Each text between two `*` is found at the leftmost possible position.
//! - No memory is allocated, for entries of any length.
//!
//! Not covered:
//! - The order in which several patterns are compared (see [`super::DescriptorTree`]).

/// The text `key_value` of one entry, in three parts that are not joined in memory.
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

    /// Returns the last eight bytes of the text as a big-endian number. A shorter text is preceded
    /// by zero bytes.
    #[inline]
    pub(super) fn suffix(self) -> u64 {
        let last = self.0[2];
        if let Some(end) = last.last_chunk() {
            return u64::from_be_bytes(*end);
        }
        if let ([b"", b"", _], Some(first), Some(end)) =
            (self.0, last.first_chunk(), last.last_chunk())
        {
            // A text of four to seven bytes: the first four and the last four bytes overlap, and
            // are equal where they overlap.
            let shift = 8 * (last.len() - 4);
            return u64::from(u32::from_be_bytes(*first)) << shift
                | u64::from(u32::from_be_bytes(*end));
        }
        let mut before = self.len().saturating_sub(size_of::<u64>());
        let mut end = 0;
        for piece in self.0 {
            let from = before.min(piece.len());
            before -= from;
            end = piece[from..].iter().fold(end, |end, byte| end << 8 | u64::from(*byte));
        }
        end
    }

    #[inline]
    pub(super) fn starts_with(self, mut literal: &[u8]) -> bool {
        if literal.is_empty() {
            return true;
        }
        for piece in self.0 {
            if let Some(begin) = piece.get(..literal.len()) {
                return begin == literal;
            }
            let Some(rest) = literal.strip_prefix(piece) else { return false };
            literal = rest;
        }
        false
    }

    pub(super) fn has_literal_at(self, mut at: usize, mut literal: &[u8]) -> bool {
        for piece in self.0 {
            if at >= piece.len() {
                at -= piece.len();
                continue;
            }
            let meet = literal.len().min(piece.len() - at);
            if piece[at..at + meet] != literal[..meet] {
                return false;
            }
            literal = &literal[meet..];
            at = 0;
        }
        literal.is_empty()
    }

    /// Returns the end position of the leftmost occurrence of `literal` within the bytes
    /// `from..to`.
    fn find_end(self, literal: &[u8], from: usize, to: usize) -> Option<usize> {
        let last = to.checked_sub(literal.len())?;
        (from..=last).find(|&at| self.has_literal_at(at, literal)).map(|at| at + literal.len())
    }
}

/// Returns `true` if `pattern`, which contains at least one `*`, matches `subject`.
pub(crate) fn matches(pattern: &str, subject: CompositeKey<'_>) -> bool {
    let mut literals = pattern.split('*').map(str::as_bytes);
    let first = literals.next().unwrap_or_default();
    let last = literals.next_back().unwrap_or_default();
    let Some(to) = subject.len().checked_sub(last.len()).filter(|&to| first.len() <= to) else {
        return false;
    };
    subject.starts_with(first)
        && subject.has_literal_at(to, last)
        && literals
            .try_fold(first.len(), |from, literal| subject.find_end(literal, from, to))
            .is_some()
}

/// Returns `true` if pattern `wide` matches every text that pattern `narrow` matches.
///
/// The result is exact. Each `*` of `narrow` is treated as a character that occurs nowhere in
/// `wide`. Only a `*` of `wide` can match this character, and a `*` also matches any other text at
/// that position.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    matches(wide, CompositeKey::from_joined(narrow))
}
