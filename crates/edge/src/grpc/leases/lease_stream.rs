//! Serves the stream of one proxy: reads its messages and sends the replies.
//!
//! Guarantees:
//! - A request that waits for the store does not block later requests.
//! - Requests that arrive together share a store call, where the store can.
//! - At most [`MAX_IN_FLIGHT`] requests of a stream are in flight; then it reads no more.
//! - Changed limits, and changed rows of tables that the proxy asked for, are announced at once.
//! - An invalid message ends the stream with `INVALID_ARGUMENT`.
//! - A newer stream of the same incarnation and peer ends this one with `ABORTED`.
//! - A stream without messages ends after [`IDLE_TIMEOUT`].
//!
//! Not covered:
//! - The order of the replies.
//! - The replies themselves (see [`super::answers`]).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::answers::{answer_message, kind_of, rows_changed, welcome};
use super::requests;
use crate::engine::Engine;
use crate::engine::proxies::{ProxyConnection, StreamSlot};
use crate::grpc::bounded_body::count_unreadable;
use crate::telemetry::event::{Event as _, Protocol, ProxyMessageKind};
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::{LeaseMessage, LimitsChanged, ProxyMessage};

/// The largest number of requests of one stream that are in flight.
pub const MAX_IN_FLIGHT: usize = 1_024;

/// The largest number of messages that are started together.
const MAX_TOGETHER: usize = 128;

/// The time in which a new stream must introduce its proxy.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The time in which a proxy must send a message. A stream without messages ends, and the proxy
/// connects again when it needs a limit.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The time in which a proxy must read a reply if the reply queue is full.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

type ReplySender = mpsc::Sender<Result<LeaseMessage, Status>>;

/// The reply to a message, or the error that ends the stream. A report has no reply.
type Answer = Result<Option<LeaseMessage>, Status>;

/// Why a stream ends.
enum StreamEnd {
    /// The proxy closed the stream, does not read it, or this process drains.
    Closed,
    Failed(Status),
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

struct LeaseStream<'s> {
    engine: &'s Engine,
    connection: &'s ProxyConnection,
    replies: &'s ReplySender,
    in_flight: FuturesUnordered<BoxFuture<'s, Answer>>,
}

pub(super) async fn run(
    client: (&Engine, Option<SocketAddr>, StreamSlot),
    mut draining: watch::Receiver<bool>,
    mut messages: Streaming<ProxyMessage>,
    replies: &ReplySender,
) {
    let ended = tokio::select! {
        _ = draining.wait_for(|is_draining| *is_draining) => return,
        ended = serve(client, &mut messages, replies) => ended,
    };
    if let StreamEnd::Failed(status) = ended {
        // The error is dropped if the proxy does not read the previous replies.
        let _sent = tokio::time::timeout(REPLY_TIMEOUT, replies.send(Err(status))).await;
    }
}

async fn serve(
    (engine, peer, slot): (&Engine, Option<SocketAddr>, StreamSlot),
    messages: &mut Streaming<ProxyMessage>,
    replies: &ReplySender,
) -> StreamEnd {
    let connection = match introduce((engine, peer, slot), messages).await {
        Ok(connection) => connection,
        Err(ended) => return ended,
    };
    let mut limits = engine.proxies().watch_limits();
    let in_flight = FuturesUnordered::new();
    let mut stream = LeaseStream { engine, connection: &connection, replies, in_flight };
    tokio::select! {
        () = connection.replaced() => Status::aborted("a newer stream of this incarnation is open").into(),
        Err(ended) = stream.serve_messages(messages, &mut limits) => ended,
        else => StreamEnd::Closed,
    }
}

/// Reads the first message of the stream, and adds the proxy to the list.
async fn introduce(
    (engine, peer, slot): (&Engine, Option<SocketAddr>, StreamSlot),
    messages: &mut Streaming<ProxyMessage>,
) -> Result<ProxyConnection, StreamEnd> {
    let Ok(first) = tokio::time::timeout(HELLO_TIMEOUT, messages.message()).await else {
        return Err(Status::deadline_exceeded("no hello arrived in time").into());
    };
    let message = readable(first)?.ok_or(StreamEnd::Closed)?;
    let Some(Message::Hello(hello)) = message.message else {
        return Err(Status::invalid_argument("the first message must be hello").into());
    };
    ProxyMessageKind::Hello.emit();
    let identity = requests::parse_hello(hello, peer)?;
    let connected = engine.proxies().connect(identity, slot, engine.clock().now());
    connected.map_err(|taken| Status::already_exists(taken.to_string()).into())
}

