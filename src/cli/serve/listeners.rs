//! The sockets, bound before anything else is started.
//!
//! Guarantees: either every listener is bound or none stays; what could not be bound is told in
//! words, all at once; port 0 takes a free port.

use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpListener, UdpSocket};

use crate::config::settings::Settings;

/// The bound sockets.
pub(super) struct Listeners {
    pub(super) grpc: TcpListener,
    pub(super) http: TcpListener,
    pub(super) metrics: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) syslog: Option<UdpSocket>,
}

/// What the kernel is asked to keep of datagrams that come faster than they are read; it gives what
/// its `net.core.rmem_max` allows.
const DATAGRAMS_KEPT: usize = 4 << 20;

impl Listeners {
    /// Binds all of them.
    ///
    /// # Errors
    /// A sentence for each that cannot be bound.
    pub(super) async fn bind(settings: &Settings) -> Result<Self, Vec<String>> {
        let Settings { host, admin_host, .. } = *settings;
        let grpc = bind("grpc", host, settings.grpc_port).await;
        let http = bind("http", host, settings.http_port).await;
        let metrics = bind("metrics", host, settings.metrics_port).await;
        let admin = bind("admin", admin_host, settings.admin_port).await;
        let syslog = match settings.syslog_port {
            Some(port) => datagrams(settings.syslog_host, port).await.map(Some),
            None => Ok(None),
        };
        match (grpc, http, metrics, admin, syslog) {
            (Ok(grpc), Ok(http), Ok(metrics), Ok(admin), Ok(syslog)) => {
                Ok(Self { grpc, http, metrics, admin, syslog })
            }
            (grpc, http, metrics, admin, syslog) => {
                let all = [grpc.err(), http.err(), metrics.err(), admin.err(), syslog.err()];
                Err(all.into_iter().flatten().collect())
            }
        }
    }

    /// A line for each: its name and where it listens.
    pub(super) fn lines(&self) -> Vec<String> {
        let named = [
            ("grpc", &self.grpc),
            ("http", &self.http),
            ("metrics", &self.metrics),
            ("admin", &self.admin),
        ];
        let line = |(name, listener): (&str, &TcpListener)| {
            let address = listener.local_addr().ok()?;
            Some(format!("{name} listening on {address}"))
        };
        let syslog = self.syslog.as_ref().and_then(|socket| socket.local_addr().ok());
        let syslog = syslog.map(|address| format!("syslog listening on {address}"));
        named.into_iter().filter_map(line).chain(syslog).collect()
    }
}

async fn bind(name: &str, host: IpAddr, port: u16) -> Result<TcpListener, String> {
    let bound = TcpListener::bind(SocketAddr::new(host, port)).await;
    bound.map_err(|error| cannot(name, SocketAddr::new(host, port), &error))
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
        _ => "host",
    };
    format!(
        "{name} cannot listen on {host}:{port}: {error}; \
         choose another with --{name}-port (0 takes a free one) or --{host_setting}"
    )
}
