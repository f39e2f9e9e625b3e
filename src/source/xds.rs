//! Loads configuration from an xDS server over Envoy's aggregated discovery service (ADS), in the
//! variant "state of the world" (`SotW`).
//!
//! Guarantees:
//! - Each accepted response replaces the whole configuration.
//! - Each response is acknowledged (ACK) or rejected with its errors (NACK). A NACK that repeats the
//!   previous one is delayed, and only the last response is answered.
//! - A rejected response keeps the last good configuration.
//! - A response without limits removes existing limits only with [`XdsOptions::allow_empty`].
//! - The configuration stays in use while there is no connection to the xDS server.
//! - Reconnects forever. Each new stream starts with the last accepted version.
//!
//! Not covered:
//! - Delta xDS, warming and resource expiry, which envoyproxy/ratelimit does not have either.

mod backoff;
mod channel;
mod convert;
pub mod message;
mod rejections;
mod stream_log;

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient as Client;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc::Status;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};

use super::{
    ConfigParser, ConfigSource, FailedLoad, LoadFailure, PublishedConfig, ReloadRequest,
    SourceReadError, TextFile,
};
use crate::config::Config;
use crate::config::diagnostic::{Diagnostics, Severity, SeverityCounts};
use crate::kernel::units::{Nanos, Revision};
pub use backoff::{Backoff, BackoffBounds};
pub use channel::{XdsConnectError, XdsServer, XdsTls, connect, connect_lazily};
use message::{RateLimitConfig, TYPE_URL};
use rejections::{DelayedNack, Rejections, take_due};
use stream_log::StreamLog;

const DEFAULT_MAX_MESSAGE_BYTES: usize = 4 << 20;
const MAX_NACK_DIAGNOSTICS: usize = 20;
/// The message of a rejected response without limits.
const EMPTY_ANSWER: &str = "the answer of the xDS server has no limits, so the last ones stay; \
    to remove all limits, set limits.xds.allow_empty: true";
const REQUEST_QUEUE_CAPACITY: usize = 4;

/// The options of the xDS source.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    /// The address and the TLS options of the xDS server.
    pub server: XdsServer,
    /// The field `node.id` of each request to the xDS server.
    pub node_id: String,
    /// The field `node.metadata` of each request to the xDS server.
    pub node_metadata: Vec<(String, String)>,
    /// Additional headers of the gRPC stream to the xDS server.
    pub headers: Vec<(String, String)>,
    /// The maximum size of a message from the xDS server, in bytes. Default: 4 MiB.
    pub max_message_bytes: Option<usize>,
    /// The bounds of the wait before a new connection to the xDS server.
    pub backoff: BackoffBounds,
    /// `true` if a response without limits may remove all limits.
    pub allow_empty: bool,
}

/// The error for a header in the setting `compat.xds.headers` with an invalid name or value.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the header `{0}` has an invalid name or value")]
pub struct InvalidXdsHeader(String);

/// Starts the xDS source. Returns before the first connection to the xDS server.
///
/// # Errors
/// [`InvalidXdsHeader`] if a header has an invalid name or value.
pub fn start(
    options: XdsOptions,
    load: Arc<ConfigParser>,
    now: impl Fn() -> Nanos + Send + Sync + 'static,
) -> Result<ConfigSource, InvalidXdsHeader> {
    let headers = parse_headers(&options.headers)?;
    options.server.warn_without_tls();
    let (sender, published) = watch::channel(PublishedConfig::default());
    let reload = ReloadRequest::default();
    let client = XdsClient {
        node: build_node(&options),
        headers,
        load,
        sender,
        now: Box::new(now),
        accepted_version: String::new(),
        accepted_files: None,
        backoff: Backoff::new(options.backoff),
        rejections: Rejections::new(),
        streams: StreamLog::new(),
        options,
    };
    let task = tokio::spawn(client.run(reload.clone()));
    Ok(ConfigSource { published, reload, task })
}

fn parse_headers(pairs: &[(String, String)]) -> Result<MetadataMap, InvalidXdsHeader> {
    let mut headers = MetadataMap::new();
    for (name, text) in pairs {
        let header = || {
            let key = MetadataKey::<Ascii>::from_str(&name.to_lowercase()).ok()?;
            Some((key, MetadataValue::try_from(text).ok()?))
        };
        let (key, text) = header().ok_or_else(|| InvalidXdsHeader(name.clone()))?;
        headers.insert(key, text);
    }
    Ok(headers)
}

fn build_node(options: &XdsOptions) -> Node {
    let text_value = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields =
        options.node_metadata.iter().map(|(name, value)| (name.clone(), text_value(value)));
    let metadata = Struct { fields: fields.collect() };
    let metadata = Some(metadata).filter(|metadata| !metadata.fields.is_empty());
    Node { id: options.node_id.clone(), metadata, ..Node::default() }
}

