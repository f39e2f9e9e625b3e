//! Parses YAML as envoyproxy/ratelimit does: one document as a tree of nodes with positions.
//!
//! Guarantees:
//! - Keeps scalar style, source text, order, repeated keys and merge keys.
//! - Scalars have their meaning in YAML 1.1.
//! - Recursion is never deeper than [`DEPTH`].
//! - Aliases are counted before any code follows them.
//!
//! Not covered:
//! - The keys and types of a limits file: see [`super::raw`].

mod decode;
mod input;
mod node;
mod scalar;
mod soundness;
mod strict;
mod timestamp;

pub(super) use decode::decode;
pub(super) use node::{YamlId, YamlKind, YamlTree, parse};
pub(super) use scalar::ScalarValue;
pub(super) use soundness::{AliasBudget, check};

/// The most nesting levels of a file, with aliases followed. A descriptor takes two of them.
///
/// Every walk over a tree recurses at most this deep, which fits the 2 MiB stack of any thread.
pub(super) const DEPTH: usize = 512;

/// The size of the largest file, in bytes.
pub(super) const BYTES: usize = 64 * 1024 * 1024;
