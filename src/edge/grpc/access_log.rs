//! `envoy.service.accesslog.v3.AccessLogService`: Envoy tells of the requests that `ext_authz` asked about.
//!
//! Guarantees: an entry of a request's end gives back what its id holds, with the upstream's latency and
//! how it went; one of a request that goes on renews it; any other does nothing. A stream that does
//! not end holds no shutdown up. What is no entry ends the stream, once the rest of its message is heard. One entry at a time is made of a message: two million empty ones fit 4 MiB, and all
//! together are four gigabytes.
//! Leaves out: everything else that an entry says. TCP entries have no request and tell nothing.

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time;

use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, ResponseFlags,
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

use super::fields::Fields;
use crate::edge::hook::{self, ID};
use crate::engine::peers::Told;
use crate::engine::{Engine, check_id};
use crate::kernel::concurrency::Outcome;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Asked, Outcome as Counted, Protocol};

/// Where the `ext_authz` filter puts what its service says.
const EXT_AUTHZ: &str = "envoy.filters.http.ext_authz";

/// The one method.
const METHOD: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// Field numbers: a message's HTTP entries, and one entry of them.
const HTTP_LOGS: u64 = 2;
const LOG_ENTRY: u64 = 1;

/// A process that goes reads on until nothing has come for so long: of a stream that is closed what is under way is lost.
const QUIET: time::Duration = time::Duration::from_millis(100);
/// And no longer than this.
const LAST: time::Duration = time::Duration::from_secs(1);

/// Entries after which others have their turn.
const TURN: usize = 256;

/// The HTTP entries of `message`, each made of its bytes when it is asked for. An error where an entry is none.
pub fn entries(message: &[u8]) -> impl Iterator<Item = Result<HttpAccessLogEntry, DecodeError>> {
    let logs = Fields::of(message).filter(|(number, _)| *number == HTTP_LOGS);
    let entries = logs.flat_map(|(_, logs)| Fields::of(logs));
    let entries = entries.filter(|(number, _)| *number == LOG_ENTRY);
    entries.map(|(_, entry)| HttpAccessLogEntry::decode(entry))
}

/// The service, at its path. By hand: the one that is made of the proto decodes whatever comes, at once.
#[derive(Clone, Debug)]
pub struct AccessLogs {
    engine: Arc<Engine>,
    /// True once this process goes.
    leaving: watch::Receiver<bool>,
}

impl AccessLogs {
    /// The service over `engine`, which reads little further once `leaving` is true.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, leaving: watch::Receiver<bool>) -> Self {
        Self { engine, leaving }
    }

    fn note(&self, entry: &HttpAccessLogEntry, source: Option<IpAddr>) {
        let headers = entry.request.as_ref().map(|request| &request.request_headers);
        let id = headers.and_then(|headers| headers.get(ID));
        let outcome = match id.map(|id| (id, check_id(id))) {
            None => Counted::NothingToAsk,
            Some((_, Err(_))) => Counted::BadId,
            Some((id, Ok(()))) => {
                self.tell(id, entry, source);
                Counted::Admit
            }
        };
        Asked { protocol: Protocol::AccessLog, outcome }.emit();
    }

    fn tell(&self, id: &str, entry: &HttpAccessLogEntry, source: Option<IpAddr>) {
        let told = match says(entry) {
            Says::Ended { outcome, rtt } => Told::ended(id, source, outcome, rtt),
            Says::GoesOn => Told::goes_on(id),
            Says::Nothing => return,
        };
        self.engine.tell(told, owner(entry));
    }
}

impl AccessLogs {
    async fn listen(
        self,
        request: Request<Streaming<Bytes>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let source = request.remote_addr().map(|address| address.ip());
        let (mut messages, mut leaving) = (request.into_inner(), self.leaving.clone());
        loop {
            let message = tokio::select! {
                biased;
                message = messages.message() => message,
                _ = leaving.wait_for(|leaving| *leaving) => break,
            };
            // A proxy that goes breaks the stream off, and nobody reads what would be said to it.
            let Ok(Some(message)) = message else { return Ok(heard()) };
            self.note_all(&message, source).await?;
        }
        // The places of other replicas end by these as well.
        let began = Instant::now();
        while began.elapsed() < LAST
            && let Ok(Ok(Some(message))) = timeout(QUIET, messages.message()).await
        {
            self.note_all(&message, source).await?;
        }
        Ok(heard())
    }

