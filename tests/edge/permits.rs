//! `sluicegate.v1.Permits` over a real connection.

use std::sync::Arc;

use sluicegate::config::hooks::Hooks;
use sluicegate::edge::grpc::permits::api::acquire_response::Verdict;
use sluicegate::edge::grpc::permits::api::hold_request::Ask;
use sluicegate::edge::grpc::permits::api::hold_response::Answer;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, AcquireResponse, Descriptor, Entry, Error, HoldRequest, HoldResponse, Outcome,
    ReleaseRequest, RenewRequest,
};
use sluicegate::edge::health::Ready;
use sluicegate::engine::Engine;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};

use super::grpc::{Served, served_with};
use super::{ceiling_of, empty_engine};
use crate::waiting::{PATIENCE, soon};

const ONE: &str = "one-0123456789abcdef";
const TWO: &str = "two-0123456789abcdef";

async fn serve(engine: &Arc<Engine>) -> (Served, PermitsClient<Channel>) {
    let served = served_with(Arc::clone(engine), Ready::Yes, Hooks::default()).await;
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
        owner: String::new(),
    }
}

fn renew(id: &str) -> RenewRequest {
    RenewRequest { id: id.into(), owner: String::new() }
}

fn in_flight(engine: &Engine) -> u64 {
    engine.ceilings().total().in_flight
}

const REJECTS: &str =
    "limit: 1, max_duration: 20s, reject: {status: 503, retry_after: 1500ms, body: busy}";

#[tokio::test]
async fn a_ceiling_is_held_exactly_and_a_denial_says_what_a_client_would_get() {
    let engine = ceiling_of(REJECTS);
    let (_served, mut client) = serve(&engine).await;
    let admitted = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    let want = AcquireResponse {
        verdict: Verdict::Admit.into(),
        held: true,
        renew_within_us: 20_000_000,
        ..AcquireResponse::default()
    };
    assert_eq!(admitted, want);
    let denied = client.acquire(acquire(TWO)).await.unwrap().into_inner();
    let want = AcquireResponse {
        verdict: Verdict::Deny.into(),
        reason: "ceiling_reached".into(),
        status: 503,
        retry_after_us: Some(1_500_000),
        body: "busy".into(),
        ..AcquireResponse::default()
    };
    assert_eq!(denied, want);
    assert!(client.renew(renew(ONE)).await.unwrap().into_inner().held);
    assert!(!client.renew(renew(TWO)).await.unwrap().into_inner().held);
    assert!(client.release(release(ONE)).await.unwrap().into_inner().held);
    assert!(!client.release(release(TWO)).await.unwrap().into_inner().held);
    assert_eq!(in_flight(&engine), 0);
    assert!(client.acquire(acquire(TWO)).await.unwrap().into_inner().held, "it may ask again");
}

#[tokio::test]
async fn a_release_that_overtakes_its_acquire_leaves_nothing_held() {
    let engine = ceiling_of("limit: 1");
    let (_served, mut client) = serve(&engine).await;
    assert!(!client.release(release(ONE)).await.unwrap().into_inner().held);
    let admitted = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    assert_eq!((admitted.verdict(), admitted.held), (Verdict::Admit, false));
    assert_eq!(in_flight(&engine), 0);
}

#[tokio::test]
async fn a_rate_limits_denial_is_429_with_its_reason_and_wait() {
    let engine = super::engine(super::two_a_minute());
    let (_served, mut client) = serve(&engine).await;
    for (id, held) in [(ONE, false), (TWO, false)] {
        let admitted = client.acquire(acquire(id)).await.unwrap().into_inner();
        assert_eq!((admitted.verdict(), admitted.held), (Verdict::Admit, held));
    }
    let denied = client.acquire(acquire(ONE)).await.unwrap().into_inner();
    assert_eq!(
        (denied.verdict(), denied.status, &*denied.reason),
        (Verdict::Deny, 429, "over_limit")
    );
    assert_eq!(denied.retry_after_us, Some(60_000_000));
}

