//! Loads configuration from an xDS server over Envoy's
//! aggregated discovery service (ADS), state of the world.
//!
//! Guarantees:
//! - Each response replaces the whole configuration.
//! - Each response is acknowledged (ACK) or rejected with its errors (NACK).
//! - A rejected response keeps the last good configuration.
//! - The configuration stays in use while there is no connection.
//! - Reconnection is retried forever and sends the last accepted version.
//!
//! Not covered:
//! - Delta xDS, warming and resource expiry, which envoyproxy/ratelimit does not have either.

mod backoff;
mod channel;
pub mod message;
mod text;

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

use super::{Load, Published, Refused, Reload, Source, SourceError, TextFile, Why};
use crate::config::Config;
use crate::config::diagnostic::{Counts, Diagnostics, Severity};
use crate::kernel::units::{Nanos, Revision};
pub use backoff::{Backoff, Bounds};
pub use channel::{Error, Server, Tls, connect};
use message::{RateLimitConfig, TYPE_URL};

/// The default for the largest message, in bytes.
const MESSAGE: usize = 4 << 20;
/// The maximum number of diagnostics in a NACK.
const MOST_TOLD: usize = 20;
/// The capacity of the request queue. Each response causes one request.
const WAITING: usize = 4;

/// The options of the xDS source.
#[derive(Clone, Debug)]
pub struct Options {
    /// The xDS server.
    pub server: Server,
    /// The field `node.id`.
    pub node_id: String,
    /// The field `node.metadata`.
    pub node_metadata: Vec<(String, String)>,
    /// The headers of the stream.
    pub headers: Vec<(String, String)>,
    /// The largest message in bytes. 0 means 4 MiB.
    pub max_message: usize,
    /// The wait before a new connection.
    pub backoff: Bounds,
}

/// An invalid header.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` and its text are no header")]
pub struct BadHeader(String);

/// Starts the source. Returns before the first connection.
///
/// # Errors
/// [`BadHeader`] if a header has an invalid name or value.
pub fn start(
    options: Options,
    load: Arc<Load>,
    now: impl Fn() -> Nanos + Send + Sync + 'static,
) -> Result<Source, BadHeader> {
    let headers = headers(&options.headers)?;
    let (sender, published) = watch::channel(Published::default());
    let reload = Reload::default();
    let stream = Xds {
        node: node(&options),
        headers,
        load,
        sender,
        now: Box::new(now),
        taken: String::new(),
        in_force: None,
        backoff: Backoff::new(options.backoff),
        options,
    };
    let task = tokio::spawn(stream.run(reload.clone()));
    Ok(Source { published, reload, task })
}

fn headers(of: &[(String, String)]) -> Result<MetadataMap, BadHeader> {
    let mut headers = MetadataMap::new();
    for (name, text) in of {
        let header = || {
            let key = MetadataKey::<Ascii>::from_str(&name.to_lowercase()).ok()?;
            Some((key, MetadataValue::try_from(text).ok()?))
        };
        let (key, text) = header().ok_or_else(|| BadHeader(name.clone()))?;
        headers.insert(key, text);
    }
    Ok(headers)
}

fn node(options: &Options) -> Node {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = options.node_metadata.iter().map(|(name, value)| (name.clone(), text(value)));
    let metadata = Struct { fields: fields.collect() };
    let has_any = !metadata.fields.is_empty();
    Node { id: options.node_id.clone(), metadata: has_any.then_some(metadata), ..Node::default() }
}

struct Xds {
    options: Options,
    node: Node,
    headers: MetadataMap,
    load: Arc<Load>,
    sender: watch::Sender<Published>,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
    taken: String,
    in_force: Option<Vec<TextFile>>,
    backoff: Backoff,
}

