//! Messages that come whole within a time, and are no longer than they may be.
//!
//! Guarantees: a call whose message is not whole [`PATIENCE`] after it was first waited for ends with an error, and what
//! came of it is dropped; so does a stream in the middle of a message, which between two may be silent for ever: nobody
//! makes the service hold many messages that never end. Where a message is decoded as it is, which can make forty times
//! its bytes of it, it has at most [`MOST`] of them, and that of a call which is no stream is handed on when the call has
//! said all: nothing that was decoded waits for its client.
//! Leaves out: what a message means. Cost: where a call is no stream, its bytes are copied once more.

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

/// How long a message may be on its way: that of a client which has thousands to send at one time takes seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// Most bytes of a message that is decoded as it is: a request's headers, of which Envoy takes 60 KiB unless it is told
/// to take more, and what it knows besides.
pub(super) const MOST: usize = 1 << 20;

/// Bytes before each message: whether it is compressed, and how long it is.
const HEAD: usize = 5;

/// What a client sends.
#[derive(Debug)]
pub(super) struct Prompt {
    body: Incoming,
    way: Way,
    /// Begins when there is something to wait for.
    end: Option<Pin<Box<Sleep>>>,
    _held: Option<Held>,
}

/// How what comes is handed on.
#[derive(Debug)]
enum Way {
    /// As it comes, of one message.
    Pieces,
    /// All at the end; what there is so far.
    Whole(Vec<u8>),
    /// As it comes, of messages one after another.
    Stream(Place),
}

impl Prompt {
    /// A message, for whoever looks at it before it is decoded.
    pub(super) const fn message(body: Incoming) -> Self {
        Self { body, way: Way::Pieces, end: None, _held: None }
    }

    /// A message of at most [`MOST`] bytes, which comes when all has come.
    pub(super) const fn whole(body: Incoming) -> Self {
        Self { body, way: Way::Whole(Vec::new()), end: None, _held: None }
    }

    /// A stream of messages of at most `most` bytes each, with which what is `held` ends.
    pub(super) const fn stream(body: Incoming, most: usize, held: Option<Held>) -> Self {
        let way = Way::Stream(Place { most, seen: 0, left: 0 });
        Self { body, way, end: None, _held: held }
    }

    /// What is handed on now that `frame` has come, if anything.
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

    /// What is handed on when all has come.
    fn rest(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.way {
            Way::Whole(all) if !all.is_empty() => Some(Frame::data(Bytes::from(take(all)))),
            _ => None,
        }
    }

    /// Whether the client owes something: anything of a call, the rest of a message of a stream.
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

/// Where among its messages a stream is.
#[derive(Debug)]
struct Place {
    /// Most bytes of one message.
    most: usize,
    /// Bytes of the head that have come: none between two messages, all within one.
    seen: usize,
    /// What the head says so far, and then how many bytes of the message are still to come.
    left: u32,
}

impl Place {
    /// Goes on by what came; whether a message has ended in it.
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

    /// A byte of the head. The first of the five, which is no part of the length, is shifted out by the others.
    fn read(&mut self, byte: u8) -> Result<(), Status> {
        self.left = self.left << 8 | u32::from(byte);
        self.seen += 1;
        let is_too_long = self.seen == HEAD && self.most < self.length();
        if is_too_long { Err(too_long(self.most)) } else { Ok(()) }
    }

    /// What of a piece is behind the message.
    fn skip<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let rest = piece.get(self.length()..).unwrap_or_default();
        self.left = self.left.saturating_sub(u32::try_from(piece.len()).unwrap_or(u32::MAX));
        rest
    }

    fn length(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }
}

/// With the code that tonic has for it. Clients are told another: by [`Surface`](super::surface::Surface), or [`unread`].
fn too_long(most: usize) -> Status {
    Status::out_of_range(format!("a message may have {most} bytes, and this one has more"))
}

/// What is said on a stream to a message that cannot be read, with the codes that clients know; counted.
pub(super) fn unread(status: &Status, protocol: Protocol) -> Status {
    let (code, outcome) = match status.code() {
        Code::OutOfRange => (Code::ResourceExhausted, Outcome::TooLarge),
        Code::Internal => (Code::Internal, Outcome::Malformed),
        other => return Status::new(other, status.message()),
    };
    Asked { protocol, outcome }.emit();
    Status::new(code, status.message())
}
