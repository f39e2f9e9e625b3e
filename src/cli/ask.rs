//! Implements `sluicegate ask`, which sends one check or changes a counter or limit.
//!
//! Guarantees:
//! - Prints a result or an error within [`PATIENCE`].
//!
//! Not covered:
//! - The reason for a decision: see `sluicegate explain`.

mod told;

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

use super::args::Ask;
use super::{Outcome, Terminal, remote};
use crate::config::written;
use crate::source::xds::{Server, Tls, connect};

const PATIENCE: Duration = Duration::from_secs(10);

const NOTHING_TO_CHANGE: &str = "`--server` goes with --reset, --grant, --freeze or --thaw; a \
     question is asked at --address HOST:PORT, where the service speaks gRPC";

pub(super) fn ask(args: &Ask, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    let answered = match (&args.server, change(args)) {
        (Some(server), Some((act, more))) => {
            let more: Vec<_> = more.iter().map(|(name, text)| (*name, &**text)).collect();
            let said = remote::change(server, act, &args.domain, &args.descriptors, &more);
            said.map(|said| (told::sentence(args, act, &said).unwrap_or(said), Outcome::Yes))
        }
        // No fallback to `--address`: that could charge the counters of another service.
        (Some(_), None) => Err(NOTHING_TO_CHANGE.to_owned()),
        (None, _) => answer(args).map(|answer| shown(args, &answer)),
    };
    match answered {
        Ok((text, outcome)) => {
            write!(terminal.out, "{text}")?;
            Ok(outcome)
        }
        Err(sentence) => {
            writeln!(terminal.err, "error: {sentence}")?;
            Ok(Outcome::CouldNotSay)
        }
    }
}

/// Returns the requested admin action and its parameters, if any.
fn change(args: &Ask) -> Option<(&'static str, Vec<(&'static str, String)>)> {
    match (&args.freeze, &args.long) {
        _ if args.reset => Some(("reset", Vec::new())),
        _ if args.grant => Some(("grant", vec![("hits", args.hits.to_string())])),
        _ if args.thaw => Some(("thaw", Vec::new())),
        (Some(held), Some(long)) => {
            Some(("freeze", vec![("as", held.clone()), ("for", long.clone())]))
        }
        _ => None,
    }
}

fn answer(args: &Ask) -> Result<RateLimitResponse, String> {
    let request = RateLimitRequest {
        domain: args.domain.clone(),
        descriptors: args
            .descriptors
            .iter()
            .map(|text| descriptor(text, if args.peek { 0 } else { args.hits }))
            .collect::<Result<_, _>>()?,
        hits_addend: 0,
    };
    let server = server(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let asked = async {
        let channel = connect(&server).await.map_err(|error| error.to_string())?;
        let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await;
        let refused =
            |status: tonic::Status| format!("refused ({:?}): {}", status.code(), status.message());
        answer.map(tonic::Response::into_inner).map_err(refused)
    };
    let answered = runtime.block_on(async { tokio::time::timeout(PATIENCE, asked).await });
    let late = |_| format!("{} did not answer within {PATIENCE:?}", args.address);
    answered.map_err(late)?.map_err(|why| format!("{}: {why}", args.address))
}

fn server(args: &Ask) -> Result<Server, String> {
    let address = args.address.rsplit_once(':');
    // An address with a slash is a URL.
    let address = address.filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    let parsed = address.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parsed else {
        return Err(format!("`{}` is no address; one is written host:port", args.address));
    };
    let tls = Tls {
        ca: args.tls_ca_file.clone(),
        system_roots: false,
        identity: args.tls_cert_file.clone().zip(args.tls_key_file.clone()),
        server_name: args.tls_server_name.clone(),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Server { host, port, tls: args.tls.then_some(tls) })
}

fn descriptor(text: &str, hits: u64) -> Result<RateLimitDescriptor, String> {
    let entries = written::entries(text)?.into_iter().map(|(key, value)| Entry { key, value });
    let (entries, hits_addend) = (entries.collect(), Some(UInt64Value { value: hits }));
    Ok(RateLimitDescriptor { entries, hits_addend, ..RateLimitDescriptor::default() })
}

/// Formats one line for each descriptor, then the verdict.
fn shown(args: &Ask, answer: &RateLimitResponse) -> (String, Outcome) {
    let mut text = String::new();
    for (descriptor, status) in args.descriptors.iter().zip(&answer.statuses) {
        text.extend([descriptor, ": ", &line(status), "\n"]);
    }
    for header in &answer.response_headers_to_add {
        text.extend([&header.key, ": ", &header.value, "\n"]);
    }
    if answer.overall_code == i32::from(Code::OverLimit) {
        text.push_str("may not pass\n");
        return (text, Outcome::No);
    }
    text.push_str("may pass\n");
    (text, Outcome::Yes)
}

fn line(status: &DescriptorStatus) -> String {
    let is_over = status.code == i32::from(Code::OverLimit);
    let mut line = String::from(if is_over { "over" } else { "within" });
    let Some(limit) = &status.current_limit else {
        return if status.limit_remaining == u32::MAX { "unlimited" } else { "no limit" }
            .to_owned();
    };
    let (left, of) = (status.limit_remaining, limit.requests_per_unit);
    // Writing to a `String` cannot fail.
    write!(line, ", {left} of {of}{} left", per(limit.unit)).ok();
    if !limit.name.is_empty() {
        write!(line, " ({})", limit.name).ok();
    }
    if let Some(reset) = &status.duration_until_reset {
        write!(line, ", whole again in {}s", reset.seconds).ok();
    }
    line
}

/// Formats a unit, such as "per day", with a leading space.
/// Empty if the protocol has no unit for the limit's period.
fn per(unit: i32) -> String {
    match Unit::try_from(unit) {
        Ok(Unit::Unknown) => String::new(),
        Ok(unit) => format!(" per {}", unit.as_str_name().to_lowercase()),
        Err(_) => format!(" per {unit}"),
    }
}
