//! Reads one entry of Envoy's access log.

use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::google::protobuf::Duration;

use crate::hook;
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::units::Nanos;

/// The namespace of the `ext_authz` filter in Envoy's dynamic metadata.
const EXT_AUTHZ: &str = "envoy.filters.http.ext_authz";

/// The header with the time that the upstream asks clients to wait.
const RETRY_AFTER: &str = "retry-after";

/// The header or trailer with the gRPC status.
const GRPC_STATUS: &str = "grpc-status";

/// Returns the name of the replica that decided the request's `ext_authz` call, from the filter's
/// metadata, which no client can set, or else from the response header [`hook::OWNER_KEY`].
#[must_use]
pub fn entry_owner(entry: &HttpAccessLogEntry) -> Option<&str> {
    let common = entry.common_properties.as_ref();
    let metadata = common.and_then(|common| common.metadata.as_ref());
    hook::filter_string(EXT_AUTHZ, hook::OWNER_KEY, metadata).or_else(|| {
        let headers = &entry.response.as_ref()?.response_headers;
        headers.get(hook::OWNER_KEY).map(String::as_str)
    })
}

/// The state of a request according to its access log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEvent {
    /// The request has ended.
    Ended {
        /// The request outcome.
        outcome: ReportedOutcome,
        /// The upstream's latency, from the first byte sent to the last byte received.
        rtt: Option<Nanos>,
    },
    /// The request is in flight.
    InFlight,
    /// The entry is of another type, such as the start of the request.
    Other,
}

/// Returns the state of the request in an access log entry. An entry without a type is the end of a
/// request, as in older versions of Envoy.
#[must_use]
pub fn entry_event(entry: &HttpAccessLogEntry) -> EntryEvent {
    let default = AccessLogCommon::default();
    let common = entry.common_properties.as_ref().unwrap_or(&default);
    match common.access_log_type() {
        AccessLogType::DownstreamPeriodic => EntryEvent::InFlight,
        AccessLogType::DownstreamEnd | AccessLogType::NotSet => {
            let rtt = upstream_rtt(common);
            EntryEvent::Ended { outcome: upstream_outcome(entry, common, rtt), rtt }
        }
        _ => EntryEvent::Other,
    }
}

/// Returns the upstream's answer, or [`RequestOutcome::Ignored`] if the client disconnected or Envoy
/// itself responded. The gRPC status and `Retry-After` are known only if Envoy logs them.
fn upstream_outcome(
    entry: &HttpAccessLogEntry,
    common: &AccessLogCommon,
    rtt: Option<Nanos>,
) -> ReportedOutcome {
    let flags = common.response_flags.unwrap_or_default();
    if has_upstream_failed(&flags) {
        return RequestOutcome::Dropped.into();
    }
    let has_client_left = flags.downstream_connection_termination || flags.downstream_remote_reset;
    match &entry.response {
        Some(response) if !has_client_left && rtt.is_some() => {
            ReportedOutcome::Answered(upstream_answer(response))
        }
        _ => RequestOutcome::Ignored.into(),
    }
}

fn upstream_answer(response: &HttpResponseProperties) -> UpstreamAnswer {
    let code = response.response_code.unwrap_or_default().value;
    let retry_after = response.response_headers.get(RETRY_AFTER);
    let grpc = response.response_trailers.get(GRPC_STATUS);
    let grpc = grpc.or_else(|| response.response_headers.get(GRPC_STATUS));
    UpstreamAnswer {
        http: Some(u16::try_from(code).unwrap_or_default()),
        grpc: grpc.and_then(|code| code.parse().ok()),
        has_latency: true,
        retry_after: retry_after.and_then(|wait| hook::parse_retry_after(wait)),
    }
}

const fn has_upstream_failed(flags: &ResponseFlags) -> bool {
    flags.no_healthy_upstream
        || flags.upstream_connection_failure
        || flags.upstream_connection_termination
        || flags.upstream_remote_reset
        || flags.upstream_request_timeout
        || flags.upstream_max_stream_duration_reached
        || flags.upstream_overflow
        || flags.upstream_protocol_error
        || flags.upstream_retry_limit_exceeded
        || flags.duration_timeout
}

fn upstream_rtt(common: &AccessLogCommon) -> Option<Nanos> {
    let started = to_nanos(common.time_to_first_upstream_tx_byte?)?;
    let ended = to_nanos(common.time_to_last_upstream_rx_byte?)?;
    (started <= ended).then(|| ended.since(started))
}

fn to_nanos(duration: Duration) -> Option<Nanos> {
    let (seconds, nanos) = (u64::try_from(duration.seconds).ok()?, u64::try_from(duration.nanos));
    Some(Nanos(seconds.checked_mul(Nanos::SECOND.0)?.checked_add(nanos.ok()?)?))
}
