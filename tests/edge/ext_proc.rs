//! `ExternalProcessor/Process` over a real connection: what is refused, and what a stream on which nobody asks holds up.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::HeaderSendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Said;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use futures_util::future::poll_immediate;
use prost::Message as _;
use sluicegate::config::hooks::Hooks;
use sluicegate::config::raw;
use sluicegate::edge::grpc::ext_proc::HOOK;
use sluicegate::edge::health::Ready;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::check::hooks;
use super::grpc::{PROCESS, Served, served_with};
use super::{ceiling_of, config, engine, node, spanned, two_a_minute};
use crate::waiting::{PATIENCE, soon};

const ADDRESS: &str = r#"{"remote_address": {}}"#;

async fn with(hooks: Hooks) -> Served {
    served_with(engine(two_a_minute()), Ready::Yes, hooks).await
}

/// What comes back for a stream's first message, under the hook of that name.
async fn first(
    served: &Served,
    hook: Option<&'static str>,
    message: Message,
) -> Result<ProcessingResponse, Status> {
    let asked = ProcessingRequest { request: Some(message), ..ProcessingRequest::default() };
    answered(served, hook, asked).await
}

async fn answered(
    served: &Served,
    hook: Option<&'static str>,
    asked: ProcessingRequest,
) -> Result<ProcessingResponse, Status> {
    let mut request = Request::new(tokio_stream::iter([asked]));
    if let Some(hook) = hook {
        request.metadata_mut().insert(HOOK, hook.parse().unwrap());
    }
    let mut client = ExternalProcessorClient::new(served.channel.clone());
    let mut replies = client.process(request).await?.into_inner();
    Ok(replies.message().await?.expect("one reply"))
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_in_words() {
    let headers = || Message::RequestHeaders(HttpHeaders::default());
    let (none, some) = (with(Hooks::default()).await, with(hooks(ADDRESS)).await);
    let refused = first(&none, None, headers()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("`hooks`"), "{refused}");
    let refused = first(&some, Some("nobody"), headers()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"nobody\"") && refused.message().contains("edge, other"));
    let body = Message::RequestBody(HttpBody::default());
    let refused = first(&some, None, body).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("request_header_mode"), "{refused}");
    // Without the header that the first hook asks about there is nothing to ask, nor to be told.
    let passes = first(&some, None, headers()).await.unwrap();
    let rest = passes.mode_override.expect("nothing is held");
    let skip = i32::from(HeaderSendMode::Skip);
    assert_eq!([rest.response_header_mode, rest.response_trailer_mode], [skip, skip]);
}

/// Whether a request with these lines of the header `x-key`, which the first hook asks about, passes.
async fn passes(served: &Served, hook: &'static str, lines: &[&str]) -> bool {
    let line = |value: &&str| HeaderValue {
        key: "x-key".into(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = Some(HeaderMap { headers: lines.iter().map(line).collect() });
    let message = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let reply = first(served, Some(hook), message).await.unwrap();
    matches!(reply.response, Some(Said::RequestHeaders(_)))
}

/// As Envoy's action: with the others in it, a client would have a new counter for each line that it makes up.
#[tokio::test]
async fn of_a_header_sent_twice_the_first_line_counts() {
    let served = with(hooks(ADDRESS)).await;
    assert!(passes(&served, "edge", &["a", "b"]).await);
    assert!(passes(&served, "edge", &["a", "c"]).await);
    assert!(!passes(&served, "edge", &["a", "d"]).await);
    assert!(!passes(&served, "edge", &["a"]).await);
    assert!(passes(&served, "edge", &["d", "a"]).await);
}

#[tokio::test]
async fn a_matcher_sees_a_header_sent_twice_as_one_joined_by_a_comma() {
    let served = with(hooks(
        r#"{"header_value_match": {"descriptor_key": "k", "descriptor_value": "v",
            "headers": [{"name": "x-key", "string_match": {"exact": "a,b"}}]}}"#,
    ))
    .await;
    for passes_yet in [true, true, false] {
        assert_eq!(passes(&served, "other", &["a", "b"]).await, passes_yet);
    }
    assert!(passes(&served, "other", &["a"]).await, "there is nothing to ask");
}

/// Where Envoy puts what it found in a route's metadata.
const ROUTE: &str = "xds.route_metadata.filter_metadata.sluicegate.hook";

/// A request with one attribute, as Envoy sends it.
fn with_attribute(name: &str, value: Kind) -> ProcessingRequest {
    let fields = [(name.to_owned(), Value { kind: Some(value) })].into();
    let attributes = [("envoy.filters.http.ext_proc".to_owned(), Struct { fields })].into();
    let request = Some(Message::RequestHeaders(HttpHeaders::default()));
    ProcessingRequest { request, attributes, ..ProcessingRequest::default() }
}

/// Which hook was asked, of a stream that names the first and a request with the second: `edge`, which is the first and finds
/// nothing to ask about, or `other`, which denies.
async fn asked(
    served: &Served,
    stream: Option<&'static str>,
    request: ProcessingRequest,
) -> Result<&'static str, Status> {
    Ok(match answered(served, stream, request).await?.response.expect("an answer") {
        Said::RequestHeaders(_) => "edge",
        Said::ImmediateResponse(_) => "other",
        said => panic!("{said:?}"),
    })
}

