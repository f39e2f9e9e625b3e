//! YAML as the base language has it: one document as a tree of nodes with their places.
//!
//! Guarantees: keeps what a typed reader loses (scalar style, source text, order, repeated keys,
//! merge keys where they stand); scalars mean what YAML 1.1 says; no input makes it recurse deeper
//! than [`DEPTH`], and aliases are counted before anything follows them.
//! Leaves out: which keys and types a limits file has, which is for [`super::raw`].

mod decode;
mod input;
mod node;
mod scalar;
mod soundness;
mod strict;
mod timestamp;

pub(super) use decode::decode;
pub(super) use node::{Id, Kind, Tree, parse};
pub(super) use scalar::Value;
pub(super) use soundness::{Budget, check};

/// Nesting levels that a file may have, aliases followed. A descriptor takes two of them.
///
/// Every walk over a tree recurses at most this deep: within the 2 MiB stack of any thread.
pub(super) const DEPTH: usize = 512;

/// Bytes that a file may have.
pub(super) const BYTES: usize = 64 * 1024 * 1024;
