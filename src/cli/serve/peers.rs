//! Connects replicas that share a store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::drain::{self, Phase};
use super::{Failure, Parts};
use crate::config::settings::{Backend, Settings};
use crate::edge::grpc::peer::{self, Courier, Seal, Trust};
use crate::edge::grpc::tls;
use crate::engine::Engine;
use crate::engine::peers::Post;

/// The minimum length of a secret, as for `peer_secret`.
const SHORTEST: usize = 16;

/// Returns the port for other replicas. `None` if the store is not shared.
pub(super) fn port(settings: &Settings) -> Option<u16> {
    settings.peer_port.filter(|_| settings.backend != Backend::Memory)
}

/// Lets the engine forward releases to other replicas if the
/// store is shared. Returns the queue of these releases.
pub(super) fn joined(
    settings: &Settings,
    engine: Engine,
) -> (Engine, Option<mpsc::Receiver<Post>>) {
    if port(settings).is_some() { engine.with_peers() } else { (engine, None) }
}

/// Loads the credentials for authenticating other replicas.
///
/// # Errors
/// The problem with the files.
pub(super) fn trust_of(settings: &Settings) -> Result<Arc<Trust>, String> {
    let plain = settings.peer_secret.as_ref().map(|secret| Seal::new(secret.reveal()));
    let file = settings.peer_secret_file.as_deref().map(secret_in).transpose()?;
    let trust = Trust { seal: plain.or(file.as_deref().map(Seal::new)), ..Trust::default() };
    let pair = settings.peer_tls_cert_file.as_ref().zip(settings.peer_tls_key_file.as_ref());
    let Some((certificate, key)) = pair else { return Ok(Arc::new(trust)) };
    let files = tls::Files {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: settings.peer_tls_ca_file.clone(),
        client_name: settings.peer_tls_name.as_ref().map(|name| name.as_str().to_owned()),
    };
    trust.with_certificates(files).map(Arc::new).map_err(|error| error.to_string())
}

const LOOK: Duration = Duration::from_secs(1);
/// The polls after which the previous secret becomes invalid:
/// ten minutes. Kubernetes updates a mounted secret within two.
const OVERLAP: u32 = 600;

/// The secret of the peers, and the state of polling its file.
struct Secret {
    trust: Arc<Trust>,
    /// The last error of the file, or empty.
    wrong: String,
    /// The polls since the last change of the secret.
    looks: u32,
}

impl Secret {
    async fn keep(mut self, path: PathBuf) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let looked = path.clone();
            let read = spawn_blocking(move || secret_in(&looked)).await;
            self.learn(read.unwrap_or_else(|lost| Err(lost.to_string())));
        }
    }

    fn learn(&mut self, read: Result<String, String>) {
        let Some(seal) = &self.trust.seal else { return };
        self.looks = self.looks.saturating_add(1);
        if self.looks == OVERLAP {
            seal.settle();
        }
        let wrong = match read {
            Ok(secret) => {
                if seal.renew(&secret) {
                    self.looks = 0;
                    tracing::info!(
                        "the peers' secret was read anew; the one before is good for ten more minutes"
                    );
                }
                String::new()
            }
            Err(wrong) => wrong,
        };
        // Log an error once, and not every second.
        if !wrong.is_empty() && wrong != self.wrong {
            tracing::error!(error = %wrong, "the peers' secret cannot be read anew; the last good one stays");
        }
        self.wrong = wrong;
    }
}

fn secret_in(path: &Path) -> Result<String, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let text = text.trim_end_matches(['\n', '\r']);
    let sound = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() < SHORTEST || !sound {
        return Err(format!(
            "{name}: a secret is one line of at least {SHORTEST} printable ASCII characters without blanks"
        ));
    }
    Ok(text.to_owned())
}

pub(super) struct Peering<'s> {
    pub(super) settings: &'s Settings,
    pub(super) engine: &'s Arc<Engine>,
    pub(super) trust: Arc<Trust>,
    pub(super) finishing: watch::Receiver<Phase>,
}

impl Peering<'_> {
    /// Serves other replicas on `listener`, and sends them the releases in `posted`.
    pub(super) fn start(
        self,
        listener: TcpListener,
        posted: mpsc::Receiver<Post>,
        parts: &mut Parts,
    ) -> std::io::Result<()> {
        let Self { settings, engine, trust, finishing } = self;
        let port = listener.local_addr()?.port();
        let address = settings.peer_address.unwrap_or(settings.peer_host);
        if let Some(membership) = engine.membership() {
            membership.call_at(SocketAddr::new(address, port));
        }
        let networks = settings.peer_networks.clone();
        if let Some(path) = settings.peer_secret_file.clone() {
            let secret = Secret { trust: Arc::clone(&trust), wrong: String::new(), looks: OVERLAP };
            parts.lasting(secret.keep(path));
        }
        let courier = Courier::new(Arc::clone(engine), posted, Arc::clone(&trust), networks);
        parts.lasting(courier.run());
        let served = peer::serve(listener, Arc::clone(engine), trust, drain::finishing(finishing));
        parts.finishing(async move {
            served.await.map_err(|error| Failure::Part(format!("peer server: {error}")))
        });
        Ok(())
    }
}
