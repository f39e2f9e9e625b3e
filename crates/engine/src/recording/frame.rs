//! Frames: compressed parts of a recording, with lengths and a checksum.

use std::io::{self, Read, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first bytes of a recording: the magic and the version of the format.
const MAGIC: &[u8; 8] = b"sgrecord";
const VERSION: u8 = 2;

/// The largest decompressed size of a frame, in bytes.
pub(super) const MAX_RAW_BYTES: u32 = 4 << 20;
/// DEFLATE adds at most a few bytes to data that it cannot compress.
const MAX_PACKED_BYTES: u32 = MAX_RAW_BYTES + (1 << 20);

const FRAME_HEAD_BYTES: usize = 13;

/// The reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file does not start with the magic.
    #[error("byte 0: not a recording; `sluicegate record` writes recordings")]
    NotARecording,
    /// Another version wrote the file.
    #[error(
        "byte 8: version {0} of the file format; read it with the version of Sluicegate that wrote it, or record again"
    )]
    UnknownVersion(u8),
    /// The operating system cannot read the file.
    #[error("byte {offset}: cannot be read: {error}")]
    Unreadable {
        /// The position of the frame, in bytes.
        offset: u64,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A frame is malformed.
    #[error("byte {offset}: {why}; record again, or copy the file again")]
    Malformed {
        /// The position of the frame, in bytes.
        offset: u64,
        /// The error in the frame.
        why: &'static str,
    },
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Header = 1,
    Block = 2,
    End = 3,
}

/// Returns the bytes before the first frame.
pub(super) fn file_start() -> Vec<u8> {
    [MAGIC.as_slice(), &[VERSION]].concat()
}

/// Packs `content` as a frame. Returns `None` if it is larger than [`MAX_RAW_BYTES`].
pub(super) fn pack(kind: FrameKind, content: &impl Serialize) -> Option<Vec<u8>> {
    let raw = postcard::to_stdvec(content).ok()?;
    let raw_len = u32::try_from(raw.len()).ok().filter(|len| *len <= MAX_RAW_BYTES)?;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&raw).ok()?;
    let packed = encoder.finish().ok()?;
    let packed_len = u32::try_from(packed.len()).ok()?;
    let mut frame = vec![kind as u8];
    frame.extend(raw_len.to_le_bytes());
    frame.extend(packed_len.to_le_bytes());
    let sum = checksum(&frame, &packed);
    frame.extend(sum.to_le_bytes());
    frame.extend(packed);
    Some(frame)
}

fn checksum(lengths: &[u8], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(lengths);
    sum.update(packed);
    sum.finalize()
}

/// Reads frames one by one.
pub(super) struct FrameReader<R> {
    input: R,
    /// The position after the last frame, in bytes.
    pub(super) offset: u64,
}

pub(super) struct Frame {
    pub(super) kind: FrameKind,
    /// The position of the frame, in bytes.
    offset: u64,
    raw: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Reads the bytes before the first frame.
    pub(super) fn open(mut input: R) -> Result<Self, RecordingError> {
        let mut start = Vec::new();
        let read = input.by_ref().take(MAGIC.len() as u64 + 1).read_to_end(&mut start);
        read.map_err(|error| RecordingError::Unreadable { offset: 0, error })?;
        match start.split_at_checked(MAGIC.len()) {
            Some((magic, [VERSION])) if magic == MAGIC => {
                Ok(Self { input, offset: start.len() as u64 })
            }
            Some((magic, &[version])) if magic == MAGIC => {
                Err(RecordingError::UnknownVersion(version))
            }
            _ => Err(RecordingError::NotARecording),
        }
    }

    /// Reads the next frame. Returns `None` at the end of the file.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, RecordingError> {
        let offset = self.offset;
        let head = self.read_bytes(FRAME_HEAD_BYTES)?;
        if head.is_empty() {
            return Ok(None);
        }
        let frame = self.read_frame(offset, &head);
        frame.map(Some).map_err(|why| match why {
            FrameError::Malformed(why) => RecordingError::Malformed { offset, why },
            FrameError::Unreadable(error) => error,
        })
    }

    fn read_frame(&mut self, offset: u64, head: &[u8]) -> Result<Frame, FrameError> {
        let (head, rest) = head.split_first_chunk::<FRAME_HEAD_BYTES>().ok_or(TRUNCATED)?;
        debug_assert!(rest.is_empty());
        let [kind, numbers @ ..] = head;
        let number = |at: usize| {
            let bytes = numbers.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
        };
        let (raw_len, packed_len, sum) = (number(0), number(4), number(8));
        let kind = match kind {
            1 => FrameKind::Header,
            2 => FrameKind::Block,
            3 => FrameKind::End,
            _ => return Err(FrameError::Malformed("a frame of an unknown kind")),
        };
        if MAX_RAW_BYTES < raw_len || MAX_PACKED_BYTES < packed_len {
            return Err(FrameError::Malformed("a frame above the maximum of 4 MiB"));
        }
        let packed = self.read_bytes(packed_len as usize).map_err(FrameError::Unreadable)?;
        if packed.len() < packed_len as usize {
            return Err(TRUNCATED);
        }
        let lengths = head.get(..9).unwrap_or_default();
        if checksum(lengths, &packed) != sum {
            return Err(FrameError::Malformed("a frame with a wrong checksum"));
        }
        let raw = unpack(&packed, raw_len).ok_or(FrameError::Malformed("invalid DEFLATE data"))?;
        Ok(Frame { kind, offset, raw })
    }

    /// Reads at most `len` bytes; fewer at the end of the file. Memory grows with the bytes that
    /// arrive, so a wrong length allocates nothing.
    fn read_bytes(&mut self, len: usize) -> Result<Vec<u8>, RecordingError> {
        let (offset, mut bytes) = (self.offset, Vec::new());
        let read = self.input.by_ref().take(len as u64).read_to_end(&mut bytes);
        read.map_err(|error| RecordingError::Unreadable { offset, error })?;
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }
}

enum FrameError {
    Malformed(&'static str),
    Unreadable(RecordingError),
}

const TRUNCATED: FrameError = FrameError::Malformed("the file ends inside a frame");

fn unpack(packed: &[u8], raw_len: u32) -> Option<Vec<u8>> {
    let mut raw = Vec::new();
    let mut decoder = DeflateDecoder::new(packed).take(u64::from(raw_len) + 1);
    decoder.read_to_end(&mut raw).ok()?;
    (raw.len() == raw_len as usize).then_some(raw)
}

impl Frame {
    /// Decodes the content of the frame.
    pub(super) fn decode<T: DeserializeOwned>(&self) -> Result<T, RecordingError> {
        match postcard::take_from_bytes(&self.raw) {
            Ok((content, [])) => Ok(content),
            _ => Err(self.error("content of an unknown form")),
        }
    }

    pub(super) const fn error(&self, why: &'static str) -> RecordingError {
        RecordingError::Malformed { offset: self.offset, why }
    }
}
