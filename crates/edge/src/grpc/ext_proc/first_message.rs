//! Reads the request from the first message of Envoy's `ext_proc` filter.
//!
//! Guarantees:
//! - The hook is named by gRPC metadata or route metadata, which no client can set.

use std::borrow::Cow;
use std::collections::HashMap;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use tonic::Status;

use super::header_lines::{HeaderLines, headers_by_name};
use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::hook::{self, HookError};

/// The Envoy attribute with the name of the hook, used if [`super::HOOK_HEADER`] is missing.
///
/// It is route metadata, which no client can set. The filter's field `request_attributes` must
/// contain it in exactly this spelling.
pub const ROUTE_HOOK_ATTRIBUTE: &str = "xds.route_metadata.filter_metadata.sluicegate.hook";

/// Builds the rate limit request of the hook that the metadata or the route names.
///
/// # Errors
/// A status if the filter's configuration does not fit, or the error of the hook.
pub(super) fn hook_request(
    hooks: &Hooks,
    hook: Option<&str>,
    first_message: &ProcessingRequest,
) -> Result<Result<RateLimitRequest, HookError>, Status> {
    let headers = request_headers(first_message)?;
    let hook = hook.map_or_else(|| route_hook(first_message), |hook| Ok(Some(hook)))?;
    let remote_address = match attribute(first_message, "source.address") {
        Some(Kind::StringValue(address)) => ClientAddress::parse(address),
        _ => None,
    };
    let attributes = RequestAttributes {
        first_header_value: &|name| headers.get(name).map(|lines| Cow::Borrowed(lines.first())),
        joined_header_values: &|name| headers.get(name).map(|lines| Cow::Borrowed(&*lines.joined)),
        path: headers.get(":path").map_or("", HeaderLines::first),
        remote_address,
        metadata: &|key| hook::metadata_string(first_message.metadata_context.as_ref(), key),
    };
    Ok(hook::build_request(hooks, hook, &attributes))
}

/// Returns the request's headers by name. The first message must contain them.
fn request_headers(
    first_message: &ProcessingRequest,
) -> Result<HashMap<&str, HeaderLines>, Status> {
    let Some(Message::RequestHeaders(headers)) = &first_message.request else {
        let message = "the first message has no request headers: request_header_mode must be SEND";
        return Err(Status::invalid_argument(message));
    };
    if first_message.observability_mode {
        let message = "observability_mode must be off, because Envoy would ignore a denial";
        return Err(Status::invalid_argument(message));
    }
    Ok(headers_by_name(headers.headers.as_ref()))
}

fn route_hook(request: &ProcessingRequest) -> Result<Option<&str>, Status> {
    match attribute(request, ROUTE_HOOK_ATTRIBUTE) {
        None => Ok(None),
        Some(Kind::StringValue(name)) => Ok(Some(name)),
        // An error, because the first hook may not be the one that the route means.
        Some(_) => {
            let message = format!(
                "the attribute {ROUTE_HOOK_ATTRIBUTE} must be a string: the name of a hook"
            );
            Err(Status::invalid_argument(message))
        }
    }
}

/// Returns an Envoy attribute of the request. The filter's field `request_attributes` must list it.
fn attribute<'r>(request: &'r ProcessingRequest, name: &str) -> Option<&'r Kind> {
    let value = request.attributes.values().find_map(|attributes| attributes.fields.get(name))?;
    value.kind.as_ref()
}
