//! Binds all sockets before any task starts.
//!
//! Guarantees:
//! - Either all sockets are bound, or none stays open. The error lists all failures.
//! - While the process waits for the first limits from xDS or for the store, at most the HTTP port
//!   is bound.
//! - Port 0 selects a free port.
//! - `::` covers IPv4, too, and `0.0.0.0` is used on a machine without IPv6.
//! - The Unix socket file of a killed process is replaced.
//! - A Unix socket's file is removed before its listener closes, unless another process owns it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UdpSocket, UnixListener, UnixStream};

use super::store::waits_for_answer;
use crate::config::settings::Settings;

/// The maximum number of connections that are not yet accepted.
const BACKLOG: u32 = 1024;

pub(super) struct Listeners {
    pub(super) grpc: GrpcSocket,
    pub(super) http: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) admin: TcpListener,
    pub(super) syslog: Option<UdpSocket>,
    pub(super) peers: Option<TcpListener>,
}

/// The sockets that are bound at startup.
pub(super) enum StartupListeners {
    All(Box<Listeners>),
    /// At most the HTTP port, for health probes. A process that cannot decide checks must not listen
    /// on other ports.
    HttpOnly(Option<TcpListener>),
}

impl StartupListeners {
    /// Binds the sockets that must exist before the limits are loaded.
    ///
    /// # Errors
    /// One message for each socket that cannot be bound.
    pub(super) async fn bind_startup(settings: &Settings) -> Result<Self, Vec<String>> {
        let waits_for_tables = !settings.tables.0.is_empty();
        if waits_for_limits(settings) || waits_for_tables || waits_for_answer(settings) {
            // With `compat.listen.like_ratelimit`, the kernel would send this listener checks meant for
            // another process. This process cannot decide them yet.
            let http =
                (!settings.compat.listen.like_ratelimit).then(|| bind_http(settings)).transpose();
            return http.map(Self::HttpOnly).map_err(|why| vec![why]);
        }
        Ok(Self::All(Box::new(Listeners::bind(settings, bind_http(settings)).await?)))
    }

    /// Binds the sockets that [`StartupListeners::bind_startup`] did not bind.
    ///
    /// # Errors
    /// As [`StartupListeners::bind_startup`].
    pub(super) async fn bind_rest(self, settings: &Settings) -> Result<Listeners, Vec<String>> {
        match self {
            Self::All(listeners) => Ok(*listeners),
            Self::HttpOnly(bound) => {
                Listeners::bind(settings, bound.map_or_else(|| bind_http(settings), Ok)).await
            }
        }
    }
}

/// Returns `true` if the ports open after the first limits from the xDS server.
pub(super) fn waits_for_limits(settings: &Settings) -> bool {
    settings.limits.xds.server.is_some() && settings.limits.required_at_start
}

/// The requested receive buffer for syslog datagrams, in bytes. The kernel limits it to
/// `net.core.rmem_max`.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
pub(super) enum GrpcSocket {
    Tcp(TcpListener),
    /// A Unix socket. Its file is the first field, so that it is removed before the listener
    /// closes.
    Unix(SocketFile, UnixListener),
}

/// Removes the file of a Unix socket when dropped, which must be before the listener closes. After
/// that, the file may belong to another process that listens on the same path.
pub(super) struct SocketFile {
    path: PathBuf,
    /// The device and inode number of the file. `None` if they could not be read.
    inode: Option<Inode>,
}

/// The device and inode number of a file. No other file has them as long as the listener is open.
type Inode = (u64, u64);