struct XdsClient {
    options: XdsOptions,
    node: Node,
    headers: MetadataMap,
    load: Arc<ConfigParser>,
    sender: watch::Sender<PublishedConfig>,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
    accepted_version: String,
    accepted_files: Option<Vec<TextFile>>,
    backoff: Backoff,
    rejections: Rejections,
    streams: StreamLog,
}

#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("{0}")]
    Connection(#[from] channel::XdsConnectError),
    #[error("the stream failed: {}", .0.message())]
    StreamFailed(#[from] tonic::Status),
    #[error("the server closed the stream")]
    Closed,
}

impl XdsClient {
    async fn run(mut self, reload: ReloadRequest) {
        loop {
            let publisher = self.sender.clone();
            let end = tokio::select! {
                () = publisher.closed() => return,
                end = self.run_stream() => end,
            };
            let wait = self.backoff.next_wait();
            self.streams.record_failure(&self.options.server, &end.to_string(), wait);
            tokio::select! {
                () = publisher.closed() => return,
                () = sleep(wait) => {}
                () = reload.requested() => {}
            }
        }
    }

    async fn run_stream(&mut self) -> StreamEnd {
        match self.exchange_messages().await {
            Ok(()) => StreamEnd::Closed,
            Err(end) => end,
        }
    }

    async fn exchange_messages(&mut self) -> Result<(), StreamEnd> {
        let channel = channel::connect(&self.options.server).await?;
        let max_bytes = self.options.max_message_bytes.unwrap_or(DEFAULT_MAX_MESSAGE_BYTES);
        let mut client = Client::new(channel).max_decoding_message_size(max_bytes);
        let (request_sender, request_receiver) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        // The first request of a stream has no nonce: nonces of former streams are invalid.
        self.send_request(&request_sender, "", None).await?;
        let mut request = Request::new(ReceiverStream::new(request_receiver));
        *request.metadata_mut() = self.headers.clone();
        // No timeout: the response headers may arrive late, with the first response. TCP keepalive
        // detects a vanished server.
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        let mut delayed: Option<DelayedNack> = None;
        loop {
            let response = tokio::select! {
                response = responses.message() => response?,
                nack = take_due(&mut delayed) => {
                    self.send_request(&request_sender, &nack.nonce, Some(nack.error)).await?;
                    continue;
                }
            };
            let Some(response) = response else { return Ok(()) };
            self.streams.record_response(&self.options.server);
            let (version, nonce) = (response.version_info.clone(), response.nonce.clone());
            let Err(error) = self.apply_response(response).await else {
                self.accept(version);
                delayed = None;
                self.send_request(&request_sender, &nonce, None).await?;
                continue;
            };
            let is_repeated = self.rejections.record(&version, &error, &self.kept_limits());
            match &mut delayed {
                // The server expects a reply to its last nonce only.
                Some(waiting) if is_repeated => waiting.nonce = nonce,
                None if is_repeated => delayed = Some(self.rejections.delay(nonce, error)),
                _ => {
                    delayed = None;
                    self.send_request(&request_sender, &nonce, Some(error)).await?;
                }
            }
        }
    }

    fn accept(&mut self, version: String) {
        self.rejections.accept(&version);
        self.accepted_version = version;
        self.backoff.reset();
    }

    /// Describes the limits that stay in use after a rejection.
    fn kept_limits(&self) -> String {
        match &*self.accepted_version {
            "" => "no limits are loaded yet".to_owned(),
            accepted => format!("keeping version {accepted}"),
        }
    }

    async fn send_request(
        &self,
        requests: &mpsc::Sender<DiscoveryRequest>,
        nonce: &str,
        nack: Option<String>,
    ) -> Result<(), StreamEnd> {
        let request = DiscoveryRequest {
            version_info: self.accepted_version.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: nack.map(|message| Status { message, ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        requests.send(request).await.map_err(|_| StreamEnd::Closed)
    }

    /// Replaces the whole configuration. Fails with the message for the NACK.
    async fn apply_response(&mut self, response: DiscoveryResponse) -> Result<(), String> {
        let configs = decode_resources(&response).inspect_err(|error| {
            let error = self.unreadable_response(&response.version_info, error);
            self.record_failure(LoadFailure::Unreadable(error));
        })?;
        let texts = configs.iter().map(|config| {
            let text = convert::to_file_text(config)
                .map_err(|error| format!("{}: {error}", config.name))?;
            Ok(TextFile { name: Arc::from(config.name.as_str()), bytes: text.into_bytes() })
        });
        let texts: Result<Vec<_>, String> = texts.collect();
        let texts = match texts {
            Ok(texts) => texts,
            Err(error) => {
                self.record_failure(LoadFailure::Unconvertible(error.clone()));
                return Err(error);
            }
        };
        if self.accepted_files.as_ref() == Some(&texts) {
            let now = (self.now)();
            self.sender.send_modify(|published| published.status.record_success(now));
            return Ok(());
        }
        self.load(texts).await
    }

    async fn load(&mut self, texts: Vec<TextFile>) -> Result<(), String> {
        let revision = Revision(self.sender.borrow().status.revision.0.saturating_add(1));
        let load = Arc::clone(&self.load);
        let task = spawn_blocking(move || ((load)(&texts, revision), texts));
        let Ok((loaded, texts)) = task.await else {
            self.record_failure(LoadFailure::ParserPanicked);
            return Err("the limits parser crashed, which is a bug in Sluicegate".to_owned());
        };
        match loaded {
            Ok((config, _)) if self.is_unwanted_removal(&config) => {
                self.record_failure(LoadFailure::Unconvertible(EMPTY_ANSWER.to_owned()));
                Err(EMPTY_ANSWER.to_owned())
            }
            Ok((mut config, warnings)) => {
                config.revision = revision;
                self.publish_config(config, warnings, &texts);
                self.accepted_files = Some(texts);
                Ok(())
            }
            Err(diagnostics) => {
                let message = nack_message(&diagnostics);
                self.record_failure(LoadFailure::Invalid(diagnostics));
                Err(message)
            }
        }
    }

    /// Returns `true` if `config` would remove all limits, and the settings do not allow that.
    fn is_unwanted_removal(&self, config: &Config) -> bool {
        let published = self.sender.borrow();
        let has_limits = published.config.as_ref().is_some_and(|current| current.has_limits());
        has_limits && !config.has_limits() && !self.options.allow_empty
    }

    fn publish_config(&self, config: Config, warnings: Diagnostics, texts: &[TextFile]) {
        let (revision, domains) = (config.revision, config.domains.len());
        tracing::info!(%revision, domains, "limits loaded from the xDS server");
        if !config.has_limits() {
            let (resources, node_id) = (texts.len(), &*self.options.node_id);
            tracing::warn!(
                resources,
                node_id,
                "no limits are loaded, so every check is allowed: the resources from the xDS server have none"
            );
        }
        let now = (self.now)();
        self.sender.send_modify(|published| {
            published.config = Some(Arc::new(config));
            published.status.record_success(now);
            published.status.revision = revision;
            published.status.files = texts.iter().map(|text| Arc::clone(&text.name)).collect();
            published.status.warnings = warnings.into();
        });
    }

    /// Returns the error for a response that cannot be decoded, which is a failed read as in
    /// envoyproxy/ratelimit.
    fn unreadable_response(&self, version: &str, message: &str) -> SourceReadError {
        let path = PathBuf::from(format!("version `{version}` of {}", self.options.server));
        SourceReadError::Unreadable { path, error: io::Error::other(message) }
    }

    fn record_failure(&self, reason: LoadFailure) {
        let failed_load = Arc::new(FailedLoad { at: (self.now)(), reason });
        self.sender.send_modify(|published| {
            published.status.failed_loads += 1;
            published.status.last_error = Some(failed_load);
        });
    }
}

fn decode_resources(response: &DiscoveryResponse) -> Result<Vec<RateLimitConfig>, String> {
    if response.type_url != TYPE_URL {
        return Err(format!("expected a response of type {TYPE_URL}, got `{}`", response.type_url));
    }
    let configs = response.resources.iter().map(|any| {
        if any.type_url != TYPE_URL {
            return Err(format!("expected a resource of type {TYPE_URL}, got `{}`", any.type_url));
        }
        RateLimitConfig::decode(&*any.value)
            .map_err(|error| format!("a resource cannot be decoded: {error}"))
    });
    configs.collect()
}

/// Returns the message of a NACK: the first errors, and the number of the others.
fn nack_message(diagnostics: &Diagnostics) -> String {
    let (findings, omitted) = diagnostics.most_severe(MAX_NACK_DIAGNOSTICS);
    let errors = findings.into_iter().filter(|finding| finding.severity() == Severity::Error);
    let mut lines: Vec<_> = errors
        .map(|error| {
            let help = error.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
            format!("{}: {}{help}", error.location.file, error.message)
        })
        .collect();
    let omitted_errors = SeverityCounts { errors: omitted.errors, ..SeverityCounts::default() };
    if !omitted_errors.is_zero() {
        lines.push(format!("and {omitted_errors}"));
    }
    lines.join("\n")
}
