//! The service that `sluicegate bench` calls.

use std::fmt;
use std::time::Duration;

use tokio::net::TcpStream;
use tonic::codegen::http::Uri;

use super::super::args::BenchArgs;
use super::super::ask::grpc_server;
use crate::bench::{BenchSender, FirstError, GrpcSender, HttpSender};
use crate::source::xds::{XdsServer, connect};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The service under load.
pub(super) enum BenchTarget {
    /// A gRPC port.
    Grpc(XdsServer),
    /// An HTTP port, and the URL of a check.
    Http { address: (String, u16), url: Uri },
}

impl fmt::Display for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grpc(server) => write!(f, "gRPC {server}"),
            Self::Http { url, .. } => write!(f, "HTTP {url}"),
        }
    }
}

impl BenchTarget {
    /// Reads the flags `--url` and `--address`.
    ///
    /// # Errors
    /// The URL or the address has another form.
    pub(super) fn read(args: &BenchArgs) -> Result<Self, String> {
        match &args.url {
            None => grpc_server(&args.address, &args.tls).map(Self::Grpc),
            Some(url) => read_url(url).ok_or_else(|| {
                format!(
                    "--url `{url}` must be http://HOST:PORT/PATH, such as \
                     http://127.0.0.1:8080/json; HTTPS is not supported"
                )
            }),
        }
    }

    /// Connects, and returns a sender for each check in flight. `first_error` keeps the first error of gRPC.
    ///
    /// # Errors
    /// A message with the address.
    pub(super) async fn connect(
        &self,
        args: &BenchArgs,
        first_error: &FirstError,
    ) -> Result<Vec<BenchSender>, String> {
        match self {
            Self::Grpc(server) => connect_grpc(server, args, first_error).await,
            Self::Http { address: (host, port), url } => {
                let connected = TcpStream::connect((host.as_str(), *port));
                let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
                let connected =
                    connected.map_err(|_| format!("no connection in {CONNECT_TIMEOUT:?}"));
                let connected = connected.and_then(|it| it.map_err(|error| error.to_string()));
                connected.map_err(|error| unreachable(self, &error))?;
                let sender = |_| BenchSender::Http(Box::new(HttpSender::new(url.clone())));
                Ok((0..args.connections).map(sender).collect())
            }
        }
    }
}

async fn connect_grpc(
    server: &XdsServer,
    args: &BenchArgs,
    first_error: &FirstError,
) -> Result<Vec<BenchSender>, String> {
    let mut connections = Vec::new();
    for _ in 0..args.connections.min(args.max_in_flight) {
        let channel = connect(server).await;
        let channel = channel.map_err(|error| unreachable(server, &error))?;
        connections.push(BenchSender::Grpc(GrpcSender::new(channel, first_error.clone())));
    }
    let in_flight = usize::try_from(args.max_in_flight).unwrap_or(usize::MAX);
    Ok(connections.into_iter().cycle().take(in_flight).collect())
}

fn unreachable(target: &impl fmt::Display, error: &impl fmt::Display) -> String {
    format!("{target}: {error}; is the service running? (--address or --url)")
}

fn read_url(text: &str) -> Option<BenchTarget> {
    let url = text.parse::<Uri>().ok().filter(|url| url.scheme_str() == Some("http"))?;
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = url.port_u16().unwrap_or(80);
    Some(BenchTarget::Http { address: (host, port), url })
}
