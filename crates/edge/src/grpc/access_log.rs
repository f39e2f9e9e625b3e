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

mod entry;

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use envoy_types::pb::envoy::data::accesslog::v3::HttpAccessLogEntry;
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsResponse;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::SERVICE_NAME;
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
use crate::hook::ID;
use crate::telemetry::event::{EdgeOutcome as Counted, Event as _, Protocol, RequestCompleted};
pub use entry::{EntryEvent, entry_event, entry_owner};

const METHOD: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

const HTTP_LOGS_FIELD: u64 = 2;
const LOG_ENTRY_FIELD: u64 = 1;

/// A draining process closes a stream after this time without messages. An earlier close would lose
/// log entries in transit.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest time for which a draining process reads a stream.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

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
