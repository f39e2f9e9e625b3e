//! Tests of the gRPC service `sluicegate.v1.Permits` over a real connection.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::grpc::permits::api::acquire_response::Verdict;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::session_response::Response as StreamResponse;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, AcquireResponse, Answer, Descriptor, Entry, Error, Outcome, ReleaseRequest,
    RenewRequest, SessionRequest, SessionResponse,
};
use sluicegate::edge::health::Readiness;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::concurrency::pace::WAKE_DELAY;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};

use super::{Served, served_with};
use crate::edge::{empty_engine, engine_with_concurrency};
use crate::support::engine::publish;
use crate::support::waiting::{PATIENCE, soon};

const ONE: &str = "one-0123456789abcdef";
const TWO: &str = "two-0123456789abcdef";

async fn serve(engine: &Arc<Engine>) -> (Served, PermitsClient<Channel>) {
    let served = served_with(Arc::clone(engine), Readiness::Ready, Hooks::default()).await;
    let client = PermitsClient::new(served.channel.clone());
    (served, client)
}

fn acquire(id: &str) -> AcquireRequest {
    let entries = vec![Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    AcquireRequest { id: id.into(), domain: "d".into(), descriptors, max_wait_us: None }
}

fn release(id: &str) -> ReleaseRequest {
    ReleaseRequest {
        id: id.into(),
        outcome: Outcome::Success.into(),
        rtt_us: Some(1_500),
        ..ReleaseRequest::default()
    }
}

fn renew(id: &str) -> RenewRequest {
    RenewRequest { id: id.into(), owner: String::new() }
}

fn in_flight(engine: &Engine) -> u64 {
    engine.concurrency_limits().totals().in_flight
}

const REJECTS: &str =
    "limit: 1, max_duration: 20s, reject: {status: 503, retry_after: 1500ms, body: busy}";

/// The upstream answers 429 to every third request.
#[tokio::test]
async fn acquires_wait_for_their_turns_and_answers_set_the_rate() {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::system(), memory, DecisionPolicy::default());
    let engine = Arc::new(engine.with_max_buckets(100, 0));
    let pace = "- key: k\n  rate_limit: {requests_per_unit: 200, unit: second, \
                adaptive: {min: 50, decrease: 0.5, overloaded_by: [429]}, \
                wait: {at_most: 1h, queue: 20}}\n";
    publish(&engine, "", pace);
    let (_served, client) = serve(&engine).await;
    let started_at = engine.clock().steady();
    let calls = (0..12).map(|number| {
        let mut client = client.clone();
        async move {
            let id = format!("call-{number}-0123456789abcdef");
            let reply = client.acquire(acquire(&id)).await.unwrap().into_inner();
            assert!(reply.has_permits, "{reply:?}");
            let http_status = Some(if number % 3 == 0 { 429 } else { 200 });
            let answer = Some(Answer { http_status, ..Answer::default() });
            let release = ReleaseRequest { answer, ..release(&id) };
            assert!(client.release(release).await.unwrap().into_inner().had_permits);
        }
    });
    futures_util::future::join_all(calls).await;
    // The rate is at most 200 per second plus the growth of eight successes.
    let took = engine.clock().steady().since(started_at);
    assert!(Nanos(11 * 4 * Nanos::MILLI.0).since(WAKE_DELAY) <= took, "{took:?}");
    let (_, metrics) = engine.concurrency_limits().snapshots().remove(0);
    assert!(metrics.pace.unwrap() <= 101_000, "{metrics:?}");
    assert_eq!((metrics.load.in_flight, metrics.load.waiting), (0, 0));
}

