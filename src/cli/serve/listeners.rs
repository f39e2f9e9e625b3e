//! Binds all sockets before any task starts.
//!
//! Guarantees:
//! - Either all sockets are bound, or none stays open. The error lists all failures.
//! - While the first limits are awaited from xDS, at most HTTP is bound.
//! - Port 0 takes a free port.
//! - An abandoned Unix socket is replaced.
//! - A Unix socket's file is removed before its listener closes, unless another process owns it.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UdpSocket, UnixListener, UnixStream};

use crate::config::settings::Settings;

/// The maximum number of connections that are not yet accepted.
const BACKLOG: u32 = 1024;

pub(super) struct Listeners {
    pub(super) grpc: Grpc,
    pub(super) http: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) admin: TcpListener,
    pub(super) syslog: Option<UdpSocket>,
    pub(super) peers: Option<TcpListener>,
}

/// The sockets that are bound at startup.
pub(super) enum Bound {
    All(Box<Listeners>),
    /// At most HTTP, for probes. A process without limits must not listen on other ports.
    Waits(Option<TcpListener>),
}

impl Bound {
    /// Binds the sockets that must exist before the limits are loaded.
    ///
    /// # Errors
    /// One message for each socket.
    pub(super) async fn first(settings: &Settings) -> Result<Self, Vec<String>> {
        if settings.xds_server.is_some() && !settings.start_without_config {
            // With `reuse_port`, the kernel would send this listener
            // another process' checks, which it cannot answer.
            let http = (!settings.reuse_port).then(|| http(settings)).transpose();
            return http.map(Self::Waits).map_err(|why| vec![why]);
        }
        Ok(Self::All(Box::new(Listeners::bind(settings, http(settings)).await?)))
    }

    /// Binds the remaining sockets.
    ///
    /// # Errors
    /// As [`Bound::first`].
    pub(super) async fn all(self, settings: &Settings) -> Result<Listeners, Vec<String>> {
        match self {
            Self::All(listeners) => Ok(*listeners),
            Self::Waits(bound) => {
                Listeners::bind(settings, bound.map_or_else(|| http(settings), Ok)).await
            }
        }
    }
}

/// The requested receive buffer for datagrams, in
/// bytes. The kernel limits it to `net.core.rmem_max`.
const DATAGRAMS_KEPT: usize = 4 << 20;
pub(super) enum Grpc {
    Tcp(TcpListener),
    /// A Unix socket. The file is first, so that it is dropped first.
    Unix(SocketFile, UnixListener),
}

/// Removes the socket's file when dropped, which must be before the listener
/// closes. After that, the file may belong to the next process that takes the path.
pub(super) struct SocketFile {
    path: PathBuf,
    /// The identity of the file. `None` if it could not be read.
    inode: Option<Inode>,
}

/// Device and inode number. Unique as long as the listener is open.
type Inode = (u64, u64);

fn inode(path: &Path) -> Option<Inode> {
    let there = std::fs::symlink_metadata(path).ok()?;
    Some((there.dev(), there.ino()))
}

