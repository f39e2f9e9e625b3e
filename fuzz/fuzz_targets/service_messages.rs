//! Bytes as calls of proxies, programs and other replicas to a service with an engine.
//!
//! The input is a list of calls, as [`Call::read`] reads them. All streams are open at once, and
//! their messages take turns.
//!
//! Guarantees:
//! - Every call ends.
//! - A limit that no call names stays as it was.
//! - After all calls and the longest duration of a request, every limit is free again.
#![no_main]

use std::future::Future;
use std::pin::Pin;
use http_body::Body as _;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use prost::bytes::Bytes;
use sluicegate::clock::Clock;
use sluicegate::config::Config;
use sluicegate::config::settings::ProxyAccess;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::grpc::incoming::ClientIdentity;
use sluicegate::edge::grpc::leases::LeasesService;
use sluicegate::edge::grpc::peer::api::Updates;
use sluicegate::edge::grpc::peer::{PeerReceiver, PeerTrust};
use sluicegate::edge::grpc::permits::PermitsService;
use sluicegate::edge::grpc::permits::api::permits_server::PermitsServer;
use sluicegate::engine::proxies::PeerKey;
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, RequestPermits};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate_fuzz::{NOW, load_valid};
use sluicegate_lease_protocol::api::leases_server::LeasesServer;
use sluicegate_lease_protocol::api::{ProxyHello, ProxyMessage, proxy_message};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::Request;
use tonic::service::Routes;

/// The longest `max_duration` of a limit, and more than the expiry of a share.
const LONGEST: Nanos = Nanos::from_secs(120);

/// A limit of each kind. No input names the value of `quiet`, whose requests last longer than all passes of the clock.
static LIMITS: LazyLock<Arc<Config>> = LazyLock::new(|| {
    let limits = "domain: d\ndescriptors:\n\
        - {key: rate, rate_limit: {unit: second, requests_per_unit: 9, mode: leased, max_overshoot: 3}}\n\
        - {key: shared, concurrency: {limit: 3, mode: shared, max_duration: 60s}}\n\
        - {key: strict, concurrency: {limit: 3, mode: strict, max_duration: 60s}}\n\
        - {key: local, concurrency: {limit: 3, mode: local, max_duration: 60s}}\n\
        - {key: queued, concurrency: {limit: 1, mode: local, max_duration: 60s, queue: {size: 3, timeout: 1s}}}\n\
        - {key: adaptive, concurrency: {limit: 3, adaptive: {algorithm: gradient, max: 9}, max_duration: 60s}}\n\
        - {key: quiet, concurrency: {limit: 1, mode: strict, max_duration: 1h}}\n";
    load_valid(&[("d.yaml", limits)])
});

/// The value of `quiet` that is in use during all calls.
const QUIET: &str = "6b1f0c7d9a3e45828c14";

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().expect("a runtime")
});

fuzz_target!(|bytes: &[u8]| RUNTIME.block_on(run(bytes)));

async fn run(bytes: &[u8]) {
    let store = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let engine = Engine::new(Clock::manual(NOW), store, DecisionPolicy::default());
    engine.publish(LIMITS.clone());
    let service = Service::new(Arc::new(engine));
    let quiet = service.admit("quiet", QUIET).await.expect("the first permit");
    let mut rest = bytes;
    let calls = std::iter::from_fn(|| Call::read(&mut rest)).take(50);
    join(calls.map(|call| service.call(call)).collect()).await;
    assert!(service.admit("quiet", QUIET).await.is_none(), "a limit of others has changed");
    drop(quiet);
    service.expect_free().await;
}

/// One call.
enum Call {
    /// The stream of a proxy: its number, and its messages.
    Exchange(u8, Vec<Bytes>),
    /// A call or stream of `Permits`.
    Permits(&'static str, Vec<Bytes>),
    /// The releases and renewals from a replica.
    Deliver(Bytes),
    /// The clock moves by this number of seconds.
    Pass(u8),
}

impl Call {
    /// Reads a byte with the kind and a number, and its messages, each after its length. A length
    /// of 255 ends the call.
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let (kind, number) = split_byte(rest).map(|byte| (byte & 7, byte >> 3))?;
        let mut messages = Vec::new();
        while let Some(length) = split_byte(rest)
            && length != u8::MAX
        {
            let (message, others) = rest.split_at(rest.len().min(length.into()));
            messages.push(Bytes::copy_from_slice(message));
            *rest = others;
        }
        let permits = |method| Self::Permits(method, messages.clone());
        Some(match kind {
            0 | 1 => Self::Exchange(number, messages),
            2 => permits("Session"),
            3 => permits("Acquire"),
            4 => permits("Release"),
            5 => permits("Renew"),
            6 => Self::Deliver(messages.into_iter().next().unwrap_or_default()),
            _ => Self::Pass(number),
        })
    }
}

