//! The sockets, bound before anything else is started.
//!
//! Guarantees: either every listener is bound or none stays; what could not be bound is told in
//! words, all at once; while the first limits of a management server are waited for, HTTP alone is
//! bound; port 0 takes a free port; a Unix socket that nobody listens on any more is replaced, and
//! goes before its listener does, unless another process has the path by then.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UdpSocket, UnixListener, UnixStream};

use crate::config::settings::Settings;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The bound sockets.
pub(super) struct Listeners {
    pub(super) grpc: Grpc,
    pub(super) http: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) admin: TcpListener,
    pub(super) syslog: Option<UdpSocket>,
    pub(super) peers: Option<TcpListener>,
}

/// What is bound at first.
pub(super) enum Bound {
    /// Everything.
    All(Box<Listeners>),
    /// HTTP at most, to say that the process lives: who may not be asked yet must not be found listening.
    Waits(Option<TcpListener>),
}

impl Bound {
    /// Binds what is to be found before the limits are there.
    ///
    /// # Errors
    /// A sentence for each that cannot be bound.
    pub(super) async fn first(settings: &Settings) -> Result<Self, Vec<String>> {
        if settings.xds_server.is_some() && !settings.start_without_config {
            // Beside another process at the same port it would be sent that one's questions, and answer none.
            let http = (!settings.reuse_port).then(|| http(settings)).transpose();
            return http.map(Self::Waits).map_err(|why| vec![why]);
        }
        Ok(Self::All(Box::new(Listeners::bind(settings, http(settings)).await?)))
    }

    /// Binds the rest.
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

/// What the kernel is asked to keep of datagrams that come faster than they are read; it gives what
/// its `net.core.rmem_max` allows.
const DATAGRAMS_KEPT: usize = 4 << 20;
/// Where gRPC is spoken.
pub(super) enum Grpc {
    /// At a port.
    Tcp(TcpListener),
    /// At a socket in the file system, whose file goes first.
    Unix(SocketFile, UnixListener),
}

/// A socket's file, which goes when this does: before its listener, for once nobody listens the next process takes the
/// path, and the file there is its own.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Which file it is; none where nobody could say.
    inode: Option<Inode>,
}

/// Device and number: as long as the listener is open no other file has them.
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
            // Whoever took it away already is welcome.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

impl Listeners {
    /// Binds all of them, `http` beside them.
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

    /// A line for each: its name and where it listens.
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

/// A port to listen on.
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
        // As after a restart: connections of the process before may still be ending.
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
        // Left behind by a process that was killed; anything else is somebody's.
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
