//! Implements `sluicegate ask`, which sends one check or changes a counter or limit. Prints a
//! result or an error within [`CALL_TIMEOUT`].

mod admin_reply;
mod budgets;

pub(super) use admin_reply::replicas_suffix;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::metadata::MetadataValue;

use super::admin_client::LOCAL_ADMIN_PORT;
use super::args::{AskArgs, TlsArgs};
use super::{CommandOutcome, Terminal, admin_client};
use crate::config::descriptor_text;
use crate::edge::grpc::rls::PEEK_HEADER;
use crate::source::xds::{XdsServer, XdsTls, connect};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const SERVER_WITHOUT_CHANGE: &str = "--server is only for --reset, --refund, --force, --unforce, \
     --boost and --unboost; for a check, set --address to the gRPC port";

pub(super) fn ask(args: &AskArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    let result = match (&args.server, admin_action(args)) {
        (server, Some((action, params))) => {
            let server = server.as_deref().unwrap_or(LOCAL_ADMIN_PORT);
            let parameters: Vec<_> = params.iter().map(|(name, text)| (*name, &**text)).collect();
            let reply = admin_client::post_change(
                server,
                action,
                &args.domain,
                &args.descriptors,
                &parameters,
            );
            reply.map(|reply_text| {
                (
                    admin_reply::describe_change(args, action, &reply_text).unwrap_or(reply_text),
                    CommandOutcome::Success,
                )
            })
        }
        // An error, because a check at `--address` could charge the counters of another service.
        (Some(_), None) => Err(SERVER_WITHOUT_CHANGE.to_owned()),
        (None, None) => send_check(args).map(|(response, budgets)| {
            let (reply, outcome) = format_reply(args, &response);
            (budgets + &reply, outcome)
        }),
    };
    match result {
        Ok((text, outcome)) => {
            write!(terminal.out, "{text}")?;
            Ok(outcome)
        }
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}

/// Returns the change for the admin port that the flags request, with its parameters. `None` if the
/// flags request a check.
fn admin_action(args: &AskArgs) -> Option<(&'static str, Vec<(&'static str, String)>)> {
    let (action, mut parameters) = match (&args.force, &args.boost, &args.long) {
        _ if args.reset => ("reset", Vec::new()),
        _ if args.refund => ("refund", vec![("hits", args.hits.to_string())]),
        _ if args.unforce => ("unforce", Vec::new()),
        _ if args.unboost => ("unboost", Vec::new()),
        (Some(decision), _, Some(duration)) => {
            ("force", vec![("as", decision.clone()), ("for", duration.clone())])
        }
        (None, Some(size), Some(duration)) => {
            let size = match size.strip_prefix('x') {
                Some(factor) => ("factor", factor.to_owned()),
                None => ("limit", size.clone()),
            };
            ("boost", vec![size, ("for", duration.clone())])
        }
        _ => return None,
    };
    parameters.extend(args.scope.clone().map(|scope| ("scope", scope)));
    parameters.extend(args.reason.clone().map(|reason| ("reason", reason)));
    Some((action, parameters))
}

/// Returns the reply to a check, and the lines about its budgets if it is a peek.
fn send_check(args: &AskArgs) -> Result<(RateLimitResponse, String), String> {
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args
            .descriptors
            .iter()
            .map(|text| to_descriptor(text, if args.peek { 0 } else { args.hits }))
            .collect::<Result<_, _>>()?,
        hits_addend: 0,
    };
    let server = grpc_server(&args.address, &args.tls)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start: {error}"))?;
    let call = async {
        let connected = connect(&server).await;
        let channel = connected.map_err(|error| format!("{}: {error}", args.address))?;
        let mut budgets = Ok(String::new());
        if args.peek {
            budgets = budgets::describe(channel.clone(), &request).await;
        }
        let mut call = tonic::Request::new(request);
        if args.peek {
            call.metadata_mut().insert(PEEK_HEADER, MetadataValue::from_static("1"));
        }
        let response = RateLimitServiceClient::new(channel).should_rate_limit(call).await;
        let response = response.map(tonic::Response::into_inner);
        let both = response.and_then(|response| Ok((response, budgets?)));
        both.map_err(|status| call_error(args, &status))
    };
    let reply = runtime.block_on(async { tokio::time::timeout(CALL_TIMEOUT, call).await });
    reply.map_err(|_elapsed| format!("{}: no reply within {CALL_TIMEOUT:?}", args.address))?
}

