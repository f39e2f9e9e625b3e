//! The file format of recorded calls, for `sluicegate record`, `replay` and `suggest`.
//!
//! ```text
//! recording = magic "sgrecord", version (1 byte), frames: one header, blocks, one end
//! frame     = kind (1 byte), raw length, packed length, CRC-32 (4 bytes each, little-endian), data
//! data      = DEFLATE of the postcard form of a header, a block of calls, or the end
//! block     = start, texts, descriptors (entries as numbers of texts), calls
//! call      = a check, perhaps with a reserve; or a settle, a cancel or a renewal of holds
//! ```
//!
//! Each block has its own texts, so a reader needs memory for one block only.
//!
//! Guarantees:
//! - Each changed byte after the version is detected, and reported with its frame's offset.
//! - A reader allocates at most a fixed amount of memory for a malformed file.
//! - A block has at most 8,192 calls of at most 1 MiB, together at most 64 MiB.
//! - Calls are in file order, and their times never decrease.
//!
//! Not covered:
//! - Secrecy: a reader of the file can test guesses of hashed values.
//! - Concurrency limits: only decisions of rate limits and budgets are recorded.
//! - Top-ups of prepaid budgets.

pub mod access_log;
pub mod block;
mod call;
mod check_outcome;
mod encoded_block;
mod frame;
pub mod hashed_values;
pub mod header;
pub mod percent;
pub mod reader;
pub mod writer;

pub use block::BlockBuilder;
pub use call::{RecordedBudgets, RecordedCall, RecordedDecision, RecordedReserve};
pub use check_outcome::CheckOutcome;
pub use frame::RecordingError;
pub use header::{CheckOrder, RecordedOverrides, RecordedPlanning, RecordingEnd, RecordingHeader};
pub use reader::RecordingReader;
pub use writer::RecordingWriter;
