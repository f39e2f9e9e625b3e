//! The body of a gRPC reply: one message and its trailers, or a body of tonic.
//!
//! Guarantees:
//! - A message that the client does not accept stays charged to `listen.max_body_memory`, except its last
//!   [`MAX_CHUNK_BYTES`].
//!
//! Cost: besides the message, the allocations of two small header maps.

use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame};
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use crate::body_memory::{BodyMemory, BodyMemoryFull};

/// The largest part of a message that the HTTP/2 server takes at once. It takes a part as soon as the
/// client accepts one byte, and then the part is no longer charged.
const MAX_CHUNK_BYTES: usize = 4 << 10;

const GRPC_STATUS: &str = "grpc-status";

#[derive(Debug, Default)]
pub(super) struct ReplyBody {
    content: Content,
    /// The account of the message, which stays charged until the client accepts the message.
    memory: Option<Arc<BodyMemory>>,
}

#[derive(Debug, Default)]
enum Content {
    /// A message, after which the trailers follow.
    Message(Bytes),
    Trailers,
    #[default]
    Empty,
    Tonic(tonic::body::Body),
}

impl ReplyBody {
    /// Returns the reply of a call that succeeded. `frame` is the message, with its gRPC header.
    pub(super) fn response(frame: Bytes) -> Response<Self> {
        let mut response = Response::new(Content::Message(frame).into());
        let content_type = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }

    /// Charges the message to `memory`, the account of its call.
    ///
    /// # Errors
    /// [`BodyMemoryFull`] if the bodies in flight would take too much.
    pub(super) fn charge(&mut self, memory: Arc<BodyMemory>) -> Result<(), BodyMemoryFull> {
        let Content::Message(message) = &self.content else { return Ok(()) };
        memory.resize(message.len())?;
        self.memory = Some(memory);
        Ok(())
    }
}

impl From<tonic::body::Body> for ReplyBody {
    fn from(body: tonic::body::Body) -> Self {
        Content::Tonic(body).into()
    }
}

impl From<Content> for ReplyBody {
    fn from(content: Content) -> Self {
        Self { content, memory: None }
    }
}

impl hyper::body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let (frame, rest) = match &mut self.content {
            Content::Tonic(body) => return Pin::new(body).poll_frame(cx),
            Content::Empty => return Poll::Ready(None),
            Content::Message(message) if MAX_CHUNK_BYTES < message.len() => {
                return Poll::Ready(Some(Ok(Frame::data(message.split_to(MAX_CHUNK_BYTES)))));
            }
            Content::Message(message) => (Frame::data(take(message)), Content::Trailers),
            Content::Trailers => (Frame::trailers(ok_trailers()), Content::Empty),
        };
        self.content = rest;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Tonic(body) => body.is_end_stream(),
            Content::Empty => true,
            Content::Message(_) | Content::Trailers => false,
        }
    }
}

fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(HeaderName::from_static(GRPC_STATUS), HeaderValue::from_static("0"));
    trailers
}
