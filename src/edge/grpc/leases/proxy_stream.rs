//! Serves the stream of one proxy.
//!
//! Guarantees:
//! - Every request gets one reply. A request does not wait for the ones before it.
//! - At most [`MAX_IN_FLIGHT`] requests are in flight; then no more messages are read.
//! - A proxy that does not read replies for [`REPLY_TIMEOUT`] loses its stream.
//!
//! Not covered:
//! - The order of the replies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sluicegate_lease_protocol::PROTOCOL;
use sluicegate_lease_protocol::api::{
    LeaseMessage, LeaseWelcome, LimitsChanged, ProxyHello, ProxyMessage, UsageReport,
    lease_message, proxy_message,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::replies;
use crate::engine::Engine;
use crate::engine::proxies::registry::{ConnectedProxy, MAX_PROXIES, RegisteredProxy};
use crate::kernel::lease::ReplicaIncarnation;
use crate::telemetry::event::{Event as _, ProxyMessageRead};
use crate::telemetry::label::ProxyMessageKind;

/// The largest number of requests of one stream in flight.
pub const MAX_IN_FLIGHT: usize = 1_024;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for the first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest length of a proxy's name and software, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// Incarnations are below 2^53.
const MAX_INCARNATION: u64 = (1 << 53) - 1;

/// The largest number of keys in a usage report.
const MAX_REPORTED_KEYS: usize = 1_000;

type ReplySender = mpsc::Sender<Result<LeaseMessage, Status>>;

/// Serves a stream until its end.
pub(super) async fn run(
    engine: &Engine,
    (address, draining): (Option<SocketAddr>, watch::Receiver<bool>),
    mut messages: Streaming<ProxyMessage>,
    replies: &ReplySender,
) {
    let ended = serve(engine, (address, draining), &mut messages, replies).await;
    if let Err(status) = ended {
        // The error is dropped if the proxy does not read it.
        let _sent = timeout(REPLY_TIMEOUT, replies.send(Err(status))).await;
    }
}

async fn serve(
    engine: &Engine,
    (address, mut draining): (Option<SocketAddr>, watch::Receiver<bool>),
    messages: &mut Streaming<ProxyMessage>,
    replies: &ReplySender,
) -> Result<(), Status> {
    let hello = first_message(messages).await?;
    let mut limits = engine.watch_limits();
    let registered = register(engine, address, &hello)?;
    let proxy = &registered.proxy;
    let welcome = lease_message::Message::Welcome(LeaseWelcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        replica: engine.owner().unwrap_or_default().to_owned(),
        limits: *limits.borrow_and_update(),
    });
    send(replies, 0, welcome).await?;
    let mut in_flight: FuturesUnordered<BoxFuture<'_, _>> = FuturesUnordered::new();
    loop {
        let (id, reply) = tokio::select! {
            _ = draining.wait_for(|leaving| *leaving) => return Ok(()),
            () = proxy.replaced.cancelled() => {
                return Err(Status::aborted("another stream of this incarnation replaced this one"));
            }
            number = next_limits(&mut limits) => {
                (0, lease_message::Message::LimitsChanged(LimitsChanged { limits: number }))
            }
            Some(reply) = in_flight.next() => reply?,
            message = messages.message(), if in_flight.len() < MAX_IN_FLIGHT => {
                let Some(ProxyMessage { id, message }) = message? else { return Ok(()) };
                proxy.messages.fetch_add(1, Relaxed);
                match message {
                    Some(proxy_message::Message::Usage(report)) => {
                        count_usage(engine, &registered, &report)?;
                    }
                    Some(message) => {
                        in_flight.push(Box::pin(answer(engine, proxy.incarnation, id, message)));
                    }
                    None => return Err(Status::invalid_argument("a message without content")),
                }
                continue;
            }
        };
        send(replies, id, reply).await?;
    }
}

