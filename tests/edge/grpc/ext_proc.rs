//! Tests of Envoy's gRPC method `ExternalProcessor/Process` (`ext_proc`) over a real connection.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::HeaderSendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use futures_util::future::poll_immediate;
use prost::Message as _;
use sluicegate::config::hooks::Hooks;
use sluicegate::config::raw;
use sluicegate::edge::grpc::ext_proc::HOOK_HEADER;
use sluicegate::edge::health::Readiness;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::{PROCESS, Served, served_with};
use crate::edge::http::nginx::hooks;
use crate::edge::{config, engine, engine_with_concurrency, node, spanned, two_a_minute};
use crate::support::waiting::{PATIENCE, soon};

const ADDRESS: &str = r#"{"remote_address": {}}"#;

async fn served_with_hooks(hooks: Hooks) -> Served {
    served_with(engine(two_a_minute()), Readiness::Ready, hooks).await
}

async fn reply_to_message(
    served: &Served,
    hook: Option<&'static str>,
    message: Message,
) -> Result<ProcessingResponse, Status> {
    let asked = ProcessingRequest { request: Some(message), ..ProcessingRequest::default() };
    reply_to(served, hook, asked).await
}

async fn reply_to(
    served: &Served,
    hook: Option<&'static str>,
    asked: ProcessingRequest,
) -> Result<ProcessingResponse, Status> {
    let mut request = Request::new(tokio_stream::iter([asked]));
    if let Some(hook) = hook {
        request.metadata_mut().insert(HOOK_HEADER, hook.parse().unwrap());
    }
    let mut client = ExternalProcessorClient::new(served.channel.clone());
    let mut replies = client.process(request).await?.into_inner();
    Ok(replies.message().await?.expect("one reply"))
}

#[tokio::test]
async fn invalid_ext_proc_streams_are_rejected_with_a_reason() {
    let headers = || Message::RequestHeaders(HttpHeaders::default());
    let (none, some) =
        (served_with_hooks(Hooks::default()).await, served_with_hooks(hooks(ADDRESS)).await);
    let refused = reply_to_message(&none, None, headers()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("`hooks`"), "{refused}");
    let refused = reply_to_message(&some, Some("nobody"), headers()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"nobody\"") && refused.message().contains("edge, other"));
    let body = Message::RequestBody(HttpBody::default());
    let refused = reply_to_message(&some, None, body).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("request_header_mode"), "{refused}");
    // The first hook builds no descriptor from this request, so Envoy can skip the later phases.
    let passes = reply_to_message(&some, None, headers()).await.unwrap();
    let rest = passes.mode_override.expect("nothing is held");
    let skip = i32::from(HeaderSendMode::Skip);
    assert_eq!([rest.response_header_mode, rest.response_trailer_mode], [skip, skip]);
}

/// Returns `true` if a request whose header `x-key` has these lines is allowed.
async fn is_allowed(served: &Served, hook: &'static str, lines: &[&str]) -> bool {
    let line = |value: &&str| HeaderValue {
        key: "x-key".into(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = Some(HeaderMap { headers: lines.iter().map(line).collect() });
    let message = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let reply = reply_to_message(served, Some(hook), message).await.unwrap();
    matches!(reply.response, Some(Reply::RequestHeaders(_)))
}

/// As in Envoy's descriptor action. If all header lines counted, a client could add lines to get
/// new counters.
#[tokio::test]
async fn only_the_first_line_of_a_repeated_header_counts() {
    let served = served_with_hooks(hooks(ADDRESS)).await;
    assert!(is_allowed(&served, "edge", &["a", "b"]).await);
    assert!(is_allowed(&served, "edge", &["a", "c"]).await);
    assert!(!is_allowed(&served, "edge", &["a", "d"]).await);
    assert!(!is_allowed(&served, "edge", &["a"]).await);
    assert!(is_allowed(&served, "edge", &["d", "a"]).await);
}

#[tokio::test]
async fn matchers_see_repeated_headers_joined_by_a_comma() {
    let served = served_with_hooks(hooks(
        r#"{"header_value_match": {"descriptor_key": "k", "descriptor_value": "v",
            "headers": [{"name": "x-key", "string_match": {"exact": "a,b"}}]}}"#,
    ))
    .await;
    for passes_yet in [true, true, false] {
        assert_eq!(is_allowed(&served, "other", &["a", "b"]).await, passes_yet);
    }
    assert!(is_allowed(&served, "other", &["a"]).await, "there is nothing to ask");
}

/// The attribute in which Envoy sends the hook name from the metadata of a route.
const ROUTE: &str = "xds.route_metadata.filter_metadata.sluicegate.hook";

fn with_attribute(name: &str, value: Kind) -> ProcessingRequest {
    let fields = [(name.to_owned(), Value { kind: Some(value) })].into();
    let attributes = [("envoy.filters.http.ext_proc".to_owned(), Struct { fields })].into();
    let request = Some(Message::RequestHeaders(HttpHeaders::default()));
    ProcessingRequest { request, attributes, ..ProcessingRequest::default() }
}