impl SocketFile {
    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: inode(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.inode.is_some() && self.inode == inode(&self.path) {
            // The file may already be removed.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

impl Listeners {
    /// Binds all sockets except HTTP.
    async fn bind(
        settings: &Settings,
        http: Result<TcpListener, String>,
    ) -> Result<Self, Vec<String>> {
        let Settings { host, admin_host, reuse_port: reuse, .. } = *settings;
        let at =
            |name, own: Option<IpAddr>, port| Ask { name, host: own.unwrap_or(host), port, reuse };
        let grpc = match &settings.grpc_socket {
            Some(path) => unix(path).await,
            None => at("grpc", settings.grpc_host, settings.grpc_port).bind().map(Grpc::Tcp),
        };
        let metrics = at("metrics", settings.metrics_host, settings.metrics_port);
        let metrics = settings.metrics.then(|| metrics.bind()).transpose();
        let admin = at("admin", Some(admin_host), settings.admin_port).bind();
        let syslog = match settings.syslog_port {
            Some(port) => datagrams(settings.syslog_host, port).await.map(Some),
            None => Ok(None),
        };
        let peers = super::peers::port(settings)
            .map(|port| at("peer", Some(settings.peer_host), port).bind());
        match (grpc, http, metrics, admin, syslog, peers.transpose()) {
            (Ok(grpc), Ok(http), Ok(metrics), Ok(admin), Ok(syslog), Ok(peers)) => {
                Ok(Self { grpc, http, metrics, admin, syslog, peers })
            }
            (grpc, http, metrics, admin, syslog, peers) => {
                let all = [grpc.err(), http.err(), metrics.err(), admin.err(), syslog.err()];
                let all = all.into_iter().chain([peers.err()]);
                Err(all.flatten().collect())
            }
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let line = |name: &str, listener: &TcpListener| {
            let address = listener.local_addr().ok()?;
            Some(format!("{name} listening on {address}"))
        };
        let grpc = match &self.grpc {
            Grpc::Tcp(listener) => line("grpc", listener),
            Grpc::Unix(file, _) => Some(format!("grpc listening on {}", file.path.display())),
        };
        let metrics = self.metrics.as_ref().and_then(|listener| line("metrics", listener));
        let (http, admin) = (line("http", &self.http), line("admin", &self.admin));
        let syslog = self.syslog.as_ref().and_then(|socket| socket.local_addr().ok());
        let syslog = syslog.map(|address| format!("syslog listening on {address}"));
        let peers = self.peers.as_ref().and_then(|listener| line("peer", listener));
        [grpc, http, metrics, admin, syslog, peers].into_iter().flatten().collect()
    }
}

struct Ask {
    name: &'static str,
    host: IpAddr,
    port: u16,
    reuse: bool,
}

impl Ask {
    fn bind(self) -> Result<TcpListener, String> {
        let bound = self.listen();
        bound.map_err(|error| cannot(self.name, SocketAddr::new(self.host, self.port), &error))
    }

    fn listen(&self) -> std::io::Result<TcpListener> {
        let socket = if self.host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Allows a restart while connections of the previous process are still closing.
        socket.set_reuseaddr(true)?;
        if self.reuse {
            socket.set_reuseport(true)?;
        }
        socket.bind(SocketAddr::new(self.host, self.port))?;
        socket.listen(BACKLOG)
    }
}

fn http(settings: &Settings) -> Result<TcpListener, String> {
    let Settings { host, http_host, http_port: port, reuse_port: reuse, .. } = *settings;
    Ask { name: "http", host: http_host.unwrap_or(host), port, reuse }.bind()
}

async fn unix(path: &Path) -> Result<Grpc, String> {
    let failed = |error: std::io::Error| {
        let path = path.display();
        format!("grpc cannot listen on {path}: {error}; choose another with --grpc-socket")
    };
    if let Ok(there) = std::fs::symlink_metadata(path) {
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        // A killed process left the socket. Any other file belongs to another program.
        let is_left =
            there.file_type().is_socket() && UnixStream::connect(path).await.is_err_and(refused);
        if !is_left {
            return Err(failed(std::io::ErrorKind::AddrInUse.into()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    Ok(Grpc::Unix(SocketFile::at(path), listener))
}

async fn datagrams(host: IpAddr, port: u16) -> Result<UdpSocket, String> {
    let bound = UdpSocket::bind(SocketAddr::new(host, port)).await.and_then(|socket| {
        socket2::SockRef::from(&socket).set_recv_buffer_size(DATAGRAMS_KEPT)?;
        Ok(socket)
    });
    bound.map_err(|error| cannot("syslog", SocketAddr::new(host, port), &error))
}

fn cannot(name: &str, address: SocketAddr, error: &std::io::Error) -> String {
    let (host, port) = (address.ip(), address.port());
    let host_setting = match name {
        "admin" => "admin-host",
        "syslog" => "syslog-host",
        "peer" => "peer-host",
        _ => "host",
    };
    format!(
        "{name} cannot listen on {host}:{port}: {error}; \
         choose another with --{name}-port (0 takes a free one) or --{host_setting}"
    )
}