async fn with_one_that_denies() -> Served {
    let none = raw::RateLimit { unit: spanned("minute".into()), ..raw::RateLimit::default() };
    let denies = r#"{"generic_key": {"descriptor_key": "none", "descriptor_value": "v"}}"#;
    served_with(engine(config(vec![node("none", none)])), Ready::Yes, hooks(denies)).await
}

#[tokio::test]
async fn the_stream_names_the_hook_or_else_its_route_does_or_else_it_is_the_first() {
    let served = with_one_that_denies().await;
    let text = |name: &str| Kind::StringValue(name.to_owned());
    for (stream, route, hook) in [
        (None, "other", "other"),
        (None, "edge", "edge"),
        (Some("edge"), "other", "edge"),
        (Some("other"), "edge", "other"),
        (Some("other"), "nobody", "other"),
    ] {
        let request = with_attribute(ROUTE, text(route));
        assert_eq!(asked(&served, stream, request).await.unwrap(), hook, "{stream:?} {route}");
    }
    let elsewhere = with_attribute("xds.route_name", text("other"));
    assert_eq!(asked(&served, None, elsewhere).await.unwrap(), "edge");
}

#[tokio::test]
async fn a_route_that_names_no_hook_of_ours_or_no_text_is_refused_in_words() {
    let served = with_one_that_denies().await;
    let unknown = with_attribute(ROUTE, Kind::StringValue("nobody".into()));
    let refused = asked(&served, None, unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"nobody\"") && refused.message().contains("edge, other"));
    for other in [Kind::NumberValue(7.0), Kind::BoolValue(true), Kind::NullValue(0)] {
        let refused = asked(&served, None, with_attribute(ROUTE, other)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(ROUTE), "{refused}");
    }
}

#[tokio::test]
async fn a_stream_on_which_nobody_asks_does_not_hold_the_server_up() {
    let served = with(hooks(ADDRESS)).await;
    let mut client = ExternalProcessorClient::new(served.channel.clone());
    let silent = tokio_stream::pending::<ProcessingRequest>();
    let mut replies = client.process(silent).await.unwrap().into_inner();
    let both = async { tokio::join!(replies.message(), served.left()) };
    let (ended, left) = soon("the end", both).await;
    assert!(ended.unwrap().is_none(), "in order, which no proxy takes for a failure");
    left.unwrap();
}

#[tokio::test]
async fn who_waits_when_the_process_goes_has_the_place_of_who_ends() {
    let engine = ceiling_of("limit: 1, queue: {size: 1, timeout: 10m}");
    let served = served_with(Arc::clone(&engine), Ready::Yes, hooks("")).await;
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![key] });
    let request = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let message = ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
    let open = async || {
        let (say, said) = mpsc::channel(1);
        say.send(message.clone()).await.unwrap();
        let mut client = ExternalProcessorClient::new(served.channel.clone());
        (say, client.process(ReceiverStream::new(said)).await.unwrap().into_inner())
    };
    let (first, mut replies) = open().await;
    soon("a place", replies.message()).await.unwrap().unwrap();
    let (_second, mut waits) = open().await;
    let waiting = async {
        while engine.ceilings().total().waiting == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("one who waits", waiting).await;
    let mut left = Box::pin(served.left());
    assert!(poll_immediate(&mut left).await.is_none());
    // The process goes, and the first still has its place, whose end it sees.
    let goes = async {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        drop(first);
        waits.message().await
    };
    let (admitted, left) = soon("a place", async { tokio::join!(goes, left) }).await;
    let reply = admitted.unwrap().expect("an answer").response.expect("one that says what");
    assert!(matches!(reply, Said::RequestHeaders(_)), "{reply:?}");
    left.unwrap();
}

/// Half a million empty headers are a megabyte on the wire, and 36 of them when they are decoded.
#[test]
fn a_request_that_is_held_keeps_nothing_of_the_headers_that_came() {
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let mut headers = vec![key];
    headers.resize(500_000, HeaderValue::default());
    let headers = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    let request = Some(Message::RequestHeaders(headers));
    let message = ProcessingRequest { request, ..ProcessingRequest::default() }.encode_to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = ceiling_of("limit: 1");
    let serving = served_with(Arc::clone(&engine), Ready::Yes, hooks(ADDRESS));
    let served = runtime.block_on(serving);
    let (say, said) = mpsc::channel(1);
    let mut replies = runtime.block_on(served.open(PROCESS, ReceiverStream::new(said))).unwrap();
    let kept = allocation_counter::measure(|| {
        let reply = runtime.block_on(async {
            say.send(message).await.unwrap();
            tokio::time::timeout(PATIENCE, replies.message()).await
        });
        assert!(reply.expect("a reply").unwrap().is_some());
    });
    assert_eq!(engine.ceilings().total().in_flight, 1);
    assert!(kept.bytes_current < 8 << 20, "{kept:?}");
}