fn split_byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    Some(*first)
}

/// The services of the ports, and their engine.
struct Service {
    engine: Arc<Engine>,
    routes: Routes,
    peers: PeerReceiver,
    _draining: watch::Sender<bool>,
}

impl Service {
    fn new(engine: Arc<Engine>) -> Self {
        let (sender, draining) = watch::channel(false);
        let (ours, reporting) = (Arc::clone(&engine), ReplyOptions::default());
        let bodies = BodyLimits::default();
        let permits = PermitsService::new(Arc::clone(&ours), reporting, bodies, draining.clone());
        let leases = LeasesService::new(Arc::clone(&ours), ProxyAccess::On, draining);
        let routes =
            Routes::new(PermitsServer::new(permits)).add_service(LeasesServer::new(leases));
        let peers = PeerReceiver::new(ours, Arc::new(PeerTrust::default()));
        Self { engine, routes: routes.prepare(), peers, _draining: sender }
    }

    fn call<'s>(&'s self, call: Call) -> Pin<Box<dyn Future<Output = ()> + 's>> {
        Box::pin(async move {
            match call {
                Call::Exchange(number, messages) => {
                    let hello = ProxyHello { protocol: 1, incarnation: u64::from(number) + 1, ..named() };
                    let hello = proxy_message::Message::Hello(hello);
                    let hello = ProxyMessage { id: 0, message: Some(hello) }.encode_to_vec();
                    let frames = std::iter::once(Bytes::from(hello)).chain(messages).collect();
                    self.send("sluicegate.v1.Leases/Exchange", number & 3, frames).await;
                }
                Call::Permits(method, messages) => {
                    self.send(&format!("sluicegate.v1.Permits/{method}"), 0, messages).await;
                }
                Call::Deliver(bytes) => {
                    if let Ok(updates) = Updates::decode(bytes) {
                        let result = self.peers.apply(&updates);
                        assert_eq!(result.states.len(), updates.updates.len());
                    }
                }
                Call::Pass(seconds) => {
                    tokio::task::yield_now().await;
                    self.advance(Nanos::from_secs(seconds.into()));
                }
            }
        })
    }

    /// Sends a call from the peer with this number, and reads all its replies.
    async fn send(&self, method: &str, peer: u8, messages: Vec<Bytes>) {
        let mut request = Request::post(format!("http://service/{method}"))
            .header("content-type", "application/grpc")
            .body(Body::new(Frames(messages.into_iter(), false)))
            .expect("a request");
        let address = std::net::Ipv4Addr::new(192, 0, 2, peer).into();
        let peer = PeerKey::of_address(address);
        request.extensions_mut().insert(ClientIdentity { peer, is_trusted: true });
        let Ok(response) = self.routes.clone().call(request).await;
        let mut body = std::pin::pin!(response.into_body());
        while std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await.is_some() {}
    }

    /// Returns the permits of a request; `None` if it is rejected.
    async fn admit(&self, key: &str, value: &str) -> Option<RequestPermits> {
        let entries = [(key, value)].into_iter().collect();
        let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
        let check = Check { domain: "d", descriptors: [descriptor].into_iter().collect() };
        match self.engine.admit_with_deadline(&check, Some(Nanos(0))).await {
            Ok(AdmissionOutcome::Decided(_, permits)) => Some(permits),
            _ => None,
        }
    }

    fn advance(&self, by: Nanos) {
        if let Clock::Manual(clock) = self.engine.clock() {
            clock.advance(by);
        }
    }

    /// Requires that no proxy has a record, and that each limit admits as many as it should.
    async fn expect_free(&self) {
        for _ in 0..2 {
            self.advance(LONGEST);
            self.engine.proxies().sweep(self.engine.clock().steady());
        }
        assert_eq!(self.engine.proxies().records(), 0);
        for (key, limit) in [("strict", 3), ("local", 3), ("queued", 1), ("quiet", 1)] {
            let value = if key == "quiet" { QUIET } else { "a" };
            let mut permits = Vec::new();
            while let Some(permit) = self.admit(key, value).await {
                permits.push(permit);
            }
            assert_eq!(permits.len(), limit, "{key}");
        }
    }
}

fn named() -> ProxyHello {
    ProxyHello { name: "edge".into(), software: "test/1".into(), ..ProxyHello::default() }
}

/// The body of a call: one frame for each message, with a pause after each.
struct Frames(std::vec::IntoIter<Bytes>, bool);

impl tonic::codegen::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.1 = !self.1;
        if self.1 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = self.0.next().map(|message| {
            let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
            Ok(http_body::Frame::data([&[0], &length[..], &message].concat().into()))
        });
        Poll::Ready(frame)
    }
}

/// Runs all calls together.
async fn join(mut calls: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    std::future::poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
