//! Reads a recording block by block, in bounded memory.

use std::io::Read;

use super::block::RecordedBlock;
use super::encoded_block::EncodedBlock;
use super::frame::{Frame, FrameKind, FrameReader, RecordingError};
use super::header::{RecordingEnd, RecordingHeader};

/// Reads a recording.
pub struct RecordingReader<R> {
    frames: FrameReader<R>,
    header: RecordingHeader,
    end: Option<RecordingEnd>,
}

impl<R: Read> RecordingReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The input is no recording, or its header is malformed.
    pub fn open(input: R) -> Result<Self, RecordingError> {
        let mut frames = FrameReader::open(input)?;
        let offset = frames.offset;
        match frames.next_frame()? {
            Some(frame) if frame.kind == FrameKind::Header => {
                Ok(Self { frames, header: frame.decode()?, end: None })
            }
            _ => Err(RecordingError::Malformed { offset, why: "the header is missing" }),
        }
    }

    /// Returns the header.
    #[must_use]
    pub const fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// Returns the end, once all blocks are read. `None` if the recording was interrupted.
    #[must_use]
    pub const fn end(&self) -> Option<RecordingEnd> {
        self.end
    }

    /// Reads the next block. Returns `None` after the last one.
    ///
    /// # Errors
    /// The input cannot be read, or is malformed.
    pub fn next_block(&mut self) -> Result<Option<RecordedBlock>, RecordingError> {
        if self.end.is_some() {
            return Ok(None);
        }
        let Some(frame) = self.frames.next_frame()? else { return Ok(None) };
        match frame.kind {
            FrameKind::Block => decode_block(&frame).map(Some),
            FrameKind::End => {
                self.end = Some(frame.decode()?);
                self.expect_end_of_input()
            }
            FrameKind::Header => Err(frame.error("a second header")),
        }
    }

    fn expect_end_of_input(&mut self) -> Result<Option<RecordedBlock>, RecordingError> {
        let offset = self.frames.offset;
        match self.frames.next_frame()? {
            None => Ok(None),
            Some(_) => Err(RecordingError::Malformed { offset, why: "a frame after the end" }),
        }
    }
}

fn decode_block(frame: &Frame) -> Result<RecordedBlock, RecordingError> {
    let block: EncodedBlock = frame.decode()?;
    RecordedBlock::new(block).map_err(|why| frame.error(why))
}
