//! The connection to Sluicegate: opens a stream, and opens it again after it ends.
//!
//! Guarantees:
//! - A call without a connection fails at once, or waits for the end of the first attempt.
//! - A lost connection is noticed within [`KEEPALIVE`] twice, also if the peer is frozen.
//! - The wait between attempts grows from [`MIN_BACKOFF`] to [`MAX_BACKOFF`].

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use sluicegate_concurrency::limits::reporter::SharePace;
use sluicegate_lease::clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::call::CallFailure;
use crate::kernel::units::Nanos;
use crate::limits_version::LimitsVersion;
use crate::rule_table::RuleTable;
use crate::session::{QUEUE_CAPACITY, Session};
use crate::settings::{ProxyIdentity, ServiceSettings, TlsSettings};
use crate::wire::api::leases_client::LeasesClient;
use crate::wire::api::{LeaseMessage, LeaseWelcome, ProxyHello, lease_message, proxy_message};
use crate::wire::proxy_rule::row_hashes;
use crate::wire::{PROTOCOL, nanos};

/// The interval of HTTP/2 pings, and the longest wait for their replies.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// The longest time to connect, and then to the first reply.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Incarnations are below 2^53.
const INCARNATION_BITS: u32 = 53;

/// Writes a line to the proxy's log.
pub type LogLine = fn(&str);

/// The connection to Sluicegate.
#[derive(Debug)]
pub(crate) struct Connection {
    settings: ServiceSettings,
    identity: ProxyIdentity,
    log: LogLine,
    clock: Arc<Clock>,
    incarnation: u64,
    session: RwLock<Option<Arc<Session>>>,
    sessions: AtomicU64,
    /// The number of the last change of all limits.
    limits: AtomicU64,
    changed_at: AtomicU64,
    /// The rules that changes of rows concern.
    rules: Arc<RuleTable>,
    fleet_info: RwLock<FleetInfo>,
    /// `true` after the first attempt to connect ended.
    has_attempted: watch::Sender<bool>,
}

/// The fleet, as the last welcome describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetInfo {
    /// The timing of reports about concurrency limits.
    pub(crate) pace: SharePace,
    /// An estimate of the number of replicas and proxies.
    pub(crate) replicas: NonZeroU32,
}

impl Default for FleetInfo {
    fn default() -> Self {
        Self { pace: SharePace::default(), replicas: NonZeroU32::MIN }
    }
}

impl FleetInfo {
    fn from_welcome(welcome: &LeaseWelcome) -> Self {
        let (heartbeat, share_duration) =
            (nanos(welcome.heartbeat_us), nanos(welcome.share_expiry_us));
        let is_sound = Nanos(0) < heartbeat && Nanos(0) < share_duration;
        let pace = SharePace { heartbeat, share_duration };
        Self {
            pace: if is_sound { pace } else { SharePace::default() },
            replicas: NonZeroU32::new(welcome.replicas).unwrap_or(NonZeroU32::MIN),
        }
    }
}

impl Connection {
    pub(crate) fn new(
        settings: ServiceSettings,
        identity: ProxyIdentity,
        log: LogLine,
        clock: Arc<Clock>,
        rules: Arc<RuleTable>,
    ) -> Self {
        let random = RandomState::new().hash_one(0_u8) >> (u64::BITS - INCARNATION_BITS);
        Self {
            settings,
            identity,
            log,
            clock,
            incarnation: random.max(1),
            session: RwLock::default(),
            sessions: AtomicU64::new(0),
            limits: AtomicU64::new(0),
            changed_at: AtomicU64::new(0),
            rules,
            fleet_info: RwLock::default(),
            has_attempted: watch::Sender::new(false),
        }
    }

    /// Returns the version of the last change of all limits, as far as this proxy knows.
    pub(crate) fn limits(&self) -> LimitsVersion {
        LimitsVersion { session: self.sessions.load(Relaxed), limits: self.limits.load(Relaxed) }
    }

    /// Returns the rules that this proxy knows.
    pub(crate) const fn rules(&self) -> &Arc<RuleTable> {
        &self.rules
    }

    /// Returns the instant of the last change of all limits, on the steady clock.
    pub(crate) fn limits_changed_at(&self) -> Nanos {
        Nanos(self.changed_at.load(Relaxed))
    }

    /// Returns the number of this start of the process.
    pub(crate) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn fleet_info(&self) -> FleetInfo {
        *self.fleet_info.read()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session.read().is_some()
    }

    /// Sends a request and waits for the reply, at most for `wait`.
    pub(crate) async fn call(
        &self,
        message: proxy_message::Message,
        wait: Duration,
    ) -> Result<lease_message::Message, CallFailure> {
        let wait = self.wait_for_first_attempt(wait).await;
        let now = self.clock.steady();
        let session = self.session_for_call(now).ok_or(CallFailure::NotConnected)?;
        session.call(message, now, wait).await
    }

    /// Waits for the first attempt to connect, which takes a few milliseconds after the start of
    /// the process. Returns the rest of `wait`.
    async fn wait_for_first_attempt(&self, wait: Duration) -> Duration {
        if *self.has_attempted.borrow() {
            return wait;
        }
        let (began, mut attempts) = (Instant::now(), self.has_attempted.subscribe());
        // The sender outlives this call.
        let _ended = timeout(wait, attempts.wait_for(|has_attempted| *has_attempted)).await;
        wait.saturating_sub(began.elapsed())
    }