#[tokio::test]
async fn acquire_enforces_the_limit_and_returns_the_rejection() {
    let engine = engine_with_concurrency(REJECTS);
    let (_served, mut client) = serve(&engine).await;
    let admitted = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    let want = AcquireResponse {
        verdict: Verdict::Allow.into(),
        has_permits: true,
        renew_within_us: 20_000_000,
        ..AcquireResponse::default()
    };
    assert_eq!(admitted, want);
    let denied = client.acquire(acquire(TWO)).await.unwrap().into_inner();
    let want = AcquireResponse {
        verdict: Verdict::Deny.into(),
        reason: "concurrency_limit_reached".into(),
        status: 503,
        retry_after_us: Some(1_500_000),
        body: "busy".into(),
        ..AcquireResponse::default()
    };
    assert_eq!(denied, want);
    assert!(client.renew(renew(ONE)).await.unwrap().into_inner().renewed);
    assert!(!client.renew(renew(TWO)).await.unwrap().into_inner().renewed);
    assert!(client.release(release(ONE)).await.unwrap().into_inner().had_permits);
    assert!(!client.release(release(TWO)).await.unwrap().into_inner().had_permits);
    assert_eq!(in_flight(&engine), 0);
    assert!(
        client.acquire(acquire(TWO)).await.unwrap().into_inner().has_permits,
        "it may ask again"
    );
}

/// A refusal lowers an AIMD limit of 10 by a tenth after 5 samples. A success raises it by one.
#[tokio::test]
async fn the_servers_answer_in_a_release_adapts_the_limit() {
    for (http_status, grpc_status, limit) in [
        (Some(429), None, 9),
        (Some(503), None, 9),
        (None, Some(14), 9),
        (Some(200), Some(8), 9),
        (Some(200), Some(5), 10),
        (Some(404), None, 11),
        (None, Some(0), 11),
    ] {
        let engine = engine_with_concurrency("limit: 10, adaptive: {algorithm: aimd}");
        let (_served, mut client) = serve(&engine).await;
        let ids: Vec<_> = (0..5).map(|n| format!("0123456789abcde{n}")).collect();
        for id in &ids {
            client.acquire(acquire(id)).await.unwrap();
        }
        for id in &ids {
            let answer = Some(Answer { http_status, grpc_status, ..Answer::default() });
            let ended = ReleaseRequest { outcome: 0, answer, ..release(id) };
            assert!(client.release(ended).await.unwrap().into_inner().had_permits);
        }
        let load = engine.concurrency_snapshot("d", &[("k", "v")]).unwrap().load;
        assert_eq!(load.limit, limit, "{http_status:?} {grpc_status:?}");
    }
}

#[tokio::test]
async fn an_early_release_leaves_no_permit() {
    let engine = engine_with_concurrency("limit: 1");
    let (_served, mut client) = serve(&engine).await;
    assert!(!client.release(release(ONE)).await.unwrap().into_inner().had_permits);
    let admitted = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    assert_eq!((admitted.verdict(), admitted.has_permits), (Verdict::Allow, false));
    assert_eq!(in_flight(&engine), 0);
}

#[tokio::test]
async fn rate_limit_denials_return_429_and_retry_after() {
    let engine = crate::edge::engine(crate::edge::two_a_minute());
    let (_served, mut client) = serve(&engine).await;
    for (id, held) in [(ONE, false), (TWO, false)] {
        let admitted = client.acquire(acquire(id)).await.unwrap().into_inner();
        assert_eq!((admitted.verdict(), admitted.has_permits), (Verdict::Allow, held));
    }
    let denied = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    assert_eq!(
        (denied.verdict(), denied.status, &*denied.reason),
        (Verdict::Deny, 429, "over_limit")
    );
    assert_eq!(denied.retry_after_us, Some(60_000_000));
}

