//! Replaces long values in counter keys by their hashes, so that keys stay short.
//!
//! | limits | value of 300 bytes | in the counter key |
//! |---|---|---|
//! | bare key | `eyJh…` | `#` and the SHA-256 in hexadecimal |
//! | pattern `/pay/*` | `/pay/…` | `/pay/#…` |
//! | exact value | as in the limits | unchanged |
//!
//! Guarantees:
//! - Rules match the whole value, never its hash.
//! - Equal values have equal texts, in all replicas and proxies with the same limits.
//! - Values that differ anywhere have different texts, because SHA-256 is cryptographic.
//! - A text matches the same node as its value, and is not replaced again.
//!
//! Not covered:
//! - A pattern that matches digits of a hash: proxies cannot borrow hits for these values.
//! - A client that sends the text of another client's value: it charges the same counter.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::lookup::shared_text;
use super::node::DescriptorNode;
use super::table::LookupTarget;
use super::{DescriptorTree, MatchKind, SharedValues};

/// The longest value that is never hashed, in bytes. A value that matches a pattern may be longer
/// by the length of the pattern.
pub const MAX_VALUE_BYTES: usize = 256;

/// The longest exact value of a rule that is kept, because keys have lengths of 16 bits.
const MAX_EXACT_BYTES: usize = u16::MAX as usize;

/// The character before a hash.
const MARK: char = '#';

impl DescriptorTree {
    /// Returns the text for the counter key if the value is long. It matches `target`, too, where
    /// possible.
    #[inline]
    pub(super) fn long_text(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &str),
        (target, kind): (LookupTarget, MatchKind),
    ) -> Option<String> {
        if value.len() <= MAX_VALUE_BYTES {
            return None;
        }
        self.hashed_text(level, (key, value), (target, kind))
    }

    #[cold]
    fn hashed_text(
        &self,
        level: &DescriptorNode,
        (key, value): (&str, &str),
        (target, kind): (LookupTarget, MatchKind),
    ) -> Option<String> {
        let name = self.node_at(target).map(|node| self.text(node.name));
        let pattern = name.filter(|_| kind == MatchKind::Wildcard);
        let longest = match kind {
            MatchKind::Exact | MatchKind::Network => MAX_EXACT_BYTES,
            // The text for a shorter value of this pattern is never replaced again.
            MatchKind::Wildcard => MAX_VALUE_BYTES + pattern.map_or(0, str::len),
            MatchKind::Bare => MAX_VALUE_BYTES,
        };
        if value.len() <= longest {
            return None;
        }
        let hash = hash_value(value);
        let Some(pattern) = pattern.map(|name| shared_text(name, key)) else { return Some(hash) };
        // The other `*` match the empty text.
        let text = pattern.replacen('*', &hash, 1).replace('*', "");
        let is_same = self.match_entry(level, key, &text) == Some((target, kind));
        Some(if is_same && text.len() <= MAX_EXACT_BYTES { text } else { hash })
    }
}

/// Appends the hashes of long values of a descriptor that needs no rule.
pub fn hash_long_values<'e>(
    entries: impl Iterator<Item = (&'e str, &'e str)>,
    texts: &mut SharedValues<'_>,
) {
    let long = entries.enumerate().filter(|(_, (_, value))| MAX_VALUE_BYTES < value.len());
    texts.extend(long.map(|(position, (_, value))| (position, Cow::Owned(hash_value(value)))));
}

/// Returns the mark and the SHA-256 of a value, in hexadecimal.
fn hash_value(value: &str) -> String {
    let mut text = String::with_capacity(1 + 2 * Sha256::output_size());
    text.push(MARK);
    for byte in Sha256::digest(value) {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}