/// Describes a failed call. A status with a cause is from this side of the connection: the port
/// replied with something other than gRPC, for example HTTP/1.1.
fn call_error(args: &AskArgs, status: &tonic::Status) -> String {
    let address = &args.address;
    let is_protocol_error = matches!(status.code(), tonic::Code::Unknown | tonic::Code::Internal);
    if is_protocol_error && std::error::Error::source(status).is_some() {
        let tls_hint = if args.tls.is_on { "" } else { "; if that port uses TLS, add --tls" };
        return format!(
            "{address} did not answer as gRPC; the gRPC port is listen.grpc_port (8081 by \
             default){tls_hint}"
        );
    }
    format!("{address}: {:?}: {}", status.code(), status.message())
}

/// Parses the flag `--address` and the TLS flags.
///
/// # Errors
/// The address is not HOST:PORT.
pub(super) fn grpc_server(address: &str, tls: &TlsArgs) -> Result<XdsServer, String> {
    let parts = address.rsplit_once(':');
    // A URL contains a slash; `--address` takes host:port.
    let parts = parts.filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    let parsed = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parsed else {
        return Err(format!("--address `{address}` must be HOST:PORT, such as 127.0.0.1:8081"));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let options = XdsTls {
        ca_file: tls.ca_file.clone(),
        trust_system_cas: false,
        client_identity: tls.cert_file.clone().zip(tls.key_file.clone()),
        server_name: tls.server_name.clone(),
    };
    Ok(XdsServer { host, port, tls: tls.is_on.then_some(options) })
}

fn to_descriptor(text: &str, hits: u64) -> Result<RateLimitDescriptor, String> {
    let entries =
        descriptor_text::parse_entries(text)?.into_iter().map(|(key, value)| Entry { key, value });
    let (entries, hits_addend) = (entries.collect(), Some(UInt64Value { value: hits }));
    Ok(RateLimitDescriptor { entries, hits_addend, ..RateLimitDescriptor::default() })
}

/// Formats one line for each descriptor and response header, then the verdict.
fn format_reply(args: &AskArgs, reply: &RateLimitResponse) -> (String, CommandOutcome) {
    let mut text = String::new();
    for (descriptor, status) in args.descriptors.iter().zip(&reply.statuses) {
        text.extend([descriptor, ": ", &format_status(status), "\n"]);
    }
    for header in &reply.response_headers_to_add {
        text.extend([&header.key, ": ", &header.value, "\n"]);
    }
    if reply.overall_code == i32::from(Code::OverLimit) {
        text.push_str("deny\n");
        return (text, CommandOutcome::Negative);
    }
    text.push_str("allow\n");
    (text, CommandOutcome::Success)
}

fn format_status(status: &DescriptorStatus) -> String {
    let is_over = status.code == i32::from(Code::OverLimit);
    let mut line = String::from(if is_over { "over" } else { "within" });
    let Some(limit) = &status.current_limit else {
        return if status.limit_remaining == u32::MAX { "unlimited" } else { "no limit" }
            .to_owned();
    };
    let (remaining, requests) = (status.limit_remaining, limit.requests_per_unit);
    // Writing to a `String` cannot fail.
    write!(line, ", {remaining} of {requests}{} remaining", unit_suffix(limit.unit)).ok();
    if !limit.name.is_empty() {
        write!(line, " ({})", limit.name).ok();
    }
    if let Some(reset) = &status.duration_until_reset {
        write!(line, ", resets in {}s", reset.seconds).ok();
    }
    line
}

/// Formats the unit of a limit with a leading space, such as " per day". Empty if Envoy's protocol
/// has no unit for the period.
fn unit_suffix(unit: i32) -> String {
    match Unit::try_from(unit) {
        Ok(Unit::Unknown) => String::new(),
        Ok(unit) => format!(" per {}", unit.as_str_name().to_lowercase()),
        Err(_) => format!(" per {unit}"),
    }
}
