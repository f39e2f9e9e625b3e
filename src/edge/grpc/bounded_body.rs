//! The body of a gRPC request, with a time limit and a size limit for each message.
//!
//! Guarantees:
//! - A unary call fails if its message is incomplete after the message timeout.
//! - A stream fails if a message that has begun is incomplete after the message timeout. Between
//!   messages it may be silent for any time.
//! - A message has at most [`MAX_MESSAGE_BYTES`] bytes, because decoding can take forty times the
//!   memory. Services that count a message's parts before decoding have no such limit.
//! - A buffered unary message is decoded only after the client has sent all of it.

use std::mem::take;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::codegen::StdError;
use tonic::{Code, Status};

use super::incoming::ShortIdleGuard;
use crate::telemetry::event::{EdgeOutcome, Event as _, Protocol, RequestCompleted};

/// The largest message of services that decode without counting first. It contains a request's
/// headers, for which Envoy's default limit is 60 KiB.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The size of a gRPC message header: a compression flag and a length of four bytes.
const FRAME_HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct BoundedBody {
    body: Incoming,
    mode: BodyMode,
    message_timeout: Duration,
    /// The time limit of the current message. It starts at the first wait for missing bytes.
    deadline: Option<Pin<Box<Sleep>>>,
    _guard: Option<ShortIdleGuard>,
}

#[derive(Debug)]
enum BodyMode {
    /// A unary call, whose data frames go to the service as they arrive.
    Unbuffered,
    /// A unary call, whose message goes to the service when it is complete.
    Buffered(Vec<u8>),
    /// A stream of messages, whose data frames go to the service as they arrive.
    Stream(FramePosition),
}

impl BoundedBody {
    /// Creates the body of a unary call whose service itself limits the message size.
    pub(super) const fn unbuffered(body: Incoming, message_timeout: Duration) -> Self {
        Self { body, mode: BodyMode::Unbuffered, message_timeout, deadline: None, _guard: None }
    }

    /// Creates the body of a unary call that buffers a message of at most [`MAX_MESSAGE_BYTES`]
    /// bytes.
    pub(super) const fn buffered(body: Incoming, message_timeout: Duration) -> Self {
        let mode = BodyMode::Buffered(Vec::new());
        Self { body, mode, message_timeout, deadline: None, _guard: None }
    }

    /// Creates the body of a stream with messages of at most `max_bytes` bytes each. While the body
    /// exists, `guard` shortens the idle timeout of its connection.
    pub(super) const fn stream(
        body: Incoming,
        max_bytes: usize,
        guard: Option<ShortIdleGuard>,
        message_timeout: Duration,
    ) -> Self {
        let mode =
            BodyMode::Stream(FramePosition { max_bytes, header_bytes_read: 0, remaining: 0 });
        Self { body, mode, message_timeout, deadline: None, _guard: guard }
    }

    fn accept_frame(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        match &mut self.mode {
            BodyMode::Unbuffered => {}
            BodyMode::Buffered(buffer) => {
                append_bounded(buffer, frame.data_ref())?;
                return Ok(None);
            }
            BodyMode::Stream(position) => {
                if let Some(piece) = frame.data_ref()
                    && position.advance(piece)?
                {
                    self.deadline = None;
                }
            }
        }
        Ok(Some(frame))
    }

    fn take_buffered(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.mode {
            BodyMode::Buffered(buffer) if !buffer.is_empty() => {
                Some(Frame::data(Bytes::from(take(buffer))))
            }
            _ => None,
        }
    }

    /// Returns `true` if a message has begun and is incomplete. A unary call is incomplete until
    /// its body ends.
    const fn is_message_incomplete(&self) -> bool {
        !matches!(self.mode, BodyMode::Stream(FramePosition { header_bytes_read: 0, .. }))
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
        let has_buffered = matches!(&self.mode, BodyMode::Buffered(buffer) if !buffer.is_empty());
        self.body.is_end_stream() && !has_buffered
    }
}

fn append_bounded(buffer: &mut Vec<u8>, piece: Option<&Bytes>) -> Result<(), Status> {
    let Some(piece) = piece else { return Ok(()) };
    buffer.extend_from_slice(piece);
    if FRAME_HEADER_BYTES + MAX_MESSAGE_BYTES < buffer.len() {
        Err(message_too_long(MAX_MESSAGE_BYTES))
    } else {
        Ok(())
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
    /// Advances by the received bytes `piece`. Returns `true` if they contain the end of a message.
    fn advance(&mut self, mut piece: &[u8]) -> Result<bool, Status> {
        let mut ended = false;
        while let Some((first, rest)) = piece.split_first() {
            if self.header_bytes_read < FRAME_HEADER_BYTES {
                self.read_header_byte(*first)?;
                piece = rest;
            } else {
                piece = self.skip_body(piece);
            }
            if self.header_bytes_read == FRAME_HEADER_BYTES && self.remaining == 0 {
                self.header_bytes_read = 0;
                ended = true;
            }
        }
        Ok(ended)
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

/// Counts a stream message that is too long or cannot be decoded. Returns the error with the gRPC
/// code that clients of envoyproxy/ratelimit expect.
pub(super) fn count_unreadable(status: &Status, protocol: Protocol) -> Status {
    let (code, outcome) = match status.code() {
        Code::OutOfRange => (Code::ResourceExhausted, EdgeOutcome::TooLarge),
        Code::Internal => (Code::Internal, EdgeOutcome::Malformed),
        other => return Status::new(other, status.message()),
    };
    RequestCompleted { protocol, outcome }.emit();
    Status::new(code, status.message())
}
