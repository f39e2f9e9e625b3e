//! Builds the replies to Envoy's `ext_proc` filter.
//!
//! Guarantees:
//! - The response headers of a request with fenced permits have [`FENCED_HEADER`].

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::HeaderSendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use tokio::sync::mpsc;
use tonic::Status;

use crate::engine::{Decision, Rejection, RequestPermits};
use crate::headers::RateLimitHeaders;
use crate::kernel::units::Nanos;

pub(super) type ProcessingReply = Result<ProcessingResponse, Status>;

pub(super) type ProcessingReplySender = mpsc::Sender<ProcessingReply>;

/// The header of a response whose request ran under a share that expired.
pub const FENCED_HEADER: &str = "x-sluicegate-fenced";

pub(super) fn denied_reply(headers: &RateLimitHeaders, decision: &Decision) -> Reply {
    let headers = headers.for_decision(decision).into_iter();
    let headers = headers.map(|(name, value)| header_option(name, value)).collect();
    let details = if decision.ban_status.is_some() { "banned" } else { "over_limit" };
    let details = format!("sluicegate_{details}");
    immediate_response(decision.deny_status(), headers, Vec::new(), &details)
}

pub(super) fn rejected_reply(headers: &RateLimitHeaders, rejection: &Rejection) -> Reply {
    let reject = &rejection.reject;
    let wait = reject.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
    let wait = wait.map(|wait| ("retry-after", wait));
    let headers = wait.into_iter().chain(headers.for_rejection(rejection));
    let headers = headers.map(|(name, value)| header_option(name, value)).collect();
    let details = format!("sluicegate_{}", rejection.reason.as_str());
    immediate_response(reject.status, headers, reject.body.as_bytes().to_vec(), &details)
}

fn immediate_response(
    status: u16,
    headers: Vec<HeaderValueOption>,
    body: Vec<u8>,
    details: &str,
) -> Reply {
    Reply::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.into() }),
        headers: Some(HeaderMutation { set_headers: headers, remove_headers: Vec::new() }),
        body,
        details: details.to_owned(),
        ..ImmediateResponse::default()
    })
}

fn header_option(name: &str, value: String) -> HeaderValueOption {
    let header = HeaderValue {
        key: name.to_ascii_lowercase(),
        raw_value: value.into_bytes(),
        ..HeaderValue::default()
    };
    HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

/// Returns the reply that tells Envoy to continue unchanged, or `None` if `message` needs no reply.
pub(super) fn unchanged_reply(message: &ProcessingRequest) -> Option<Reply> {
    Some(match message.request.as_ref()? {
        Message::RequestHeaders(_) => Reply::RequestHeaders(HeadersResponse::default()),
        Message::ResponseHeaders(_) => Reply::ResponseHeaders(HeadersResponse::default()),
        Message::RequestBody(_) => Reply::RequestBody(BodyResponse::default()),
        Message::ResponseBody(_) => Reply::ResponseBody(BodyResponse::default()),
        Message::RequestTrailers(_) => Reply::RequestTrailers(TrailersResponse::default()),
        Message::ResponseTrailers(_) => Reply::ResponseTrailers(TrailersResponse::default()),
    })
}

/// Adds [`FENCED_HEADER`] to the response of a request whose permits are fenced.
pub(super) fn with_fence_header(reply: Reply, permits: &RequestPermits) -> Reply {
    match reply {
        Reply::ResponseHeaders(_) if permits.is_fenced() => {
            let set_headers = vec![header_option(FENCED_HEADER, "true".to_owned())];
            let mutation = HeaderMutation { set_headers, remove_headers: Vec::new() };
            let common = CommonResponse { header_mutation: Some(mutation), ..Default::default() };
            Reply::ResponseHeaders(HeadersResponse { response: Some(common) })
        }
        reply => reply,
    }
}

/// Returns the reply to the request headers that lets a request with holds pass: the response must not
/// be compressed.
pub(super) fn uncompressed_reply() -> Reply {
    let remove_headers = vec!["accept-encoding".to_owned()];
    let mutation = HeaderMutation { set_headers: Vec::new(), remove_headers };
    let common = CommonResponse { header_mutation: Some(mutation), ..Default::default() };
    Reply::RequestHeaders(HeadersResponse { response: Some(common) })
}

pub(super) fn to_processing_response(reply: Reply) -> ProcessingResponse {
    ProcessingResponse { response: Some(reply), ..ProcessingResponse::default() }
}

/// Builds the last reply of a stream: Envoy then sends no more messages.
pub(super) fn final_response(reply: Reply) -> ProcessingResponse {
    let skip = HeaderSendMode::Skip.into();
    let mode_override = ProcessingMode {
        response_header_mode: skip,
        response_trailer_mode: skip,
        ..ProcessingMode::default()
    };
    ProcessingResponse { mode_override: Some(mode_override), ..to_processing_response(reply) }
}

pub(super) fn extend_timeout(wait: Nanos) -> ProcessingResponse {
    let seconds = i64::try_from(wait.0 / Nanos::SECOND.0).unwrap_or(i64::MAX);
    let nanos = i32::try_from(wait.0 % Nanos::SECOND.0).unwrap_or(0);
    ProcessingResponse {
        override_message_timeout: Some(ProtoDuration { seconds, nanos }),
        ..ProcessingResponse::default()
    }
}