/// Returns the message; `None` at the end of the stream.
fn readable(
    received: Result<Option<ProxyMessage>, Status>,
) -> Result<Option<ProxyMessage>, StreamEnd> {
    received.map_err(|status| StreamEnd::Failed(count_unreadable(&status, Protocol::Leases)))
}

impl<'s> LeaseStream<'s> {
    async fn serve_messages(
        &mut self,
        messages: &mut Streaming<ProxyMessage>,
        limits: &mut watch::Receiver<u64>,
    ) -> Result<(), StreamEnd> {
        let welcome = welcome(self.engine, *limits.borrow_and_update());
        self.send(Some(unnumbered(Reply::Welcome(welcome)))).await?;
        let mut idle_until = Instant::now() + IDLE_TIMEOUT;
        loop {
            tokio::select! {
                biased;
                Ok(()) = limits.changed() => {
                    let limits = *limits.borrow_and_update();
                    let changed = Reply::LimitsChanged(LimitsChanged { limits });
                    self.send(Some(unnumbered(changed))).await?;
                }
                change = self.connection.rows_changed() => {
                    let changed = rows_changed(self.engine, change);
                    self.send(Some(unnumbered(changed))).await?;
                }
                Some(answer) = self.in_flight.next() => self.send(answer?).await?,
                () = sleep_until(idle_until) => {
                    return Err(Status::deadline_exceeded("no message arrived in time").into());
                }
                received = messages.message(), if self.in_flight.len() < MAX_IN_FLIGHT => {
                    idle_until = Instant::now() + IDLE_TIMEOUT;
                    let first = readable(received)?.ok_or(StreamEnd::Closed)?;
                    self.start_ready(first, messages).await?;
                }
            }
        }
    }

    /// Starts `first` and the other messages that have arrived. Sends the replies that are ready.
    async fn start_ready(
        &mut self,
        first: ProxyMessage,
        messages: &mut Streaming<ProxyMessage>,
    ) -> Result<(), StreamEnd> {
        let room = MAX_IN_FLIGHT.saturating_sub(self.in_flight.len()).min(MAX_TOGETHER);
        let (mut together, mut is_closed) = (vec![self.answer(first)?], false);
        while together.len() < room
            && let Some(received) = messages.message().now_or_never()
        {
            let Some(message) = readable(received)? else {
                is_closed = true;
                break;
            };
            together.push(self.answer(message)?);
        }
        for answer in self.start_together(together).await {
            self.send(answer?).await?;
        }
        if is_closed { Err(StreamEnd::Closed) } else { Ok(()) }
    }

    /// Polls `answers` once, so that their store calls are sent together. Returns the answers that
    /// are ready.
    async fn start_together(&mut self, mut answers: Vec<BoxFuture<'s, Answer>>) -> Vec<Answer> {
        let (engine, in_flight) = (self.engine, &mut self.in_flight);
        poll_fn(move |context| {
            let mut ready = Vec::new();
            engine.batch_store_calls(&mut || {
                for mut answer in answers.drain(..) {
                    match answer.as_mut().poll(context) {
                        Poll::Ready(answer) => ready.push(answer),
                        Poll::Pending => in_flight.push(answer),
                    }
                }
            });
            Poll::Ready(ready)
        })
        .await
    }

    fn answer(&self, message: ProxyMessage) -> Result<BoxFuture<'s, Answer>, StreamEnd> {
        let (engine, connection) = (self.engine, self.connection);
        connection.count_message();
        let ProxyMessage { id, message: Some(message) } = message else {
            return Err(Status::invalid_argument("the message has no known content").into());
        };
        let kind = kind_of(&message);
        kind.emit();
        if (id == 0) != (kind == ProxyMessageKind::Usage) {
            let text = "id must be above 0 for requests, and 0 for usage";
            return Err(Status::invalid_argument(text).into());
        }
        let reply = answer_message((engine, connection), message);
        Ok(async move { Ok(reply.await?.map(|reply| LeaseMessage { id, message: Some(reply) })) }
            .boxed())
    }

    /// Sends a reply. Fails if the proxy does not read it in time.
    async fn send(&mut self, reply: Option<LeaseMessage>) -> Result<(), StreamEnd> {
        let Some(reply) = reply else { return Ok(()) };
        match tokio::time::timeout(REPLY_TIMEOUT, self.replies.send(Ok(reply))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(StreamEnd::Closed),
        }
    }
}

const fn unnumbered(message: Reply) -> LeaseMessage {
    LeaseMessage { id: 0, message: Some(message) }
}