fn inode(path: &Path) -> Option<Inode> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: inode(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.inode.is_some() && self.inode == inode(&self.path) {
            // Ignore the error: another process may have removed the file.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

impl Listeners {
    /// Binds all sockets except the HTTP port, which the caller binds.
    async fn bind(
        settings: &Settings,
        http: Result<TcpListener, String>,
    ) -> Result<Self, Vec<String>> {
        let (listen, compat) = (&settings.listen, &settings.compat.listen);
        let at = |name, own: Option<IpAddr>, port| ListenAddress {
            name,
            host: own.unwrap_or(listen.host),
            port,
            reuse: compat.like_ratelimit,
        };
        let grpc = match &listen.grpc_socket {
            Some(path) => bind_unix(path).await,
            None => at("grpc", compat.grpc_host, listen.grpc_port).bind().map(GrpcSocket::Tcp),
        };
        let metrics =
            listen.metrics_port.map(|port| at("metrics", compat.metrics_host, port).bind());
        let metrics = metrics.transpose();
        let admin = at("admin", Some(listen.admin_host), listen.admin_port).bind();
        let syslog = match listen.syslog_port {
            Some(port) => bind_udp(listen.syslog_host(), port).map(Some),
            None => Ok(None),
        };
        let peers = super::peers::peer_port(settings)
            .map(|port| at("peer", Some(listen.peer_host), port).bind());
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

    pub(super) fn summary_lines(&self) -> Vec<String> {
        let line = |name: &str, listener: &TcpListener| {
            let address = listener.local_addr().ok()?;
            Some(format!("{name} listening on {address}"))
        };
        let grpc = match &self.grpc {
            GrpcSocket::Tcp(listener) => line("grpc", listener),
            GrpcSocket::Unix(file, _) => Some(format!("grpc listening on {}", file.path.display())),
        };
        let metrics = self.metrics.as_ref().and_then(|listener| line("metrics", listener));
        let (http, admin) = (line("http", &self.http), line("admin", &self.admin));
        let syslog = self.syslog.as_ref().and_then(|socket| socket.local_addr().ok());
        let syslog = syslog.map(|address| format!("syslog listening on {address}"));
        let peers = self.peers.as_ref().and_then(|listener| line("peer", listener));
        [grpc, http, metrics, admin, syslog, peers].into_iter().flatten().collect()
    }
}

struct ListenAddress {
    name: &'static str,
    host: IpAddr,
    port: u16,
    reuse: bool,
}

impl ListenAddress {
    fn bind(self) -> Result<TcpListener, String> {
        let bound = self.listen();
        bound.map_err(|error| bind_error(self.name, SocketAddr::new(self.host, self.port), &error))
    }

    fn listen(&self) -> std::io::Result<TcpListener> {
        match self.listen_at(self.host) {
            Err(error) if self.host == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
                self.listen_at(Ipv4Addr::UNSPECIFIED.into())
            }
            listener => listener,
        }
    }

    fn listen_at(&self, host: IpAddr) -> std::io::Result<TcpListener> {
        let socket = if host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        accept_ipv4(&socket2::SockRef::from(&socket), host)?;
        // Allows a restart while connections of the previous process are still closing.
        socket.set_reuseaddr(true)?;
        if self.reuse {
            socket.set_reuseport(true)?;
        }
        socket.bind(SocketAddr::new(host, self.port))?;
        socket.listen(BACKLOG)
    }
}

/// Lets a socket on `::` accept IPv4, even if `net.ipv6.bindv6only` is 1.
fn accept_ipv4(socket: &socket2::SockRef<'_>, host: IpAddr) -> std::io::Result<()> {
    if host == Ipv6Addr::UNSPECIFIED { socket.set_only_v6(false) } else { Ok(()) }
}

/// Returns `true` for the error of a kernel without IPv6.
fn is_without_ipv6(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, Unsupported};
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        || matches!(error.kind(), AddrNotAvailable | Unsupported)
}

fn bind_http(settings: &Settings) -> Result<TcpListener, String> {
    let (host, port) = (settings.listen.host, settings.listen.http_port);
    let reuse = settings.compat.listen.like_ratelimit;
    ListenAddress { name: "http", host, port, reuse }.bind()
}

async fn bind_unix(path: &Path) -> Result<GrpcSocket, String> {
    let failed = |error: std::io::Error| {
        let path = path.display();
        format!("grpc cannot listen on {path}: {error}; set --listen-grpc-socket to another path")
    };
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        // Replace a socket that refuses connections, because a killed process left it. Any other
        // file belongs to another program.
        let is_abandoned =
            metadata.file_type().is_socket() && UnixStream::connect(path).await.is_err_and(refused);
        if !is_abandoned {
            return Err(failed(std::io::ErrorKind::AddrInUse.into()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    Ok(GrpcSocket::Unix(SocketFile::new(path), listener))
}

fn bind_udp(host: IpAddr, port: u16) -> Result<UdpSocket, String> {
    let bound = match bind_udp_at(host, port) {
        Err(error) if host == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
            bind_udp_at(Ipv4Addr::UNSPECIFIED.into(), port)
        }
        bound => bound,
    };
    bound.map_err(|error| bind_error("syslog", SocketAddr::new(host, port), &error))
}

fn bind_udp_at(host: IpAddr, port: u16) -> std::io::Result<UdpSocket> {
    use socket2::{Domain, Socket, Type};
    let address = SocketAddr::new(host, port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    accept_ipv4(&socket2::SockRef::from(&socket), host)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

fn bind_error(name: &str, address: SocketAddr, error: &std::io::Error) -> String {
    let (host, port) = (address.ip(), address.port());
    let host_setting = match name {
        "admin" => "listen-admin-host",
        "peer" => "listen-peer-host",
        _ => "listen-host",
    };
    format!(
        "{name} cannot listen on {host}:{port}: {error}; \
         set another --listen-{name}-port (0 selects a free port) or --{host_setting}"
    )
}
