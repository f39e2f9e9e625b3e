//! The sockets, bound before anything else is started.
//!
//! Guarantees: either every listener is bound or none stays; what could not be bound is told in
//! words, all at once; port 0 takes a free port.

use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpListener;

use crate::config::settings::Settings;

/// The bound sockets.
pub(super) struct Listeners {
    pub(super) grpc: TcpListener,
    pub(super) http: TcpListener,
    pub(super) metrics: TcpListener,
    pub(super) admin: TcpListener,
}

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
        match (grpc, http, metrics, admin) {
            (Ok(grpc), Ok(http), Ok(metrics), Ok(admin)) => Ok(Self { grpc, http, metrics, admin }),
            (grpc, http, metrics, admin) => {
                Err([grpc.err(), http.err(), metrics.err(), admin.err()]
                    .into_iter()
                    .flatten()
                    .collect())
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
        named.into_iter().filter_map(line).collect()
    }
}

async fn bind(name: &str, host: IpAddr, port: u16) -> Result<TcpListener, String> {
    TcpListener::bind(SocketAddr::new(host, port)).await.map_err(|error| {
        let host_setting = if name == "admin" { "admin-host" } else { "host" };
        format!(
            "{name} cannot listen on {host}:{port}: {error}; \
             choose another with --{name}-port (0 takes a free one) or --{host_setting}"
        )
    })
}
