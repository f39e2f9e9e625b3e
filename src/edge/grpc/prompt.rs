//! Request bodies with a time limit and a size limit for each message.
//!
//! Guarantees:
//! - A unary call fails if its message is incomplete after [`PATIENCE`]; its bytes are dropped.
//! - A stream fails if a started message is incomplete after [`PATIENCE`].
//! - A stream may be silent between two messages for any time.
//! - A message that is decoded without counting has at most [`MOST`] bytes.
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

use super::incoming::Held;
use crate::telemetry::event::{Asked, Outcome, Protocol};

/// The time limit of one message. A client that sends thousands at one time may need seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// The largest message, in bytes, that is decoded without counting. It contains a
/// request's headers and attributes; Envoy's default limit for headers is 60 KiB.
pub(super) const MOST: usize = 1 << 20;

/// The bytes of a gRPC message header: a compression flag and a length of four bytes.
const HEAD: usize = 5;

#[derive(Debug)]
pub(super) struct Prompt {
    body: Incoming,
    way: Way,
    /// Starts at the first wait for missing bytes.
    end: Option<Pin<Box<Sleep>>>,
    _held: Option<Held>,
}

#[derive(Debug)]
enum Way {
    /// Passes the frames of one message on as they arrive.
    Pieces,
    /// Buffers one message and passes it on when it is complete.
    Whole(Vec<u8>),
    /// Passes the frames of many messages on as they arrive.
    Stream(Place),
}

impl Prompt {
    /// Creates the body of a unary call whose service limits the message itself.
    pub(super) const fn message(body: Incoming) -> Self {
        Self { body, way: Way::Pieces, end: None, _held: None }
    }

    /// Creates the body of a unary call that buffers a message of at most [`MOST`] bytes.
    pub(super) const fn whole(body: Incoming) -> Self {
        Self { body, way: Way::Whole(Vec::new()), end: None, _held: None }
    }

    /// Creates the body of a stream with messages of at
    /// most `most` bytes each. `held` is dropped with it.
    pub(super) const fn stream(body: Incoming, most: usize, held: Option<Held>) -> Self {
        let way = Way::Stream(Place { most, seen: 0, left: 0 });
        Self { body, way, end: None, _held: held }
    }

    fn came(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        match &mut self.way {
            Way::Pieces => {}
            Way::Whole(all) => {
                keep(all, frame.data_ref())?;
                return Ok(None);
            }
            Way::Stream(place) => {
                if let Some(piece) = frame.data_ref()
                    && place.pass(piece)?
                {
                    self.end = None;
                }
            }
        }
        Ok(Some(frame))
    }

    fn rest(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.way {
            Way::Whole(all) if !all.is_empty() => Some(Frame::data(Bytes::from(take(all)))),
            _ => None,
        }
    }

    /// Returns true if a message is incomplete. A unary call is incomplete until its end.
    const fn owed(&self) -> bool {
        !matches!(self.way, Way::Stream(Place { seen: 0, .. }))
    }
}

impl Body for Prompt {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(frame) = frame else { return Poll::Ready(self.rest().map(Ok)) };
            let frame = frame.map_err(StdError::from);
            let came = frame.and_then(|frame| self.came(frame).map_err(StdError::from));
            if let Some(came) = came.transpose() {
                return Poll::Ready(Some(came));
            }
        }
        if !self.owed() {
            return Poll::Pending;
        }
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        ready!(end.as_mut().poll(cx));
        Poll::Ready(Some(Err("the message did not come to its end in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        let is_kept = matches!(&self.way, Way::Whole(all) if !all.is_empty());
        self.body.is_end_stream() && !is_kept
    }
}

fn keep(all: &mut Vec<u8>, piece: Option<&Bytes>) -> Result<(), Status> {
    let Some(piece) = piece else { return Ok(()) };
    all.extend_from_slice(piece);
    if HEAD + MOST < all.len() { Err(too_long(MOST)) } else { Ok(()) }
}

#[derive(Debug)]
struct Place {
    most: usize,
    /// Received bytes of the current message header: 0 between messages, all 5 within a message.
    seen: usize,
    /// The part of the length that is read; after the header, the missing bytes of the message.
    left: u32,
}

impl Place {
    /// Advances by the received bytes. Returns true if a message ended in them.
    fn pass(&mut self, mut piece: &[u8]) -> Result<bool, Status> {
        let mut ended = false;
        while let Some((first, rest)) = piece.split_first() {
            if self.seen < HEAD {
                self.read(*first)?;
                piece = rest;
            } else {
                piece = self.skip(piece);
            }
            if self.seen == HEAD && self.left == 0 {
                self.seen = 0;
                ended = true;
            }
        }
        Ok(ended)
    }

    /// Reads one byte of the header. The first byte is the
    /// compression flag; the four length bytes shift it out.
    fn read(&mut self, byte: u8) -> Result<(), Status> {
        self.left = self.left << 8 | u32::from(byte);
        self.seen += 1;
        let is_too_long = self.seen == HEAD && self.most < self.length();
        if is_too_long { Err(too_long(self.most)) } else { Ok(()) }
    }

    /// Skips the bytes of the current message and returns the rest of `piece`.
    fn skip<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let rest = piece.get(self.length()..).unwrap_or_default();
        self.left = self.left.saturating_sub(u32::try_from(piece.len()).unwrap_or(u32::MAX));
        rest
    }

    fn length(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }
}

/// Returns an error with tonic's code. Clients receive another
/// code, from [`Surface`](super::surface::Surface) or [`unread`].
fn too_long(most: usize) -> Status {
    Status::out_of_range(format!("a message may have {most} bytes, and this one has more"))
}

/// Counts an unreadable message of a stream and returns
/// the status with the code that clients expect.
pub(super) fn unread(status: &Status, protocol: Protocol) -> Status {
    let (code, outcome) = match status.code() {
        Code::OutOfRange => (Code::ResourceExhausted, Outcome::TooLarge),
        Code::Internal => (Code::Internal, Outcome::Malformed),
        other => return Status::new(other, status.message()),
    };
    Asked { protocol, outcome }.emit();
    Status::new(code, status.message())
}
