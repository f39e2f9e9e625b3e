//! Messages that come whole within a time.
//!
//! Guarantees: a call whose message is not whole [`PATIENCE`] after it was first waited for ends with an error, and what
//! came of it is dropped: nobody makes the service hold many messages that never end.
//! Leaves out: calls that are streams, whose messages come when they will.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::codegen::StdError;

/// How long a message may be on its way: that of a client which has thousands to send at one time takes seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a client sends.
#[derive(Debug)]
pub(super) struct Prompt {
    body: Incoming,
    /// Begins when there is something to wait for; never for a stream.
    ends: Ends,
}

#[derive(Debug)]
enum Ends {
    Never,
    After(Duration),
    At(Pin<Box<Sleep>>),
}

impl Prompt {
    /// A message.
    pub(super) const fn message(body: Incoming) -> Self {
        Self { body, ends: Ends::After(PATIENCE) }
    }

    /// A stream of messages.
    pub(super) const fn stream(body: Incoming) -> Self {
        Self { body, ends: Ends::Never }
    }
}

impl Body for Prompt {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if let Ends::After(patience) = self.ends {
            self.ends = Ends::At(Box::pin(sleep(patience)));
        }
        let Ends::At(end) = &mut self.ends else { return Poll::Pending };
        ready!(end.as_mut().poll(cx));
        Poll::Ready(Some(Err("the message did not come to its end in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