#[derive(Debug, thiserror::Error)]
enum Over {
    #[error("{0}")]
    Connection(#[from] channel::Error),
    #[error("the stream broke: {}", .0.message())]
    Broke(#[from] tonic::Status),
    #[error("the server closed the stream")]
    Closed,
}

impl Xds {
    async fn run(mut self, reload: Reload) {
        loop {
            let gone = self.sender.clone();
            let over = tokio::select! {
                () = gone.closed() => return,
                over = self.stream() => over,
            };
            let wait = self.backoff.wait();
            let again_in = format!("{:.1}s", wait.as_secs_f64());
            tracing::warn!(server = %self.options.server, error = %over, %again_in, "no stream from the management server; limits stay as they are");
            tokio::select! {
                () = gone.closed() => return,
                () = sleep(wait) => {}
                () = reload.asked() => {}
            }
        }
    }

    async fn stream(&mut self) -> Over {
        match self.talk().await {
            Ok(()) => Over::Closed,
            Err(over) => over,
        }
    }

    async fn talk(&mut self) -> Result<(), Over> {
        let channel = channel::connect(&self.options.server).await?;
        let most = if self.options.max_message == 0 { MESSAGE } else { self.options.max_message };
        let mut client = Client::new(channel).max_decoding_message_size(most);
        let (answers, requests) = mpsc::channel(WAITING);
        // A new stream starts without a nonce, because nonces of former streams are invalid.
        self.answer(&answers, "", None).await?;
        let mut request = Request::new(ReceiverStream::new(requests));
        *request.metadata_mut() = self.headers.clone();
        // No timeout: many servers send the response headers with the first
        // response, which may be late. Keepalive detects a vanished server.
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            let (version, nonce) = (response.version_info.clone(), response.nonce.clone());
            let refused = match self.take(response).await {
                Ok(()) => {
                    self.taken = version;
                    self.backoff.reset();
                    None
                }
                Err(why) => {
                    tracing::error!(
                        version,
                        in_force = self.taken,
                        "limits of the management server are refused: {why}"
                    );
                    Some(why)
                }
            };
            self.answer(&answers, &nonce, refused).await?;
        }
        Ok(())
    }

    async fn answer(
        &self,
        answers: &mpsc::Sender<DiscoveryRequest>,
        nonce: &str,
        refused: Option<String>,
    ) -> Result<(), Over> {
        let request = DiscoveryRequest {
            version_info: self.taken.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: refused.map(|message| Status { message, ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        answers.send(request).await.map_err(|_| Over::Closed)
    }

    /// Applies a response as the whole configuration.
    ///
    /// On errors, returns the message for the NACK.
    async fn take(&mut self, response: DiscoveryResponse) -> Result<(), String> {
        let configs = decode(&response).inspect_err(|why| {
            self.refuse(Why::Source(self.unreadable(&response.version_info, why)));
        })?;
        let texts = configs.iter().map(|config| {
            let text = text::of(config).map_err(|why| format!("{}: {why}", config.name))?;
            Ok(TextFile { name: Arc::from(config.name.as_str()), bytes: text.into_bytes() })
        });
        let texts: Result<Vec<_>, String> = texts.collect();
        let texts = match texts {
            Ok(texts) => texts,
            Err(why) => {
                self.refuse(Why::Words(why.clone()));
                return Err(why);
            }
        };
        if self.in_force.as_ref() == Some(&texts) {
            let at = (self.now)();
            self.sender.send_modify(|published| published.status.accept(at));
            return Ok(());
        }
        self.load(texts).await
    }

    async fn load(&mut self, texts: Vec<TextFile>) -> Result<(), String> {
        let revision = Revision(self.sender.borrow().status.revision.0.saturating_add(1));
        let load = Arc::clone(&self.load);
        let loaded = spawn_blocking(move || ((load)(&texts, revision), texts)).await;
        let Ok((loaded, texts)) = loaded else {
            self.refuse(Why::Broke);
            return Err("the loader broke, which is a defect of this service".to_owned());
        };
        match loaded {
            Ok((mut config, warnings)) => {
                config.revision = revision;
                self.accept(config, warnings, &texts);
                self.in_force = Some(texts);
                Ok(())
            }
            Err(diagnostics) => {
                let told = told(&diagnostics);
                self.refuse(Why::Diagnostics(diagnostics));
                Err(told)
            }
        }
    }

    fn accept(&self, config: Config, warnings: Diagnostics, texts: &[TextFile]) {
        let (revision, domains) = (config.revision, config.domains.len());
        tracing::info!(%revision, domains, "limits of the management server are loaded");
        let at = (self.now)();
        self.sender.send_modify(|published| {
            published.config = Some(Arc::new(config));
            published.status.accept(at);
            published.status.revision = revision;
            published.status.files = texts.iter().map(|text| Arc::clone(&text.name)).collect();
            published.status.warnings = warnings.into();
        });
    }

    /// Returns the error for a response without readable limits. Not a
    /// configuration error, because envoyproxy/ratelimit does not count it as one.
    fn unreadable(&self, version: &str, why: &str) -> SourceError {
        let path = PathBuf::from(format!("version `{version}` of {}", self.options.server));
        SourceError::Unreadable { path, error: io::Error::other(why) }
    }

    fn refuse(&self, why: Why) {
        let refused = Arc::new(Refused { at: (self.now)(), why });
        self.sender.send_modify(|published| {
            published.status.refused += 1;
            published.status.last_error = Some(refused);
        });
    }
}

fn decode(response: &DiscoveryResponse) -> Result<Vec<RateLimitConfig>, String> {
    if response.type_url != TYPE_URL {
        return Err(format!(
            "{TYPE_URL} was asked for, and the response is of `{}`",
            response.type_url
        ));
    }
    let decoded = response.resources.iter().map(|any| {
        if any.type_url != TYPE_URL {
            return Err(format!(
                "{TYPE_URL} was asked for, and a resource is of `{}`",
                any.type_url
            ));
        }
        RateLimitConfig::decode(&*any.value)
            .map_err(|error| format!("a resource cannot be read: {error}"))
    });
    decoded.collect()
}

/// Returns the message of a NACK, for an operator of the xDS server.
fn told(diagnostics: &Diagnostics) -> String {
    let (worst, more) = diagnostics.worst(MOST_TOLD);
    let wrong = worst.into_iter().filter(|one| one.severity() == Severity::Error);
    let mut lines: Vec<_> = wrong
        .map(|one| {
            let help = one.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
            format!("{}: {}{help}", one.place.file, one.message)
        })
        .collect();
    let errors = Counts { errors: more.errors, ..Counts::default() };
    if !errors.is_none() {
        lines.push(format!("and {errors}"));
    }
    lines.join("\n")
}
