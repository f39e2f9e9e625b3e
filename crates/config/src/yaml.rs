//! Parses a limits file as envoyproxy/ratelimit's YAML parser does: the first document becomes a
//! tree of nodes with positions.
//!
//! Guarantees:
//! - The tree keeps quotes, texts as written, order, repeated keys and merge keys (`<<`).
//! - Scalars have the type that YAML 1.1 gives them.
//! - No function recurses deeper than [`DEPTH`].
//! - Endless or excessive aliases are rejected before any code follows an alias.
//!
//! Not covered:
//! - The keys and types of a limits file (see [`super::raw`]).

mod decode;
mod input;
mod node;
mod parse;
mod scalar;
mod soundness;
mod strict;
mod syntax_error;
mod timestamp;

pub(super) use decode::decode;
pub(super) use node::{YamlId, YamlKind, YamlTree};
pub(super) use parse::parse;
pub(super) use scalar::ScalarValue;
pub(super) use soundness::{AliasBudget, check, report_too_many_aliases};

/// The largest nesting depth of a file, counted with aliases followed. Each `descriptors` list adds
/// two levels.
///
/// All functions that walk over a tree recurse at most this deep, which fits into the 2 MiB stack
/// of a thread.
pub(super) const DEPTH: usize = 512;

/// The size of the largest file, in bytes.
pub(super) const BYTES: usize = 64 * 1024 * 1024;