#[tokio::test]
async fn invalid_permit_calls_are_errors_and_acquire_no_permit() {
    let engine = engine_with_concurrency("limit: 9");
    let (_served, mut client) = serve(&engine).await;
    let mut code = async |asked| client.acquire(asked).await.unwrap_err().code();
    assert_eq!(code(acquire("short")).await, Code::InvalidArgument);
    assert_eq!(
        code(AcquireRequest { domain: String::new(), ..acquire(ONE) }).await,
        Code::InvalidArgument
    );
    assert_eq!(
        code(AcquireRequest { descriptors: vec![], ..acquire(ONE) }).await,
        Code::InvalidArgument
    );
    assert_eq!(in_flight(&engine), 0);
    client.acquire(acquire(ONE)).await.unwrap();
    assert_eq!(client.acquire(acquire(ONE)).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(in_flight(&engine), 1);
    for outcome in [0, 4] {
        let no_outcome = ReleaseRequest { outcome, ..release(ONE) };
        assert_eq!(client.release(no_outcome).await.unwrap_err().code(), Code::InvalidArgument);
    }
    for (http_status, grpc_status) in
        [(None, None), (Some(99), None), (Some(600), Some(8)), (Some(200), Some(17))]
    {
        let answer = Some(Answer { http_status, grpc_status, ..Answer::default() });
        let invalid_answer = ReleaseRequest { answer, ..release(ONE) };
        assert_eq!(client.release(invalid_answer).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(client.release(release("!")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.renew(renew("!")).await.unwrap_err().code(), Code::InvalidArgument);
    let (_served, mut unloaded) = serve(&empty_engine()).await;
    assert_eq!(unloaded.acquire(acquire(ONE)).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn canceled_queued_acquire_gets_no_permit() {
    let engine = engine_with_concurrency("limit: 1, queue: {size: 9, timeout: 1h}");
    let (_served, mut client) = serve(&engine).await;
    client.acquire(acquire(ONE)).await.unwrap();
    let short_wait = AcquireRequest { max_wait_us: Some(2_000), ..acquire(TWO) };
    let denied = client.acquire(short_wait).await.unwrap().into_inner();
    assert_eq!(&*denied.reason, "queue_timeout");
    let no_wait = AcquireRequest { max_wait_us: Some(0), ..acquire(TWO) };
    assert_eq!(
        &*client.acquire(no_wait).await.unwrap().into_inner().reason,
        "concurrency_limit_reached"
    );
    let mut with_timeout = Request::new(acquire(TWO));
    with_timeout.set_timeout(std::time::Duration::from_millis(40));
    let ended = client.acquire(with_timeout).await;
    assert!(ended.is_err() || &*ended.unwrap().into_inner().reason == "queue_timeout");
    let nobody_waits = async {
        while engine.concurrency_limits().totals().waiting != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("nobody waits", nobody_waits).await;
    assert_eq!(in_flight(&engine), 1);
}

struct HoldStream {
    ask: mpsc::Sender<SessionRequest>,
    answers: Streaming<SessionResponse>,
}

async fn open(client: &mut PermitsClient<Channel>) -> HoldStream {
    let (ask, asked) = mpsc::channel(16);
    let answers = client.session(ReceiverStream::new(asked)).await.unwrap().into_inner();
    HoldStream { ask, answers }
}

impl HoldStream {
    async fn send(&self, ask: StreamRequest) {
        self.ask.send(SessionRequest { request: Some(ask) }).await.unwrap();
    }

    async fn receive(&mut self) -> (String, StreamResponse) {
        let replies = tokio::time::timeout(PATIENCE, self.answers.message()).await;
        let answer = replies.expect("an answer").unwrap().unwrap();
        (answer.id, answer.response.unwrap())
    }

    async fn call(&mut self, ask: StreamRequest) -> StreamResponse {
        self.send(ask).await;
        self.receive().await.1
    }
}

fn refused(answer: StreamResponse) -> Code {
    match answer {
        StreamResponse::Error(Error { code, .. }) => Code::from(i32::try_from(code).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn is_acquired(answer: StreamResponse) -> bool {
    match answer {
        StreamResponse::Acquire(answer) => answer.has_permits,
        StreamResponse::Release(answer) => answer.had_permits,
        StreamResponse::Renew(answer) => answer.renewed,
        other => panic!("{other:?}"),
    }
}

async fn until_free(engine: &Engine) {
    let free = async {
        while engine.concurrency_limits().totals().in_flight != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.expect("given back");
}

#[tokio::test]
async fn a_closed_stream_releases_its_permits() {
    let engine = engine_with_concurrency("limit: 2");
    let (_served, mut client) = serve(&engine).await;
    for cut in [false, true] {
        let mut hold = open(&mut client).await;
        assert!(is_acquired(hold.call(StreamRequest::Acquire(acquire(ONE))).await));
        assert!(is_acquired(hold.call(StreamRequest::Acquire(acquire(TWO))).await));
        assert!(is_acquired(hold.call(StreamRequest::Renew(renew(ONE))).await));
        assert!(is_acquired(hold.call(StreamRequest::Release(release(ONE))).await));
        assert!(!is_acquired(hold.call(StreamRequest::Release(release(ONE))).await));
        assert_eq!(in_flight(&engine), 1);
        let HoldStream { ask, answers } = hold;
        drop(ask);
        let answers = if cut { None } else { Some(answers) };
        until_free(&engine).await;
        drop(answers);
    }
}

#[tokio::test]
async fn a_queued_acquire_blocks_nothing_and_can_be_released() {
    let engine = engine_with_concurrency("limit: 1, queue: {size: 9, timeout: 1h}");
    let (_served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert!(is_acquired(hold.call(StreamRequest::Acquire(acquire(ONE))).await));
    hold.send(StreamRequest::Acquire(acquire(TWO))).await;
    assert!(is_acquired(hold.call(StreamRequest::Renew(renew(ONE))).await), "answered meanwhile");
    assert!(!is_acquired(hold.call(StreamRequest::Renew(renew(TWO))).await), "it waits");
    assert_eq!(refused(hold.call(StreamRequest::Acquire(acquire(TWO))).await), Code::AlreadyExists);
    hold.send(StreamRequest::Release(release(TWO))).await;
    let mut replies = [hold.receive().await, hold.receive().await];
    replies.sort_by_key(|(_, answer)| matches!(answer, StreamResponse::Error(_)));
    let [(_, released), (id, given_up)] = replies;
    assert!(!is_acquired(released));
    assert_eq!((&*id, refused(given_up)), (TWO, Code::Cancelled));
    assert_eq!(engine.concurrency_limits().totals().waiting, 0);
    hold.send(StreamRequest::Acquire(acquire(TWO))).await;
    hold.send(StreamRequest::Release(release(ONE))).await;
    let mut replies = [hold.receive().await, hold.receive().await];
    replies.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(
        replies.map(|(id, answer)| (id, is_acquired(answer))),
        [(ONE.into(), true), (TWO.into(), true)]
    );
    drop(hold);
    until_free(&engine).await;
}

#[tokio::test]
async fn rejected_acquire_does_not_end_the_stream() {
    let engine = engine_with_concurrency("limit: 1");
    let (_served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert_eq!(
        refused(hold.call(StreamRequest::Acquire(acquire("!"))).await),
        Code::InvalidArgument
    );
    let nothing = AcquireRequest { descriptors: vec![], ..acquire(ONE) };
    assert_eq!(refused(hold.call(StreamRequest::Acquire(nothing)).await), Code::InvalidArgument);
    let no_outcome = ReleaseRequest { outcome: 0, ..release(ONE) };
    assert_eq!(refused(hold.call(StreamRequest::Release(no_outcome)).await), Code::InvalidArgument);
    hold.ask.send(SessionRequest { request: None }).await.unwrap();
    assert_eq!(refused(hold.receive().await.1), Code::InvalidArgument);
    assert!(is_acquired(hold.call(StreamRequest::Acquire(acquire(ONE))).await));
}

#[tokio::test]
async fn shutdown_ends_the_stream_but_keeps_its_permits() {
    let engine = engine_with_concurrency("limit: 1");
    let (served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert!(is_acquired(hold.call(StreamRequest::Acquire(acquire(ONE))).await));
    let both = async { tokio::join!(hold.answers.message(), served.shut_down()) };
    let (ended, left) = soon("the end", both).await;
    assert!(ended.unwrap().is_none(), "in order");
    left.unwrap();
    assert_eq!(in_flight(&engine), 1);
}
