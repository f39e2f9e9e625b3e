//! Serves `envoy.service.accesslog.v3.AccessLogService`: Envoy's access log releases the permits
//! that were acquired through `ext_authz`.
//!
//! Guarantees:
//! - The log entry of a finished request releases its permits, with latency and outcome.
//! - The log entry of a request in flight renews its permits.
//! - Other log entries, such as those of TCP connections, have no effect.
//! - An open stream does not delay the shutdown.
//! - After an invalid entry, the other entries of its message are applied and the stream ends.
//! - Entries are decoded one at a time: two million empty entries in a message of 4 MiB would take
//!   4 GiB.

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time;

use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsResponse;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::SERVICE_NAME;
use envoy_types::pb::google::protobuf::Duration;
use prost::bytes::{Buf as _, Bytes};
use prost::{DecodeError, Message as _};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{ClientStreamingService, Grpc, NamedService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstEncoder;

use super::protobuf_fields::ProtobufFields;
use crate::engine::fleet::forwarding::PermitUpdate;
use crate::engine::{Engine, validate_id};
use crate::hook::{self, ID};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{EdgeOutcome as Counted, Event as _, Protocol, RequestCompleted};

/// The namespace of the `ext_authz` filter in Envoy's dynamic metadata.
const EXT_AUTHZ: &str = "envoy.filters.http.ext_authz";

/// The header with the time that the upstream asks clients to wait.
const RETRY_AFTER: &str = "retry-after";

/// The header or trailer with the gRPC status.
const GRPC_STATUS: &str = "grpc-status";

const METHOD: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

const HTTP_LOGS_FIELD: u64 = 2;
const LOG_ENTRY_FIELD: u64 = 1;

/// A draining process closes a stream after this time without messages. An earlier close would lose
/// log entries in transit.
const DRAIN_IDLE_TIMEOUT: time::Duration = time::Duration::from_millis(100);
/// The longest time for which a draining process reads a stream.
const DRAIN_TIMEOUT: time::Duration = time::Duration::from_secs(1);

const ENTRIES_PER_YIELD: usize = 256;

/// Decodes the HTTP log entries of an encoded `StreamAccessLogsMessage`, one at a time. An invalid
/// entry is an `Err`.
pub fn decode_entries(
    message: &[u8],
) -> impl Iterator<Item = Result<HttpAccessLogEntry, DecodeError>> {
    let logs = ProtobufFields::new(message).filter(|(number, _)| *number == HTTP_LOGS_FIELD);
    let entries = logs.flat_map(|(_, logs)| ProtobufFields::new(logs));
    let entries = entries.filter(|(number, _)| *number == LOG_ENTRY_FIELD);
    entries.map(|(_, entry)| HttpAccessLogEntry::decode(entry))
}

/// The gRPC service `AccessLogService`. Unlike tonic's generated service, it does not decode all
/// entries of a message at once.
#[derive(Clone, Debug)]
pub struct AccessLogService {
    engine: Arc<Engine>,
    draining: watch::Receiver<bool>,
}

impl AccessLogService {
    /// Creates the service. It ends all streams within about a second when the process drains.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, draining: watch::Receiver<bool>) -> Self {
        Self { engine, draining }
    }

    fn apply_entry(&self, entry: &HttpAccessLogEntry, source: Option<IpAddr>) {
        let headers = entry.request.as_ref().map(|request| &request.request_headers);
        let id = headers.and_then(|headers| headers.get(ID));
        let outcome = match id.map(|id| (id, validate_id(id))) {
            None => Counted::NothingToCheck,
            Some((_, Err(_))) => Counted::BadId,
            Some((id, Ok(()))) => {
                self.release_or_renew(id, entry, source);
                Counted::Allow
            }
        };
        RequestCompleted { protocol: Protocol::AccessLog, outcome }.emit();
    }

    fn release_or_renew(&self, id: &str, entry: &HttpAccessLogEntry, source: Option<IpAddr>) {
        let update = match entry_event(entry) {
            EntryEvent::Ended { outcome, rtt } => PermitUpdate::release(id, source, outcome, rtt),
            EntryEvent::InFlight => PermitUpdate::renewal(id),
            EntryEvent::Other => return,
        };
        self.engine.apply_or_forward(update, entry_owner(entry));
    }
}

impl AccessLogService {
    async fn read_stream(
        self,
        request: Request<Streaming<Bytes>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let source = request.remote_addr().map(|address| address.ip());
        let (mut messages, mut draining) = (request.into_inner(), self.draining.clone());
        loop {
            let message = tokio::select! {
                biased;
                message = messages.message() => message,
                _ = draining.wait_for(|is_draining| *is_draining) => break,
            };
            // The stream has ended or the proxy has disconnected, so nobody waits for an error.
            let Ok(Some(message)) = message else { return Ok(empty_response()) };
            self.apply_entries(&message, source).await?;
        }
        // The process drains. Entries in transit may release permits of other replicas.
        let drain_started = Instant::now();
        while drain_started.elapsed() < DRAIN_TIMEOUT
            && let Ok(Ok(Some(message))) = timeout(DRAIN_IDLE_TIMEOUT, messages.message()).await
        {
            self.apply_entries(&message, source).await?;
        }
        Ok(empty_response())
    }

    /// Applies all valid entries of a message, then returns an error if an entry was invalid.
    async fn apply_entries(&self, message: &[u8], source: Option<IpAddr>) -> Result<(), Status> {
        let mut first_error = None;
        for (count, entry) in (1..).zip(decode_entries(message)) {
            match entry {
                Ok(entry) => self.apply_entry(&entry, source),
                Err(error) => first_error = first_error.or(Some(error)),
            }
            if count % ENTRIES_PER_YIELD == 0 {
                yield_now().await;
            }
        }
        first_error.map_or(Ok(()), |error| Err(malformed_status(&error)))
    }
}

impl NamedService for AccessLogService {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for AccessLogService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(ready(Ok(Status::new(Code::Unimplemented, "").into_http())));
        }
        let service = self.clone();
        Box::pin(async move { Ok(Grpc::new(BytesCodec).client_streaming(service, request).await) })
    }
}

impl ClientStreamingService<Bytes> for AccessLogService {
    type Response = StreamAccessLogsResponse;
    type Future = BoxFuture<Response<StreamAccessLogsResponse>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(self.clone().read_stream(request))
    }
}

fn empty_response() -> Response<StreamAccessLogsResponse> {
    Response::new(StreamAccessLogsResponse {})
}

fn malformed_status(error: &DecodeError) -> Status {
    RequestCompleted { protocol: Protocol::AccessLog, outcome: Counted::Malformed }.emit();
    Status::internal(format!("invalid access log entry: {error}"))
}

/// A codec that leaves requests encoded, so that entries can be decoded one at a time.
#[derive(Clone, Copy, Debug)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = StreamAccessLogsResponse;
    type Decode = Bytes;
    type Encoder = ProstEncoder<StreamAccessLogsResponse>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

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