    /// Sends a message without a reply. Returns `false` if it was not sent.
    pub(crate) fn send(&self, message: proxy_message::Message) -> bool {
        self.session.read().as_ref().is_some_and(|session| session.send(message))
    }

    fn session_for_call(&self, now: Nanos) -> Option<Arc<Session>> {
        let session = self.session.read();
        session.as_ref().filter(|session| session.accepts_calls(now)).map(Arc::clone)
    }

    /// Keeps a stream open, forever.
    pub(crate) async fn run(&self) {
        let (mut backoff, mut last_reason) = (MIN_BACKOFF, String::new());
        loop {
            let (was_open, reason) = self.run_session().await;
            self.has_attempted.send_replace(true);
            if was_open {
                backoff = MIN_BACKOFF;
            }
            if was_open || reason != last_reason {
                let address = &self.settings.address;
                (self.log)(&format!(
                    "no connection to Sluicegate at {address}: {reason}; it retries"
                ));
                last_reason = reason;
            }
            sleep(backoff).await;
            backoff = MAX_BACKOFF.min(backoff.saturating_mul(2));
        }
    }

    /// Opens a stream and reads it to its end. Returns `true` if Sluicegate welcomed the proxy, and
    /// the reason of the end.
    async fn run_session(&self) -> (bool, String) {
        let (outgoing, queue) = mpsc::channel(QUEUE_CAPACITY);
        let session = Arc::new(Session::new(outgoing));
        session.send(proxy_message::Message::Hello(self.hello()));
        let opened = timeout(CONNECT_TIMEOUT.saturating_mul(2), self.open(queue)).await;
        let (mut replies, welcome) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(reason)) => return (false, reason),
            Err(_) => return (false, "no reply to the first message".to_owned()),
        };
        self.begin(&welcome, &session);
        let reason = self.read(&session, &mut replies).await;
        *self.session.write() = None;
        session.close();
        (true, reason)
    }

    async fn open(
        &self,
        queue: mpsc::Receiver<crate::wire::api::ProxyMessage>,
    ) -> Result<(Streaming<LeaseMessage>, LeaseWelcome), String> {
        let channel = self.connect().await?;
        let opened = LeasesClient::new(channel).exchange(ReceiverStream::new(queue)).await;
        let mut replies = opened.map_err(|status| describe(&status))?.into_inner();
        match replies.message().await.map_err(|status| describe(&status))? {
            Some(LeaseMessage {
                message: Some(lease_message::Message::Welcome(welcome)), ..
            }) => Ok((replies, welcome)),
            _ => Err("the first reply is no welcome".to_owned()),
        }
    }

    async fn connect(&self) -> Result<Channel, String> {
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", self.settings.address);
        let endpoint = Endpoint::from_shared(url).map_err(|error| error.to_string())?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        let endpoint = match &self.settings.tls {
            None => endpoint,
            Some(tls) => {
                let config = tls_config(tls)?;
                endpoint.tls_config(config).map_err(|error| error.to_string())?
            }
        };
        endpoint.connect().await.map_err(|error| error_chain(&error))
    }

    /// Puts a session into use. All known rules belong to an earlier session, so they are fetched
    /// again.
    fn begin(&self, welcome: &LeaseWelcome, session: &Arc<Session>) {
        self.sessions.fetch_add(1, Relaxed);
        *self.fleet_info.write() = FleetInfo::from_welcome(welcome);
        self.change_limits(welcome.limits);
        *self.session.write() = Some(Arc::clone(session));
        self.has_attempted.send_replace(true);
        let (address, replica) = (&self.settings.address, &welcome.replica);
        (self.log)(&format!(
            "connected to Sluicegate {} at {address}, replica {replica}",
            welcome.version
        ));
    }

    fn change_limits(&self, limits: u64) {
        self.limits.store(limits, Relaxed);
        self.changed_at.store(self.clock.steady().0, Relaxed);
    }

    async fn read(&self, session: &Session, replies: &mut Streaming<LeaseMessage>) -> String {
        loop {
            match replies.message().await {
                Ok(Some(LeaseMessage {
                    message: Some(lease_message::Message::LimitsChanged(changed)),
                    ..
                })) => self.change_limits(changed.limits),
                Ok(Some(LeaseMessage {
                    message: Some(lease_message::Message::RowsChanged(changed)),
                    ..
                })) => self.rules.change_rows(&row_hashes(&changed.rows), self.clock.steady()),
                Ok(Some(reply)) => session.receive(reply, self.clock.steady()),
                Ok(None) => return "the stream ended".to_owned(),
                Err(status) => return describe(&status),
            }
        }
    }

    fn hello(&self) -> ProxyHello {
        let ProxyIdentity { name, software } = self.identity.clone();
        ProxyHello { protocol: PROTOCOL, incarnation: self.incarnation, name, software }
    }
}

/// Reads the files of a TLS configuration.
fn tls_config(tls: &TlsSettings) -> Result<ClientTlsConfig, String> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca_file {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

fn describe(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Returns the error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
