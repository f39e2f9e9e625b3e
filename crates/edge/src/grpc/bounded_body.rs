//! The body of a gRPC request, with a time limit and a size limit for each message.
//!
//! Guarantees:
//! - A unary call fails if its message is incomplete after the message timeout.
//! - A stream fails if a message that has begun is incomplete after the message timeout. Between
//!   messages it may be silent for any time.
//! - A message is passed on when it is complete; that of a unary call, when the body has ended.
//! - All incomplete messages together take at most `listen.max_body_memory` ([`BodyMemory`]). A
//!   unary call keeps its share until its reply; a stream, until the message is complete. Services
//!   with streams charge a message that waits in a queue.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::codegen::StdError;
use tonic::{Code, Status};

use super::incoming::ShortIdleGuard;
use crate::body_memory::{BodyBuffer, BodyMemory, BodyMemoryFull};
use crate::telemetry::event::{EdgeOutcome, Event as _, Protocol, RequestCompleted};

/// The largest message of services that decode without counting first, because decoding can take
/// forty times the memory. It contains a request's headers, for which Envoy's default limit is 60
/// KiB.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The size of a gRPC message header: a compression flag and a length of four bytes.
pub(super) const FRAME_HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct BoundedBody {
    body: Incoming,
    kind: BodyKind,
    position: FramePosition,
    /// The received bytes that are not passed on yet.
    buffer: BodyBuffer,
    memory: Arc<BodyMemory>,
    message_timeout: Duration,
    /// The time limit of the current message. It starts at the first wait for missing bytes.
    deadline: Option<Pin<Box<Sleep>>>,
    _guard: Option<ShortIdleGuard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyKind {
    Unary,
    Stream,
}

/// The bounds of a body: the largest message in bytes, its time limit, and its memory.
#[derive(Debug)]
pub(super) struct MessageBounds {
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
    pub(super) memory: Arc<BodyMemory>,
}

impl BoundedBody {
    /// Creates the body of a unary call.
    pub(super) fn unary(body: Incoming, bounds: MessageBounds) -> Self {
        Self::new(body, BodyKind::Unary, bounds, None)
    }

    /// Creates the body of a stream. While the body exists, `guard` shortens the idle timeout of
    /// its connection.
    pub(super) fn stream(
        body: Incoming,
        bounds: MessageBounds,
        guard: Option<ShortIdleGuard>,
    ) -> Self {
        Self::new(body, BodyKind::Stream, bounds, guard)
    }

    fn new(
        body: Incoming,
        kind: BodyKind,
        bounds: MessageBounds,
        guard: Option<ShortIdleGuard>,
    ) -> Self {
        let MessageBounds { max_bytes, timeout, memory } = bounds;
        let expected = FRAME_HEADER_BYTES.saturating_add(max_bytes);
        Self {
            body,
            kind,
            position: FramePosition { max_bytes, header_bytes_read: 0, remaining: 0 },
            buffer: BodyBuffer::new(expected, Arc::clone(&memory)),
            memory,
            message_timeout: timeout,
            deadline: None,
            _guard: guard,
        }
    }

    fn accept_frame(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        let is_stream = self.kind == BodyKind::Stream;
        let data = match frame.into_data() {
            Ok(data) => data,
            // The trailers of a unary call have no meaning.
            Err(trailers) => return Ok(Some(trailers).filter(|_| is_stream)),
        };
        let complete = self.position.advance(&data)?;
        let passed =
            if is_stream { self.accept_stream(data, complete) } else { self.accept_unary(data) };
        Ok(passed?.map(Frame::data))
    }

    /// Returns `data` if it is the whole body. Otherwise buffers it.
    fn accept_unary(&mut self, data: Bytes) -> Result<Option<Bytes>, Status> {
        let max_bytes = self.position.max_bytes;
        if FRAME_HEADER_BYTES + max_bytes < self.buffer.bytes.len() + data.len() {
            return Err(message_too_long(max_bytes));
        }
        if self.buffer.bytes.is_empty() && self.body.is_end_stream() {
            self.memory.resize(data.len()).map_err(memory_full)?;
            return Ok(Some(data));
        }
        self.buffer.append(&data).map_err(memory_full)?;
        Ok(None)
    }

    /// Returns the buffer and the first `complete` bytes of `data`, which end a message. Buffers
    /// the rest.
    fn accept_stream(&mut self, mut data: Bytes, complete: usize) -> Result<Option<Bytes>, Status> {
        let rest = data.split_off(complete);
        let mut passed = None;
        if complete != 0 {
            self.deadline = None;
            passed = Some(if self.buffer.bytes.is_empty() {
                data
            } else {
                self.buffer.append(&data).map_err(memory_full)?;
                Bytes::from(self.buffer.take())
            });
            self.memory.resize(0).map_err(memory_full)?;
        }
        self.buffer.append(&rest).map_err(memory_full)?;
        Ok(passed)
    }

    fn take_buffered(&mut self) -> Option<Frame<Bytes>> {
        let bytes = self.buffer.take();
        (!bytes.is_empty()).then(|| Frame::data(Bytes::from(bytes)))
    }

    /// Returns `true` if a message has begun and is incomplete. A unary call is incomplete until
    /// its body ends.
    fn is_message_incomplete(&self) -> bool {
        self.kind == BodyKind::Unary || self.position.header_bytes_read != 0
    }
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(frame) = frame else { return Poll::Ready(self.take_buffered().map(Ok)) };
            let frame = frame.map_err(StdError::from);
            let accepted = frame.and_then(|frame| self.accept_frame(frame).map_err(StdError::from));
            if let Some(frame) = accepted.transpose() {
                return Poll::Ready(Some(frame));
            }
        }
        if !self.is_message_incomplete() {
            return Poll::Pending;
        }
        let message_timeout = self.message_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(message_timeout)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Some(Err("the message did not arrive in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.buffer.bytes.is_empty()
    }
}

#[derive(Debug)]
struct FramePosition {
    max_bytes: usize,
    /// The number of received bytes of the current message header: 0 between messages,
    /// [`FRAME_HEADER_BYTES`] within a message.
    header_bytes_read: usize,
    /// Within the header, the bytes of the length received so far. After the header, the number of
    /// missing bytes of the message.
    remaining: u32,
}

impl FramePosition {
    /// Advances by the received bytes `piece`. Returns the number of bytes up to the end of the last
    /// message that ends in them; 0 if none ends.
    fn advance(&mut self, piece: &[u8]) -> Result<usize, Status> {
        let (mut unread, mut complete) = (piece, 0);
        while let Some((first, rest)) = unread.split_first() {
            if self.header_bytes_read < FRAME_HEADER_BYTES {
                self.read_header_byte(*first)?;
                unread = rest;
            } else {
                unread = self.skip_body(unread);
            }
            if self.header_bytes_read == FRAME_HEADER_BYTES && self.remaining == 0 {
                self.header_bytes_read = 0;
                complete = piece.len() - unread.len();
            }
        }
        Ok(complete)
    }

    /// Reads one byte of the message header into `remaining`. The four bytes of the length shift
    /// out the compression flag.
    fn read_header_byte(&mut self, byte: u8) -> Result<(), Status> {
        self.remaining = self.remaining << 8 | u32::from(byte);
        self.header_bytes_read += 1;
        let is_too_long =
            self.header_bytes_read == FRAME_HEADER_BYTES && self.max_bytes < self.remaining_bytes();
        if is_too_long { Err(message_too_long(self.max_bytes)) } else { Ok(()) }
    }

    /// Skips the bytes of the current message in `piece`, and returns the bytes after it.
    fn skip_body<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let rest = piece.get(self.remaining_bytes()..).unwrap_or_default();
        self.remaining =
            self.remaining.saturating_sub(u32::try_from(piece.len()).unwrap_or(u32::MAX));
        rest
    }

    fn remaining_bytes(&self) -> usize {
        usize::try_from(self.remaining).unwrap_or(usize::MAX)
    }
}

/// Returns an error with `OUT_OF_RANGE`, tonic's code for messages above the limit.
/// [`StatusCodeMapper`](super::status_codes::StatusCodeMapper) or [`count_unreadable`] maps it.
fn message_too_long(max_bytes: usize) -> Status {
    Status::out_of_range(format!("the message is larger than the maximum of {max_bytes} bytes"))
}

/// Returns an error with `RESOURCE_EXHAUSTED`.
pub(super) fn memory_full(error: BodyMemoryFull) -> Status {
    Status::resource_exhausted(error.to_string())
}

/// Counts a stream message that is refused or cannot be decoded. Returns the error with the gRPC
/// code that clients of envoyproxy/ratelimit expect.
pub(super) fn count_unreadable(status: &Status, protocol: Protocol) -> Status {
    let (code, outcome) = match status.code() {
        Code::OutOfRange => (Code::ResourceExhausted, EdgeOutcome::TooLarge),
        Code::ResourceExhausted => (Code::ResourceExhausted, EdgeOutcome::TooManyRequests),
        Code::Internal => (Code::Internal, EdgeOutcome::Malformed),
        _ => return status.clone(),
    };
    RequestCompleted { protocol, outcome }.emit();
    Status::new(code, status.message())
}