async fn first_message(messages: &mut Streaming<ProxyMessage>) -> Result<ProxyHello, Status> {
    let first = timeout(HELLO_TIMEOUT, messages.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no message within 10 s"))??;
    let Some(ProxyMessage { message: Some(proxy_message::Message::Hello(hello)), .. }) = first
    else {
        return Err(Status::invalid_argument("the first message must be `hello`"));
    };
    ProxyMessageRead(ProxyMessageKind::Hello).emit();
    if hello.protocol != PROTOCOL {
        return Err(Status::failed_precondition(format!(
            "protocol {} is not supported: this version of Sluicegate has protocol {PROTOCOL}",
            hello.protocol
        )));
    }
    if !(1..=MAX_INCARNATION).contains(&hello.incarnation) {
        return Err(Status::invalid_argument("hello.incarnation must be from 1 to 2^53 - 1"));
    }
    let is_long = |text: &String| MAX_NAME_BYTES < text.len();
    if is_long(&hello.name) || is_long(&hello.software) {
        return Err(Status::invalid_argument(
            "hello.name and hello.software must have at most 128 bytes",
        ));
    }
    Ok(hello)
}

fn register(
    engine: &Engine,
    address: Option<SocketAddr>,
    hello: &ProxyHello,
) -> Result<RegisteredProxy, Status> {
    let proxy = ConnectedProxy {
        incarnation: ReplicaIncarnation(hello.incarnation),
        name: hello.name.clone(),
        software: hello.software.clone(),
        address,
        connected_at: engine.clock().steady(),
        leased_keys: AtomicU64::new(0),
        leased_hits: AtomicU64::new(0),
        messages: AtomicU64::new(1),
        replaced: CancellationToken::new(),
    };
    let full = || Status::resource_exhausted(format!("{MAX_PROXIES} proxies are connected"));
    engine.proxies().add(proxy).ok_or_else(full)
}

/// Returns the number of the limits after the next change.
async fn next_limits(limits: &mut watch::Receiver<u64>) -> u64 {
    if limits.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    *limits.borrow_and_update()
}

async fn send(
    replies: &ReplySender,
    id: u64,
    message: lease_message::Message,
) -> Result<(), Status> {
    let reply = Ok(LeaseMessage { id, message: Some(message) });
    match timeout(REPLY_TIMEOUT, replies.send(reply)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Status::resource_exhausted("replies were not read for 10 s")),
    }
}

/// Returns the reply to one request.
async fn answer(
    engine: &Engine,
    proxy: ReplicaIncarnation,
    id: u64,
    message: proxy_message::Message,
) -> Result<(u64, lease_message::Message), Status> {
    if id == 0 {
        return Err(Status::invalid_argument("the id of a request must be above 0"));
    }
    let (kind, reply) = match message {
        proxy_message::Message::Rule(request) => {
            (ProxyMessageKind::Rule, lease_message::Message::Rule(replies::rule(engine, &request)?))
        }
        proxy_message::Message::Borrow(message) => (
            ProxyMessageKind::Borrow,
            lease_message::Message::Borrow(replies::borrow(engine, proxy, &message).await?),
        ),
        proxy_message::Message::Charge(message) => (
            ProxyMessageKind::Charge,
            lease_message::Message::Charge(replies::charge(engine, &message).await?),
        ),
        proxy_message::Message::Check(message) => (
            ProxyMessageKind::Check,
            lease_message::Message::Check(replies::check(engine, &message).await?),
        ),
        proxy_message::Message::Hello(_) | proxy_message::Message::Usage(_) => {
            return Err(Status::invalid_argument("`hello` must be the first message only"));
        }
    };
    ProxyMessageRead(kind).emit();
    Ok((id, reply))
}

fn count_usage(
    engine: &Engine,
    registered: &RegisteredProxy,
    report: &UsageReport,
) -> Result<(), Status> {
    ProxyMessageRead(ProxyMessageKind::Usage).emit();
    if MAX_REPORTED_KEYS < report.keys.len() {
        return Err(Status::invalid_argument("usage.keys must have at most 1,000 keys"));
    }
    registered.proxy.set_leased(report.leased_keys, report.leased_hits);
    report.keys.iter().try_for_each(|usage| replies::count(engine, usage))
}
