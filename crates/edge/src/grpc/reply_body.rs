//! The body of a gRPC reply: one message and its trailers, or a body of tonic.
//!
//! Cost: a message of its own takes no allocation besides its bytes and the trailers.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame};
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Response, header};

const GRPC_STATUS: &str = "grpc-status";

#[derive(Debug, Default)]
pub(super) enum ReplyBody {
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
        let mut response = Response::new(Self::Message(frame));
        let content_type = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

impl hyper::body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let (frame, rest) = match &mut *self {
            Self::Tonic(body) => return Pin::new(body).poll_frame(cx),
            Self::Empty => return Poll::Ready(None),
            Self::Message(message) => (Frame::data(std::mem::take(message)), Self::Trailers),
            Self::Trailers => (Frame::trailers(ok_trailers()), Self::Empty),
        };
        *self = rest;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Tonic(body) => body.is_end_stream(),
            Self::Empty => true,
            Self::Message(_) | Self::Trailers => false,
        }
    }
}

fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(HeaderName::from_static(GRPC_STATUS), HeaderValue::from_static("0"));
    trailers
}
