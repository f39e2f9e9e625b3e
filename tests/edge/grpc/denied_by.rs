//! The name of the rule that denied, in the replies of each gRPC protocol.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use sluicegate::config::load;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::headers::RateLimitHeaders;
use sluicegate::edge::health::Readiness;
use sluicegate::engine::Engine;
use sluicegate::kernel::units::Revision;

use super::{Served, served_with_options};
use crate::edge::engine;
use crate::edge::http::nginx::hooks;

/// The header and the key of the metadata with the path of the rule.
type Named = (Option<String>, Option<String>);

async fn served(limit: &str) -> Served {
    let text = format!("domain: d\ndescriptors:\n- {{key: k, {limit}}}\n");
    let engine: Arc<Engine> =
        engine(load([("d.yaml", text.as_bytes())], Revision(1), false).unwrap().0);
    let headers = RateLimitHeaders { denied_by: true, ..RateLimitHeaders::default() };
    let options = ReplyOptions {
        headers,
        dynamic_metadata: true,
        denied_by_metadata: true,
        ..ReplyOptions::default()
    };
    served_with_options(engine, Readiness::Ready, (hooks(""), options)).await
}

/// A kind of denial, with its header and its key in the metadata.
#[derive(Clone, Copy)]
struct DenialKind {
    header: &'static str,
    key: &'static str,
}

const ENFORCED: DenialKind = DenialKind { header: "x-sluicegate-denied-by", key: "denied_by" };

const SHADOW: DenialKind =
    DenialKind { header: "x-sluicegate-shadow-denied-by", key: "shadow_denied_by" };

fn in_metadata(metadata: Option<Struct>, kind: DenialKind) -> Option<String> {
    match metadata?.fields.remove(kind.key)?.kind? {
        Kind::StringValue(text) => Some(text),
        other => panic!("{other:?}"),
    }
}

fn in_headers<'h>(
    headers: impl IntoIterator<Item = &'h HeaderValue>,
    kind: DenialKind,
) -> Option<String> {
    let mut headers = headers.into_iter();
    let header = headers.find(|header| header.key == kind.header)?;
    let raw = String::from_utf8(header.raw_value.clone()).unwrap();
    Some(if raw.is_empty() { header.value.clone() } else { raw })
}

fn in_options(headers: &[HeaderValueOption], kind: DenialKind) -> Option<String> {
    in_headers(headers.iter().filter_map(|option| option.header.as_ref()), kind)
}

fn id(number: u64) -> String {
    format!("request-{number:08}")
}

async fn rate_limit_service(served: &Served, number: u64, kind: DenialKind) -> Named {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let entries = vec![entry("k", "v".to_owned()), entry("sluicegate.acquire", id(number))];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
    let mut client = RateLimitServiceClient::new(served.channel.clone());
    let reply = client.should_rate_limit(request).await.unwrap().into_inner();
    (in_headers(&reply.response_headers_to_add, kind), in_metadata(reply.dynamic_metadata, kind))
}

async fn ext_authz(served: &Served, number: u64, kind: DenialKind) -> Named {
    let headers = [("x-key", "v".to_owned()), ("x-sluicegate-id", id(number))];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
    let http = Some(HttpRequest { headers, ..HttpRequest::default() });
    let request = Some(Request { http, ..Request::default() });
    let attributes = Some(AttributeContext { request, ..AttributeContext::default() });
    let mut client = AuthorizationClient::new(served.channel.clone());
    let reply = client.check(CheckRequest { attributes }).await.unwrap().into_inner();
    let header = match reply.http_response.unwrap() {
        HttpResponse::DeniedResponse(denied) => in_options(&denied.headers, kind),
        HttpResponse::OkResponse(ok) => in_options(&ok.response_headers_to_add, kind),
        HttpResponse::ErrorResponse(error) => panic!("{error:?}"),
    };
    (header, in_metadata(reply.dynamic_metadata, kind))
}

/// An immediate response has no metadata.
async fn ext_proc(served: &Served) -> Option<String> {
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![key] });
    let request = Some(Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() }));
    let message = ProcessingRequest { request, ..ProcessingRequest::default() };
    let mut client = ExternalProcessorClient::new(served.channel.clone());
    let mut replies = client.process(tokio_stream::iter([message])).await.unwrap().into_inner();
    match replies.message().await.unwrap().unwrap().response.unwrap() {
        Reply::ImmediateResponse(denied) => {
            in_options(&denied.headers.unwrap().set_headers, ENFORCED)
        }
        _ => None,
    }
}

/// The first request uses up the limit, so that all further ones are denied.
async fn assert_denials_name_the_rule(limit: &str) {
    let served = served(limit).await;
    assert_eq!(rate_limit_service(&served, 0, ENFORCED).await, (None, None), "{limit}");
    let named = Some("d.k".to_owned());
    let both = (named.clone(), named.clone());
    assert_eq!(rate_limit_service(&served, 1, ENFORCED).await, both, "{limit}");
    assert_eq!(ext_authz(&served, 2, ENFORCED).await, both, "{limit}");
    assert_eq!(ext_proc(&served).await, named, "{limit}");
}

#[tokio::test]
async fn denials_by_a_rate_limit_name_its_rule() {
    assert_denials_name_the_rule("rate_limit: {unit: day, requests_per_unit: 1}").await;
}

#[tokio::test]
async fn rejections_by_a_concurrency_limit_name_its_rule() {
    assert_denials_name_the_rule("concurrency: {limit: 1}").await;
}

/// The first request uses up the limit, so that all further ones would be denied.
async fn assert_shadow_denials_name_the_rule(limit: &str) {
    let served = served(&format!("{limit}, shadow_mode: true")).await;
    assert_eq!(rate_limit_service(&served, 0, SHADOW).await, (None, None), "{limit}");
    let named = Some("d.k".to_owned());
    let both = (named.clone(), named);
    assert_eq!(rate_limit_service(&served, 1, SHADOW).await, both, "{limit}");
    assert_eq!(ext_authz(&served, 2, SHADOW).await, both, "{limit}");
    assert_eq!(rate_limit_service(&served, 3, ENFORCED).await, (None, None), "{limit}");
}

#[tokio::test]
async fn shadow_denials_by_a_rate_limit_name_its_rule() {
    assert_shadow_denials_name_the_rule("rate_limit: {unit: day, requests_per_unit: 1}").await;
}

#[tokio::test]
async fn shadow_rejections_by_a_concurrency_limit_name_its_rule() {
    assert_shadow_denials_name_the_rule("concurrency: {limit: 1}").await;
}
