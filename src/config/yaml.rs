//! Parses a limits file as envoyproxy/ratelimit's YAML parser does, into a tree with positions.
//!
//! Guarantees:
//! - Only the first document is read.
//! - The tree keeps quotes, order, repeated keys and merge keys (`<<`).
//! - Scalars have the type that YAML 1.1 gives them.
//! - No function recurses deeper than [`DEPTH`].
//! - Endless or excessive aliases are rejected before any code follows an alias.

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
pub(super) use soundness::{AliasBudget, check_structure};

/// The largest nesting depth with aliases followed. Recursion of this depth fits into 2 MiB of
/// stack.
pub(super) const DEPTH: usize = 512;

/// The size of the largest file, in bytes.
pub(super) const BYTES: usize = 64 * 1024 * 1024;
