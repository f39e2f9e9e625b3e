//! Request bodies with a time limit and a size limit for each message.
//!
//! Guarantees:
//! - A unary call fails if its message is incomplete after [`MESSAGE_TIMEOUT`]; its bytes are dropped.
//! - A stream fails if a started message is incomplete after [`MESSAGE_TIMEOUT`].
//! - A stream may be silent between two messages for any time.
//! - A message that is decoded without counting has at most [`MAX_MESSAGE_BYTES`] bytes.
//! - A buffered unary message is decoded only after the client has sent all of it.
//!
//! Not covered:
//! - The meaning of a message.
//!
//! Decoding can take forty times the memory of the encoded bytes,
//! hence the size limit. A buffered message costs one more copy.

use std::mem::take;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::codegen::StdError;
use tonic::{Code, Status};

use super::incoming::ShortIdleGuard;
use crate::telemetry::event::{EdgeOutcome, Protocol, RequestCompleted};

/// The time limit of one message. A client that sends thousands at one time may need seconds.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(15);

/// The largest message, in bytes, that is decoded without counting. It contains a
/// request's headers and attributes; Envoy's default limit for headers is 60 KiB.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The bytes of a gRPC message header: a compression flag and a length of four bytes.
const FRAME_HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct BoundedBody {
    body: Incoming,
    mode: BodyMode,
    /// Starts at the first wait for missing bytes.
    deadline: Option<Pin<Box<Sleep>>>,
    _guard: Option<ShortIdleGuard>,
}

#[derive(Debug)]
enum BodyMode {
    /// Passes the frames of one message on as they arrive.
    Unbuffered,
    /// Buffers one message and passes it on when it is complete.
    Buffered(Vec<u8>),
    /// Passes the frames of many messages on as they arrive.
    Stream(FramePosition),
}

impl BoundedBody {
    /// Creates the body of a unary call whose service limits the message itself.
    pub(super) const fn unbuffered(body: Incoming) -> Self {
        Self { body, mode: BodyMode::Unbuffered, deadline: None, _guard: None }
    }

    /// Creates the body of a unary call that buffers a message of at most [`MAX_MESSAGE_BYTES`] bytes.
    pub(super) const fn buffered(body: Incoming) -> Self {
        Self { body, mode: BodyMode::Buffered(Vec::new()), deadline: None, _guard: None }
    }

    /// Creates the body of a stream with messages of at
    /// most `max_bytes` bytes each. `guard` is dropped with it.
    pub(super) const fn stream(
        body: Incoming,
        max_bytes: usize,
        guard: Option<ShortIdleGuard>,
    ) -> Self {
        let way = BodyMode::Stream(FramePosition { max_bytes, header_bytes_read: 0, remaining: 0 });
        Self { body, mode: way, deadline: None, _guard: guard }
    }

    fn accept_frame(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        match &mut self.mode {
            BodyMode::Unbuffered => {}
            BodyMode::Buffered(all) => {
                append_bounded(all, frame.data_ref())?;
                return Ok(None);
            }
            BodyMode::Stream(place) => {
                if let Some(piece) = frame.data_ref()
                    && place.advance(piece)?
                {
                    self.deadline = None;
                }
            }
        }
        Ok(Some(frame))
    }

    fn take_buffered(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.mode {
            BodyMode::Buffered(all) if !all.is_empty() => Some(Frame::data(Bytes::from(take(all)))),
            _ => None,
        }
    }

    /// Returns true if a message is incomplete. A unary call is incomplete until its end.
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
            let came = frame.and_then(|frame| self.accept_frame(frame).map_err(StdError::from));
            if let Some(came) = came.transpose() {
                return Poll::Ready(Some(came));
            }
        }
        if !self.is_message_incomplete() {
            return Poll::Pending;
        }
        let end = self.deadline.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
        ready!(end.as_mut().poll(cx));
        Poll::Ready(Some(Err("the message did not come to its end in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        let is_kept = matches!(&self.mode, BodyMode::Buffered(all) if !all.is_empty());
        self.body.is_end_stream() && !is_kept
    }
}

fn append_bounded(all: &mut Vec<u8>, piece: Option<&Bytes>) -> Result<(), Status> {
    let Some(piece) = piece else { return Ok(()) };
    all.extend_from_slice(piece);
    if FRAME_HEADER_BYTES + MAX_MESSAGE_BYTES < all.len() {
        Err(message_too_long(MAX_MESSAGE_BYTES))
    } else {
        Ok(())
    }
}

#[derive(Debug)]
struct FramePosition {
    max_bytes: usize,
    /// Received bytes of the current message header: 0 between messages, all 5 within a message.
    header_bytes_read: usize,
    /// The part of the length that is read; after the header, the missing bytes of the message.
    remaining: u32,
}

impl FramePosition {
    /// Advances by the received bytes. Returns true if a message ended in them.
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

    /// Reads one byte of the header. The first byte is the
    /// compression flag; the four length bytes shift it out.
    fn read_header_byte(&mut self, byte: u8) -> Result<(), Status> {
        self.remaining = self.remaining << 8 | u32::from(byte);
        self.header_bytes_read += 1;
        let is_too_long =
            self.header_bytes_read == FRAME_HEADER_BYTES && self.max_bytes < self.remaining_bytes();
        if is_too_long { Err(message_too_long(self.max_bytes)) } else { Ok(()) }
    }

    /// Skips the bytes of the current message and returns the rest of `piece`.
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

/// Returns an error with tonic's code. Clients receive another
/// code, from [`StatusCodeMapper`](super::status_codes::StatusCodeMapper) or [`count_unreadable`].
fn message_too_long(most: usize) -> Status {
    Status::out_of_range(format!("a message may have {most} bytes, and this one has more"))
}

/// Counts an unreadable message of a stream and returns
/// the status with the code that clients expect.
pub(super) fn count_unreadable(status: &Status, protocol: Protocol) -> Status {
    let (code, outcome) = match status.code() {
        Code::OutOfRange => (Code::ResourceExhausted, EdgeOutcome::TooLarge),
        Code::Internal => (Code::Internal, EdgeOutcome::Malformed),
        other => return Status::new(other, status.message()),
    };
    RequestCompleted { protocol, outcome }.emit();
    Status::new(code, status.message())
}