    /// One that is no entry ends the stream, but keeps nothing from the others.
    async fn note_all(&self, message: &[u8], source: Option<IpAddr>) -> Result<(), Status> {
        let mut broken = None;
        for (at, entry) in (1..).zip(entries(message)) {
            match entry {
                Ok(entry) => self.note(&entry, source),
                Err(error) => broken = broken.or(Some(error)),
            }
            if at % TURN == 0 {
                yield_now().await;
            }
        }
        broken.map_or(Ok(()), |error| Err(malformed(&error)))
    }
}

impl NamedService for AccessLogs {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for AccessLogs {
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
        let logs = self.clone();
        Box::pin(async move { Ok(Grpc::new(Raw).client_streaming(logs, request).await) })
    }
}

impl ClientStreamingService<Bytes> for AccessLogs {
    type Response = StreamAccessLogsResponse;
    type Future = BoxFuture<Response<StreamAccessLogsResponse>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(self.clone().listen(request))
    }
}

fn heard() -> Response<StreamAccessLogsResponse> {
    Response::new(StreamAccessLogsResponse {})
}

fn malformed(error: &DecodeError) -> Status {
    Asked { protocol: Protocol::AccessLog, outcome: Counted::Malformed }.emit();
    Status::internal(format!("an entry of the access log: {error}"))
}

/// Messages as they come, an answer as it is.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
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

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Who answered `ext_authz`: by what that filter said, which no client can, or by a header of the response.
#[must_use]
pub fn owner(entry: &HttpAccessLogEntry) -> Option<&str> {
    let common = entry.common_properties.as_ref();
    let metadata = common.and_then(|common| common.metadata.as_ref());
    hook::said_by(EXT_AUTHZ, hook::OWNER, metadata).or_else(|| {
        let headers = &entry.response.as_ref()?.response_headers;
        headers.get(hook::OWNER).map(String::as_str)
    })
}

/// What an entry says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// It has ended.
    Ended {
        /// How it went for the upstream.
        outcome: Outcome,
        /// The upstream's latency, from the first byte to it to the last from it.
        rtt: Option<Nanos>,
    },
    /// It is in flight.
    GoesOn,
    /// Neither: it begins, or a part of it begins or ends.
    Nothing,
}

/// What `entry` says. An Envoy that names no type of entry sends them at ends alone.
#[must_use]
pub fn says(entry: &HttpAccessLogEntry) -> Says {
    let nothing = AccessLogCommon::default();
    let common = entry.common_properties.as_ref().unwrap_or(&nothing);
    match common.access_log_type() {
        AccessLogType::DownstreamPeriodic => Says::GoesOn,
        AccessLogType::DownstreamEnd | AccessLogType::NotSet => {
            let rtt = rtt(common);
            Says::Ended { outcome: outcome(entry, common, rtt), rtt }
        }
        _ => Says::Nothing,
    }
}

/// A client that left tells nothing of the upstream, nor does an answer that was made in Envoy.
fn outcome(entry: &HttpAccessLogEntry, common: &AccessLogCommon, rtt: Option<Nanos>) -> Outcome {
    let flags = common.response_flags.unwrap_or_default();
    let code = entry.response.as_ref().and_then(|response| response.response_code);
    if has_failed(&flags) {
        return Outcome::Dropped;
    }
    let left = flags.downstream_connection_termination || flags.downstream_remote_reset;
    match code.map_or(0, |code| code.value) {
        _ if left || rtt.is_none() => Outcome::Ignored,
        0..100 => Outcome::Ignored,
        100..500 => Outcome::Success,
        500.. => Outcome::Dropped,
    }
}

/// Whether the upstream did not answer, or not in time, or not to the end.
const fn has_failed(flags: &ResponseFlags) -> bool {
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

fn rtt(common: &AccessLogCommon) -> Option<Nanos> {
    let begun = nanos(common.time_to_first_upstream_tx_byte?)?;
    let ended = nanos(common.time_to_last_upstream_rx_byte?)?;
    (begun <= ended).then(|| ended.since(begun))
}

fn nanos(duration: Duration) -> Option<Nanos> {
    let (seconds, nanos) = (u64::try_from(duration.seconds).ok()?, u64::try_from(duration.nanos));
    Some(Nanos(seconds.checked_mul(Nanos::SECOND.0)?.checked_add(nanos.ok()?)?))
}
