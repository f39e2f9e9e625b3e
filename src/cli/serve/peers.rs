//! Serves the peer port, over which replicas that share a store forward releases to each other.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::drain::{self, DrainPhase};
use super::tasks::{ServeError, ServiceTasks};
use crate::config::settings::Settings;
use crate::edge::grpc::peer::{self, BatchSigner, PeerTrust, ReleaseForwarder};
use crate::edge::grpc::tls;
use crate::engine::Engine;
use crate::engine::fleet::forwarding::ForwardedRelease;

/// The minimum length of the secret in `fleet.peers.secret_file`, as for the setting
/// `fleet.peers.secret`.
const MIN_SECRET_LEN: usize = 16;

/// Returns the port to which other replicas forward releases. `None` if the store is not shared.
pub(super) fn peer_port(settings: &Settings) -> Option<u16> {
    settings.listen.peer_port.filter(|_| settings.store.url.is_shared())
}

/// Lets the engine forward releases to other replicas if the
/// store is shared. Returns the queue of these releases.
pub(super) fn with_forwarding(
    settings: &Settings,
    engine: Engine,
) -> (Engine, Option<mpsc::Receiver<ForwardedRelease>>) {
    if peer_port(settings).is_some() { engine.with_forwarding() } else { (engine, None) }
}

/// Loads the credentials for authenticating other replicas.
///
/// # Errors
/// The problem with the files of the secret or the certificates.
pub(super) fn load_trust(settings: &Settings) -> Result<Arc<PeerTrust>, String> {
    let plain =
        settings.fleet.peers.secret.as_ref().map(|secret| BatchSigner::new(secret.reveal()));
    let file = settings.fleet.peers.secret_file.as_deref().map(read_secret).transpose()?;
    let trust = PeerTrust {
        signer: plain.or(file.as_deref().map(BatchSigner::new)),
        ..PeerTrust::default()
    };
    let pair =
        settings.fleet.peers.tls.cert_file.as_ref().zip(settings.fleet.peers.tls.key_file.as_ref());
    let Some((certificate, key)) = pair else { return Ok(Arc::new(trust)) };
    let files = tls::TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: settings.fleet.peers.tls.ca_file.clone(),
        client_name: settings
            .fleet
            .peers
            .tls
            .server_name
            .as_ref()
            .map(|name| name.as_str().to_owned()),
    };
    trust.with_certificates(files).map(Arc::new).map_err(|error| error.to_string())
}

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The number of polls after which the previous secret becomes invalid: ten minutes. Kubernetes
/// updates a mounted secret within two minutes.
const OVERLAP_POLLS: u32 = 600;

/// The state of polling `fleet.peers.secret_file`, the secret that authenticates replicas to each
/// other.
struct SecretFile {
    trust: Arc<PeerTrust>,
    /// The error of the last attempt to read the file. Empty after a success.
    last_error: String,
    /// The number of polls since the last change of the secret.
    polls: u32,
}

impl SecretFile {
    async fn poll_file(mut self, path: PathBuf) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let polled_path = path.clone();
            let read = spawn_blocking(move || read_secret(&polled_path)).await;
            self.apply_read(read.unwrap_or_else(|lost| Err(lost.to_string())));
        }
    }

    fn apply_read(&mut self, read: Result<String, String>) {
        let Some(signer) = &self.trust.signer else { return };
        self.polls = self.polls.saturating_add(1);
        if self.polls == OVERLAP_POLLS {
            signer.drop_previous();
        }
        let error = match read {
            Ok(secret) => {
                if signer.rotate(&secret) {
                    self.polls = 0;
                    tracing::info!(
                        "fleet.peers.secret_file reloaded, accepting the previous secret for 10 minutes"
                    );
                }
                String::new()
            }
            Err(wrong) => wrong,
        };
        // Log a repeated error once, and not at every poll.
        if !error.is_empty() && error != self.last_error {
            tracing::error!(error = %error, "failed to reload fleet.peers.secret_file, keeping the previous secret");
        }
        self.last_error = error;
    }
}

fn read_secret(path: &Path) -> Result<String, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let text = text.trim_end_matches(['\n', '\r']);
    let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() < MIN_SECRET_LEN || !is_printable {
        return Err(format!(
            "{name}: the secret must be one line of at least {MIN_SECRET_LEN} printable ASCII \
             characters without spaces"
        ));
    }
    Ok(text.to_owned())
}

pub(super) struct PeerContext<'s> {
    pub(super) settings: &'s Settings,
    pub(super) engine: &'s Arc<Engine>,
    pub(super) trust: Arc<PeerTrust>,
    pub(super) phase: watch::Receiver<DrainPhase>,
}

impl PeerContext<'_> {
    /// Accepts forwarded releases from other replicas on `listener`, and sends queued releases to
    /// their owners.
    pub(super) fn start(
        self,
        listener: TcpListener,
        releases: mpsc::Receiver<ForwardedRelease>,
        parts: &mut ServiceTasks,
    ) -> std::io::Result<()> {
        let Self { settings, engine, trust, phase: finishing } = self;
        let port = listener.local_addr()?.port();
        let address = settings.fleet.peers.address.unwrap_or(settings.listen.peer_host);
        if let Some(membership) = engine.membership() {
            membership.publish_address(SocketAddr::new(address, port));
        }
        let networks = settings.fleet.peers.networks.clone();
        if let Some(path) = settings.fleet.peers.secret_file.clone() {
            let secret = SecretFile {
                trust: Arc::clone(&trust),
                last_error: String::new(),
                polls: OVERLAP_POLLS,
            };
            parts.spawn_background(secret.poll_file(path));
        }
        let forwarder =
            ReleaseForwarder::new(Arc::clone(engine), releases, Arc::clone(&trust), networks);
        parts.spawn_background(forwarder.run());
        let served = peer::serve(
            listener,
            Arc::clone(engine),
            trust,
            drain::wait_until_finishing(finishing),
        );
        parts.spawn_listener(async move {
            served.await.map_err(|error| ServeError::TaskEnded(format!("peer server: {error}")))
        });
        Ok(())
    }
}
