//! The file format of recorded checks, for `sluicegate record`, `replay` and `suggest`.
//!
//! ```text
//! recording = magic "sgrecord", version (1 byte), frames: one header, blocks, one end
//! frame     = kind (1 byte), raw length, packed length, CRC-32 (4 bytes each, little-endian), data
//! data      = DEFLATE of the postcard form of a header, a block of checks, or the end
//! block     = start, texts, descriptors (entries as numbers of texts), checks
//! ```
//!
//! Each block has its own texts, so a reader needs memory for one block only.
//!
//! Guarantees:
//! - Each changed byte after the version is detected, and reported with its frame's offset.
//! - A reader allocates at most a fixed amount of memory for a malformed file.
//! - A block has at most 8,192 checks of at most 1 MiB, together at most 64 MiB.
//! - Checks are in file order, and their times never decrease.
//!
//! Not covered:
//! - Secrecy: a reader of the file can test guesses of hashed values.
//! - Concurrency limits: only decisions of rate limits are recorded.

pub mod access_log;
pub mod block;
mod check_outcome;
mod encoded_block;
mod frame;
pub mod hashed_values;
pub mod header;
pub mod percent;
pub mod reader;
pub mod writer;

pub use block::{BlockBuilder, RecordedDecision};
pub use check_outcome::CheckOutcome;
pub use frame::RecordingError;
pub use header::{CheckOrder, RecordedOverrides, RecordedPlanning, RecordingEnd, RecordingHeader};
pub use reader::RecordingReader;
pub use writer::RecordingWriter;
