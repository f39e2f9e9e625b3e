//! Tests of Envoy's gRPC method `Authorization/Check` (`ext_authz`) over a real connection.

use std::collections::HashMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::address::Address as Kind;
use envoy_types::pb::envoy::config::core::v3::{
    Address, HeaderMap, HeaderValue, Metadata, SocketAddress,
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use envoy_types::pb::google::protobuf::value::Kind as Is;
use envoy_types::pb::google::protobuf::{Struct, Value};
use prost::Message as _;
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::grpc::ext_authz::rate_limit_request;
use sluicegate::edge::health::Readiness;
use sluicegate::edge::hook::HookError;
use sluicegate::kernel::concurrency::RequestOutcome;
use tonic::{Code, Status};

use super::{CHECK, Served, served_with};
use crate::edge::http::nginx::hooks;
use crate::edge::{
    acquire_permits, banning, empty_engine, engine, engine_with_concurrency, two_a_minute,
};
use crate::support::waiting::PATIENCE;

fn request(headers: &[(&str, &str)]) -> HttpRequest {
    let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    HttpRequest {
        headers: headers.iter().map(pair).collect(),
        path: "/a?q=1".into(),
        ..HttpRequest::default()
    }
}

fn context(http: HttpRequest, extensions: &[(&str, &str)]) -> AttributeContext {
    let socket = SocketAddress { address: "192.0.2.7".into(), ..SocketAddress::default() };
    let address = Some(Address { address: Some(Kind::SocketAddress(socket)) });
    let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    AttributeContext {
        source: Some(Peer { address, ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        context_extensions: extensions.iter().map(pair).collect(),
        ..AttributeContext::default()
    }
}

async fn check(served: &Served, context: AttributeContext) -> Result<CheckResponse, Status> {
    let mut client = AuthorizationClient::new(served.channel.clone());
    let reply = client.check(CheckRequest { attributes: Some(context) }).await;
    reply.map(tonic::Response::into_inner)
}

/// Builds the hook `other` from `action`. Returns the descriptor entries that it builds, as
/// `key=value`.
fn entries(action: &str, context: &AttributeContext) -> Vec<String> {
    match rate_limit_request(&hooks(action), context) {
        Ok(request) => {
            let entries = request.descriptors.into_iter().flat_map(|one| one.entries);
            entries.map(|entry| format!("{}={}", entry.key, entry.value)).collect()
        }
        Err(HookError::NoDescriptors) => Vec::new(),
        Err(other) => panic!("{other}"),
    }
}

const OTHER: [(&str, &str); 1] = [("hook", "other")];
const KEY: &str = r#"{"request_headers": {"header_name": "X-Key", "descriptor_key": "k"}}"#;

#[tokio::test]
async fn the_third_hit_is_denied_with_429() {
    let served = served_with(engine(two_a_minute()), Readiness::Ready, hooks("")).await;
    let ask = async || check(&served, context(request(&[("x-key", "v")]), &[])).await.unwrap();
    for _ in 0..2 {
        let reply = ask().await;
        assert_eq!(reply.status.unwrap().code, 0);
        assert!(matches!(reply.http_response, Some(HttpResponse::OkResponse(_))));
    }
    let reply = ask().await;
    assert_ne!(reply.status.unwrap().code, 0);
    let Some(HttpResponse::DeniedResponse(denied)) = reply.http_response else { panic!("passed") };
    assert_eq!((denied.status.unwrap().code, denied.body.as_str()), (429, "rate limited\n"));
}

#[tokio::test]
async fn a_ban_has_the_status_of_its_penalty() {
    let served = served_with(engine(banning()), Readiness::Ready, hooks("")).await;
    for wanted in [None, Some(429), Some(451), Some(451)] {
        let reply = check(&served, context(request(&[("x-key", "v")]), &[])).await.unwrap();
        let status = match reply.http_response {
            Some(HttpResponse::DeniedResponse(denied)) => Some(denied.status.unwrap().code),
            _ => None,
        };
        assert_eq!(status, wanted);
    }
}

#[tokio::test]
async fn only_the_envoy_route_selects_the_hook() {
    let served = served_with(engine(two_a_minute()), Readiness::Ready, hooks(KEY)).await;
    let code = async |extensions: &[(&str, &str)]| {
        let http = request(&[("x-key", "v"), ("x-hook", "edgy"), ("hook", "edgy")]);
        check(&served, context(http, extensions)).await.map_err(|status| status.code())
    };
    assert!(code(&[]).await.is_ok() && code(&OTHER).await.is_ok());
    assert_eq!(code(&[("hook", "edgy")]).await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn missing_hook_or_configuration_is_an_error() {
    let none = served_with(engine(two_a_minute()), Readiness::Ready, Hooks::default()).await;
    let http = request(&[("x-key", "v")]);
    let status = check(&none, context(http.clone(), &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("hooks"), "{status}");
    let unloaded = served_with(empty_engine(), Readiness::Ready, hooks("")).await;
    let status = check(&unloaded, context(http, &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
}

#[tokio::test]
async fn a_value_of_64_kib_is_limited() {
    let served = served_with(engine(two_a_minute()), Readiness::Ready, hooks("")).await;
    for end in ["a", "b"] {
        let long = request(&[("x-key", &*("v".repeat(64 * 1024) + end))]);
        for is_allowed in [true, true, false] {
            let reply = check(&served, context(long.clone(), &[])).await.unwrap();
            assert_eq!(reply.status.unwrap().code == 0, is_allowed, "{end}");
        }
    }
}

#[tokio::test]
async fn a_request_without_descriptors_is_allowed() {
    let served = served_with(engine(two_a_minute()), Readiness::Ready, hooks("")).await;
    let mut client = AuthorizationClient::new(served.channel.clone());
    for asked in [
        CheckRequest { attributes: Some(context(request(&[]), &[])) },
        CheckRequest { attributes: None },
    ] {
        let reply = client.check(asked).await.unwrap().into_inner();
        assert_eq!(reply.status.unwrap().code, 0);
    }
}

#[tokio::test]
async fn an_unchecked_request_stores_no_early_release() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served_with(Arc::clone(&engine), Readiness::Ready, hooks("")).await;
    let nothing = request(&[("x-sluicegate-id", ID)]);
    for (http, extensions) in [(nothing.clone(), &[][..]), (nothing.clone(), &[("hook", "nobody")])]
    {
        let _answer = check(&served, context(http, extensions)).await;
        assert!(!engine.release(ID, None, RequestOutcome::Success, None));
        assert_eq!(engine.early_releases().0, 0, "it takes no room among those that came early");
    }
    let held = request(&[("x-key", "v"), ("x-sluicegate-id", ID)]);
    check(&served, context(held, &[])).await.unwrap();
    check(&served, context(nothing, &[])).await.unwrap();
    assert!(engine.release(ID, None, RequestOutcome::Success, None), "what an id holds stays");
}

fn matched(exact: &str) -> String {
    format!(
        r#"{{"header_value_match": {{"descriptor_value": "v",
            "headers": [{{"name": "x-key", "string_match": {{"exact": "{exact}"}}}}]}}}}"#
    )
}

/// As in Envoy, a descriptor action uses the first line of a header, and a header matcher all
/// lines. Lines that Envoy has joined cannot be separated again.
#[test]
fn joined_and_separate_header_lines_are_read() {
    let raw = |value: &[u8]| HeaderValue {
        key: "x-key".into(),
        raw_value: value.to_vec(),
        ..HeaderValue::default()
    };
    let plain = HeaderValue { key: "x-key".into(), value: "c".into(), ..HeaderValue::default() };
    let one_by_one =
        |headers| HttpRequest { header_map: Some(HeaderMap { headers }), ..HttpRequest::default() };
    for (http, first, all) in [
        (request(&[("x-key", "a,b")]), "k=a,b", "a,b"),
        (one_by_one(vec![raw(b"a"), raw(b"b"), plain]), "k=a", "a,b,c"),
        (one_by_one(vec![raw(b"\xff")]), "k=\u{fffd}", "\u{fffd}"),
    ] {
        let context = context(http, &OTHER);
        assert_eq!(entries(KEY, &context), [first]);
        assert_eq!(entries(&matched(all), &context), ["header_match=v"]);
    }
}

/// If each join copied all earlier lines, it would allocate 4 MB.
#[test]
fn joining_header_lines_takes_linear_memory() {
    let one = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let header_map = Some(HeaderMap { headers: vec![one; 2_000] });
    let context = context(HttpRequest { header_map, ..HttpRequest::default() }, &OTHER);
    let all = matched(&format!("v{}", ",v".repeat(1_999)));
    let made = || assert_eq!(entries(&all, &context), ["header_match=v"]);
    let made = allocation_counter::measure(made);
    assert!(made.bytes_total < 200_000, "{made:?}");
}

#[test]
fn query_parameters_come_from_the_path() {
    let query = r#"{"query_parameters": {"query_parameter_name": "q", "descriptor_key": "k"}}"#;
    assert_eq!(entries(query, &context(request(&[]), &OTHER)), ["k=1"]);
}

#[test]
fn client_address_is_the_peer_or_the_configured_header() {
    let action = r#"{"remote_address": {}}"#;
    let headers = [("x-real-ip", "203.0.113.9"), ("x-word", "somebody")];
    let address = |more: &[(&str, &str)]| {
        entries(action, &context(request(&headers), &[&OTHER[..], more].concat()))
    };
    assert_eq!(address(&[]), ["remote_address=192.0.2.7"]);
    assert_eq!(address(&[("remote_address_header", "X-Real-IP")]), ["remote_address=203.0.113.9"]);
    for not_there in ["x-word", "x-gone"] {
        assert_eq!(address(&[("remote_address_header", not_there)]), [] as [&str; 0]);
    }
}

#[test]
fn metadata_action_reads_envoy_metadata_by_namespace_and_path() {
    let value = |kind| Value { kind: Some(kind) };
    let fields = |pairs: Vec<(&str, Value)>| Struct {
        fields: pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    let claims = fields(vec![
        ("sub", value(Is::StringValue("joe".into()))),
        ("age", value(Is::NumberValue(7.0))),
    ]);
    let jwt = fields(vec![("claims", value(Is::StructValue(claims)))]);
    let mut http_context = context(request(&[]), &OTHER);
    http_context.metadata_context = Some(Metadata {
        filter_metadata: HashMap::from([("jwt".to_owned(), jwt)]),
        ..Metadata::default()
    });
    for (namespace, path, want) in [
        ("jwt", r#"{"key": "claims"}, {"key": "sub"}"#, &["k=joe"][..]),
        ("jwt", r#"{"key": "claims"}, {"key": "age"}"#, &[]),
        ("jwt", r#"{"key": "claims"}"#, &[]),
        ("jwt", r#"{"key": "claims"}, {"key": "sub"}, {"key": "x"}"#, &[]),
        ("jwt", "", &[]),
        ("other", r#"{"key": "claims"}"#, &[]),
    ] {
        let action = format!(
            r#"{{"metadata": {{"descriptor_key": "k",
                "metadata_key": {{"key": "{namespace}", "path": [{path}]}}}}}}"#
        );
        assert_eq!(entries(&action, &http_context), want, "{namespace} {path}");
    }
}

const ID: &str = "0123456789abcdef";

#[tokio::test]
async fn concurrency_limit_needs_a_request_id_and_denies_as_configured() {
    let engine = crate::edge::engine_with_concurrency(
        "limit: 2, reject: {status: 503, retry_after: 1500ms, body: busy}",
    );
    let served = served_with(engine, Readiness::Ready, hooks(KEY)).await;
    let ask = async |id: &str| {
        let http = request(&[("x-key", "v"), ("x-sluicegate-id", id)]);
        check(&served, context(http, &OTHER)).await
    };
    for bad in ["short", "0123456789abcde!", ""] {
        let refused = ask(bad).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{bad:?}");
        assert!(refused.message().contains("x-sluicegate-id"), "{refused}");
    }
    assert!(matches!(ask(ID).await.unwrap().http_response, Some(HttpResponse::OkResponse(_))));
    assert_eq!(ask(ID).await.unwrap_err().code(), Code::InvalidArgument, "in flight already");
    let second = ask("second-0123456789").await.unwrap();
    assert!(matches!(second.http_response, Some(HttpResponse::OkResponse(_))));
    let reply = ask("fedcba9876543210").await.unwrap();
    let Some(HttpResponse::DeniedResponse(denied)) = reply.http_response else { panic!("passed") };
    assert_eq!((denied.status.unwrap().code, denied.body.as_str()), (503, "busy"));
    let header = denied.headers[0].header.as_ref().unwrap();
    assert_eq!((header.key.as_str(), header.value.as_str()), ("Retry-After", "2"));
    let without = check(&served, context(request(&[("x-key", "v")]), &OTHER)).await.unwrap();
    assert!(
        matches!(without.http_response, Some(HttpResponse::OkResponse(_))),
        "rate limits alone"
    );
}

/// 500,000 empty headers take 1 MB in the Protobuf message and 36 MB decoded.
#[test]
fn a_queued_request_does_not_retain_its_headers() {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        value: value.into(),
        ..HeaderValue::default()
    };
    let mut headers = vec![header("x-key", "v"), header("x-sluicegate-id", ID)];
    headers.resize(500_000, HeaderValue::default());
    let http = HttpRequest { header_map: Some(HeaderMap { headers }), ..HttpRequest::default() };
    let message = CheckRequest { attributes: Some(context(http, &[])) }.encode_to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = engine_with_concurrency("limit: 1, queue: {size: 9, timeout: 1h}");
    let _held = runtime.block_on(acquire_permits(&engine, "v"));
    let serving = served_with(Arc::clone(&engine), Readiness::Ready, hooks(KEY));
    let served = runtime.block_on(serving);
    let mut call = Box::pin(served.code(CHECK, message));
    let waits = async {
        while engine.concurrency_limits().totals().waiting == 0 {
            tokio::task::yield_now().await;
        }
    };
    let retained = allocation_counter::measure(|| {
        runtime.block_on(async {
            tokio::select! {
                code = &mut call => panic!("{code:?}"),
                waits = tokio::time::timeout(PATIENCE, waits) => waits.expect("it has to wait"),
            }
        });
    });
    assert!(retained.bytes_current < 8 << 20, "{retained:?}");
}
