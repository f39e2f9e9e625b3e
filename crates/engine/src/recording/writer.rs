//! Writes a recording.

use std::io::{self, Write};

use super::block::BlockBuilder;
use super::call::{RecordedBudgets, RecordedDecision};
use super::frame::{self, FrameKind};
use super::header::{RecordingEnd, RecordingHeader};
use crate::kernel::decision::Check;

/// Returns the bytes of the magic, the version and the header.
#[must_use]
pub fn pack_header(header: &RecordingHeader) -> Vec<u8> {
    let mut bytes = frame::file_start();
    bytes.extend(frame::pack(FrameKind::Header, header).unwrap_or_default());
    bytes
}

/// Returns the bytes of a block. `None` if it is larger than a reader accepts, which no
/// [`BlockBuilder`] that is emptied when full can be.
#[must_use]
pub fn pack_block(block: &BlockBuilder) -> Option<Vec<u8>> {
    frame::pack(FrameKind::Block, block.encoded())
}

/// Returns the bytes of the last frame.
#[must_use]
pub fn pack_end(end: RecordingEnd) -> Vec<u8> {
    frame::pack(FrameKind::End, &end).unwrap_or_default()
}

/// Writes a recording to `output`, call by call.
pub struct RecordingWriter<W> {
    output: W,
    block: BlockBuilder,
    end: RecordingEnd,
}

impl<W: Write> RecordingWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The error of `output`.
    pub fn start(mut output: W, header: &RecordingHeader) -> io::Result<Self> {
        output.write_all(&pack_header(header))?;
        Ok(Self { output, block: BlockBuilder::default(), end: RecordingEnd::default() })
    }

    /// Adds a check that charges its hits to its budgets, or counts it as dropped if it is too large.
    ///
    /// # Errors
    /// The error of `output`.
    pub fn add(&mut self, check: &Check<'_>, decision: RecordedDecision<'_>) -> io::Result<()> {
        self.add_call(check, decision, RecordedBudgets::<&str>::Charge)
    }

    /// Adds a call, or counts it as dropped if it is too large.
    ///
    /// # Errors
    /// The error of `output`.
    pub fn add_call(
        &mut self,
        check: &Check<'_>,
        decision: RecordedDecision<'_>,
        budgets: RecordedBudgets<impl AsRef<str>>,
    ) -> io::Result<()> {
        if self.block.add(check, decision, budgets) {
            self.end.recorded += 1;
        } else {
            self.end.dropped += 1;
        }
        if self.block.is_full() { self.write_block() } else { Ok(()) }
    }

    /// Counts a check that cannot be recorded.
    pub const fn count_dropped(&mut self) {
        self.end.dropped += 1;
    }

    /// Writes the end, and returns the number of calls.
    ///
    /// # Errors
    /// The error of `output`.
    pub fn finish(mut self) -> io::Result<RecordingEnd> {
        self.write_block()?;
        self.output.write_all(&pack_end(self.end))?;
        self.output.flush()?;
        Ok(self.end)
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = pack_block(&self.block.take());
        self.output.write_all(&packed.ok_or(io::ErrorKind::InvalidData)?)
    }
}