#[tokio::test]
async fn what_cannot_be_asked_is_an_error_and_holds_nothing() {
    let engine = ceiling_of("limit: 9");
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
        let unsaid = ReleaseRequest { outcome, ..release(ONE) };
        assert_eq!(client.release(unsaid).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(client.release(release("!")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.renew(renew("!")).await.unwrap_err().code(), Code::InvalidArgument);
    let (_served, mut unloaded) = serve(&empty_engine()).await;
    assert_eq!(unloaded.acquire(acquire(ONE)).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_call_that_ends_while_it_waits_holds_nothing() {
    let engine = ceiling_of("limit: 1, queue: {size: 9, timeout: 1h}");
    let (_served, mut client) = serve(&engine).await;
    client.acquire(acquire(ONE)).await.unwrap();
    let patient = AcquireRequest { max_wait_us: Some(2_000), ..acquire(TWO) };
    let denied = client.acquire(patient).await.unwrap().into_inner();
    assert_eq!(&*denied.reason, "queue_timeout");
    let at_once = AcquireRequest { max_wait_us: Some(0), ..acquire(TWO) };
    assert_eq!(&*client.acquire(at_once).await.unwrap().into_inner().reason, "ceiling_reached");
    let mut hurried = Request::new(acquire(TWO));
    hurried.set_timeout(std::time::Duration::from_millis(40));
    let ended = client.acquire(hurried).await;
    assert!(ended.is_err() || &*ended.unwrap().into_inner().reason == "queue_timeout");
    let nobody_waits = async {
        while engine.ceilings().total().waiting != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("nobody waits", nobody_waits).await;
    assert_eq!(in_flight(&engine), 1);
}

/// The two sides of a stream.
struct Hold {
    ask: mpsc::Sender<HoldRequest>,
    answers: Streaming<HoldResponse>,
}

async fn open(client: &mut PermitsClient<Channel>) -> Hold {
    let (ask, asked) = mpsc::channel(16);
    let answers = client.hold(ReceiverStream::new(asked)).await.unwrap().into_inner();
    Hold { ask, answers }
}

impl Hold {
    async fn say(&self, ask: Ask) {
        self.ask.send(HoldRequest { ask: Some(ask) }).await.unwrap();
    }

    async fn hears(&mut self) -> (String, Answer) {
        let heard = tokio::time::timeout(PATIENCE, self.answers.message()).await;
        let answer = heard.expect("an answer").unwrap().unwrap();
        (answer.id, answer.answer.unwrap())
    }

    async fn asks(&mut self, ask: Ask) -> Answer {
        self.say(ask).await;
        self.hears().await.1
    }
}

fn refused(answer: Answer) -> Code {
    match answer {
        Answer::Error(Error { code, .. }) => Code::from(i32::try_from(code).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn held(answer: Answer) -> bool {
    match answer {
        Answer::Acquire(answer) => answer.held,
        Answer::Release(answer) => answer.held,
        Answer::Renew(answer) => answer.held,
        Answer::Error(error) => panic!("{error:?}"),
    }
}

async fn until_free(engine: &Engine) {
    let free = async {
        while engine.ceilings().total().in_flight != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.expect("given back");
}

#[tokio::test]
async fn the_streams_end_gives_back_all_that_was_taken_on_it_however_it_ends() {
    let engine = ceiling_of("limit: 2");
    let (_served, mut client) = serve(&engine).await;
    for cut in [false, true] {
        let mut hold = open(&mut client).await;
        assert!(held(hold.asks(Ask::Acquire(acquire(ONE))).await));
        assert!(held(hold.asks(Ask::Acquire(acquire(TWO))).await));
        assert!(held(hold.asks(Ask::Renew(renew(ONE))).await));
        assert!(held(hold.asks(Ask::Release(release(ONE))).await));
        assert!(!held(hold.asks(Ask::Release(release(ONE))).await));
        assert_eq!(in_flight(&engine), 1);
        let Hold { ask, answers } = hold;
        drop(ask);
        let answers = if cut { None } else { Some(answers) };
        until_free(&engine).await;
        drop(answers);
    }
}

#[tokio::test]
async fn an_acquire_that_waits_keeps_no_other_question_waiting_and_a_release_ends_its_wait() {
    let engine = ceiling_of("limit: 1, queue: {size: 9, timeout: 1h}");
    let (_served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert!(held(hold.asks(Ask::Acquire(acquire(ONE))).await));
    hold.say(Ask::Acquire(acquire(TWO))).await;
    assert!(held(hold.asks(Ask::Renew(renew(ONE))).await), "answered meanwhile");
    assert!(!held(hold.asks(Ask::Renew(renew(TWO))).await), "it waits");
    assert_eq!(refused(hold.asks(Ask::Acquire(acquire(TWO))).await), Code::AlreadyExists);
    hold.say(Ask::Release(release(TWO))).await;
    let mut heard = [hold.hears().await, hold.hears().await];
    heard.sort_by_key(|(_, answer)| matches!(answer, Answer::Error(_)));
    let [(_, released), (id, given_up)] = heard;
    assert!(!held(released));
    assert_eq!((&*id, refused(given_up)), (TWO, Code::Cancelled));
    assert_eq!(engine.ceilings().total().waiting, 0);
    hold.say(Ask::Acquire(acquire(TWO))).await;
    hold.say(Ask::Release(release(ONE))).await;
    let mut heard = [hold.hears().await, hold.hears().await];
    heard.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(
        heard.map(|(id, answer)| (id, held(answer))),
        [(ONE.into(), true), (TWO.into(), true)]
    );
    drop(hold);
    until_free(&engine).await;
}

#[tokio::test]
async fn a_question_that_is_refused_on_a_stream_does_not_end_it() {
    let engine = ceiling_of("limit: 1");
    let (_served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert_eq!(refused(hold.asks(Ask::Acquire(acquire("!"))).await), Code::InvalidArgument);
    let nothing = AcquireRequest { descriptors: vec![], ..acquire(ONE) };
    assert_eq!(refused(hold.asks(Ask::Acquire(nothing)).await), Code::InvalidArgument);
    let unsaid = ReleaseRequest { outcome: 0, ..release(ONE) };
    assert_eq!(refused(hold.asks(Ask::Release(unsaid)).await), Code::InvalidArgument);
    hold.ask.send(HoldRequest { ask: None }).await.unwrap();
    assert_eq!(refused(hold.hears().await.1), Code::InvalidArgument);
    assert!(held(hold.asks(Ask::Acquire(acquire(ONE))).await));
}

#[tokio::test]
async fn an_open_stream_holds_no_shutdown_up_and_what_is_held_counts_as_it_goes_on() {
    let engine = ceiling_of("limit: 1");
    let (served, mut client) = serve(&engine).await;
    let mut hold = open(&mut client).await;
    assert!(held(hold.asks(Ask::Acquire(acquire(ONE))).await));
    let both = async { tokio::join!(hold.answers.message(), served.left()) };
    let (ended, left) = soon("the end", both).await;
    assert!(ended.unwrap().is_none(), "in order");
    left.unwrap();
    assert_eq!(in_flight(&engine), 1);
}