/// Returns the selected hook: `edge`, the first one, which allows without a check, or `other`,
/// which denies. `stream` is the hook in the gRPC metadata of the stream.
async fn selected_hook(
    served: &Served,
    stream: Option<&'static str>,
    request: ProcessingRequest,
) -> Result<&'static str, Status> {
    Ok(match reply_to(served, stream, request).await?.response.expect("an answer") {
        Reply::RequestHeaders(_) => "edge",
        Reply::ImmediateResponse(_) => "other",
        other => panic!("{other:?}"),
    })
}

async fn served_with_denying_hook() -> Served {
    let none = raw::RateLimit { unit: spanned("minute".into()), ..raw::RateLimit::default() };
    let denies = r#"{"generic_key": {"descriptor_key": "none", "descriptor_value": "v"}}"#;
    served_with(engine(config(vec![node("none", none)])), Readiness::Ready, hooks(denies)).await
}

#[tokio::test]
async fn grpc_metadata_then_the_route_selects_the_hook() {
    let served = served_with_denying_hook().await;
    let text = |name: &str| Kind::StringValue(name.to_owned());
    for (stream, route, hook) in [
        (None, "other", "other"),
        (None, "edge", "edge"),
        (Some("edge"), "other", "edge"),
        (Some("other"), "edge", "other"),
        (Some("other"), "nobody", "other"),
    ] {
        let request = with_attribute(ROUTE, text(route));
        assert_eq!(
            selected_hook(&served, stream, request).await.unwrap(),
            hook,
            "{stream:?} {route}"
        );
    }
    let elsewhere = with_attribute("xds.route_name", text("other"));
    assert_eq!(selected_hook(&served, None, elsewhere).await.unwrap(), "edge");
}

#[tokio::test]
async fn a_route_with_an_invalid_hook_is_rejected() {
    let served = served_with_denying_hook().await;
    let unknown = with_attribute(ROUTE, Kind::StringValue("nobody".into()));
    let refused = selected_hook(&served, None, unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"nobody\"") && refused.message().contains("edge, other"));
    for other in [Kind::NumberValue(7.0), Kind::BoolValue(true), Kind::NullValue(0)] {
        let refused = selected_hook(&served, None, with_attribute(ROUTE, other)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(ROUTE), "{refused}");
    }
}

#[tokio::test]
async fn idle_ext_proc_stream_does_not_delay_shutdown() {
    let served = served_with_hooks(hooks(ADDRESS)).await;
    let mut client = ExternalProcessorClient::new(served.channel.clone());
    let silent = tokio_stream::pending::<ProcessingRequest>();
    let mut replies = client.process(silent).await.unwrap().into_inner();
    let both = async { tokio::join!(replies.message(), served.shut_down()) };
    let (ended, left) = soon("the end", both).await;
    assert!(ended.unwrap().is_none(), "in order, which no proxy takes for a failure");
    left.unwrap();
}

#[tokio::test]
async fn a_queued_request_gets_a_permit_during_drain() {
    let engine = engine_with_concurrency("limit: 1, queue: {size: 1, timeout: 10m}");
    let served = served_with(Arc::clone(&engine), Readiness::Ready, hooks("")).await;
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![key] });
    let request = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let message = ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
    let open = async || {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(message.clone()).await.unwrap();
        let mut client = ExternalProcessorClient::new(served.channel.clone());
        (sender, client.process(ReceiverStream::new(receiver)).await.unwrap().into_inner())
    };
    let (first, mut replies) = open().await;
    soon("a place", replies.message()).await.unwrap().unwrap();
    let (_second, mut waits) = open().await;
    let waiting = async {
        while engine.concurrency_limits().totals().waiting == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("one who waits", waiting).await;
    let mut left = Box::pin(served.shut_down());
    assert!(poll_immediate(&mut left).await.is_none());
    // The server drains while the first request still has its permit. Then the first request ends.
    let release_and_wait = async {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        drop(first);
        loop {
            // A longer wait than 10 ms is announced first.
            let reply = waits.message().await.unwrap().expect("an answer");
            if let Some(response) = reply.response {
                break response;
            }
        }
    };
    let (reply, left) = soon("a place", async { tokio::join!(release_and_wait, left) }).await;
    assert!(matches!(reply, Reply::RequestHeaders(_)), "{reply:?}");
    left.unwrap();
}

/// 500,000 empty headers take 1 MB in the Protobuf message and 36 MB decoded.
#[test]
fn a_request_in_flight_does_not_retain_its_headers() {
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let mut headers = vec![key];
    headers.resize(500_000, HeaderValue::default());
    let headers = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    let request = Some(Message::RequestHeaders(headers));
    let message = ProcessingRequest { request, ..ProcessingRequest::default() }.encode_to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = engine_with_concurrency("limit: 1");
    let serving = served_with(Arc::clone(&engine), Readiness::Ready, hooks(ADDRESS));
    let served = runtime.block_on(serving);
    let (sender, receiver) = mpsc::channel(1);
    let mut replies =
        runtime.block_on(served.open(PROCESS, ReceiverStream::new(receiver))).unwrap();
    let retained = allocation_counter::measure(|| {
        let reply = runtime.block_on(async {
            sender.send(message).await.unwrap();
            tokio::time::timeout(PATIENCE, replies.message()).await
        });
        assert!(reply.expect("a reply").unwrap().is_some());
    });
    assert_eq!(engine.concurrency_limits().totals().in_flight, 1);
    assert!(retained.bytes_current < 8 << 20, "{retained:?}");
}
