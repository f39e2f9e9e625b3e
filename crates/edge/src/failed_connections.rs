//! Logs and counts connections that fail before their first request, each with its cure.
//!
//! Guarantees:
//! - At most one line a minute for each port, cause and address.
//! - At most [`MAX_ADDRESSES`] addresses have lines of their own; the others share one.
//!
//! Not covered:
//! - Clients that connect and send nothing, such as TCP health probes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::{AlertDescription, Error as TlsError};
use tokio::time::Instant;

use super::first_bytes::FirstProtocol;
use crate::config::hooks::address::Network;
use crate::telemetry::event::{ConnectionEvent, Event as _};
use crate::telemetry::label::{ConnectionFailure, ListenPort};

/// The largest number of addresses with lines of their own. Of IPv6 addresses, the first 64 bits
/// count.
const MAX_ADDRESSES: usize = 100;

/// The interval between two lines about one port, cause and address.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The lines of this process. A static as [`METRICS`](crate::telemetry::metrics).
static LINES: Mutex<Option<FailureLines>> = Mutex::new(None);

/// A connection that failed.
#[derive(Debug)]
pub(super) struct FailedConnection {
    pub(super) port: ListenPort,
    pub(super) cause: ConnectionFailure,
    /// `None` for a Unix socket.
    pub(super) peer: Option<SocketAddr>,
    /// The error of the TLS handshake.
    pub(super) error: Option<String>,
}

/// The failures of one address: the cause on a port, and its last line.
type LinesOfAddress = HashMap<(ListenPort, ConnectionFailure), LastLine>;

/// The lines of the last minutes, by network. `None` stands for the Unix socket and for addresses
/// beyond the maximum.
#[derive(Debug, Default)]
struct FailureLines(HashMap<Option<Network>, LinesOfAddress>);

#[derive(Debug)]
struct LastLine {
    at: Instant,
    /// The number of failures since the line.
    unlogged: u64,
}

impl FailedConnection {
    /// Returns the failure if `protocol` is not the one of the port.
    pub(super) fn of_protocol(
        port: ListenPort,
        protocol: FirstProtocol,
        peer: Option<SocketAddr>,
    ) -> Option<Self> {
        let is_grpc = matches!(port, ListenPort::Grpc | ListenPort::Peer);
        let cause = match protocol {
            FirstProtocol::Http1 if is_grpc => ConnectionFailure::Http1,
            FirstProtocol::Http2 if !is_grpc => ConnectionFailure::Http2,
            FirstProtocol::Http1 | FirstProtocol::Http2 => return None,
            FirstProtocol::Tls => ConnectionFailure::Tls,
            FirstProtocol::Proxy => ConnectionFailure::ProxyProtocol,
            FirstProtocol::Unknown => ConnectionFailure::UnknownProtocol,
        };
        Some(Self { port, cause, peer, error: None })
    }

    /// Returns the failure of a TLS handshake. `None` if the client closed the connection.
    pub(super) fn of_handshake(
        port: ListenPort,
        error: &io::Error,
        peer: Option<SocketAddr>,
    ) -> Option<Self> {
        let tls_error = error.get_ref()?.downcast_ref()?;
        let (cause, error) = (tls_failure(tls_error), Some(tls_error.to_string()));
        Some(Self { port, cause, peer, error })
    }

    /// Counts the failure, and logs it if a line is due.
    pub(super) fn report(self) {
        ConnectionEvent::Failed(self.port, self.cause).emit();
        let times = LINES.lock().get_or_insert_default().count(&self, Instant::now());
        if let Some(times) = times {
            self.warn(times);
        }
    }

    fn warn(&self, times: u64) {
        let Self { port, cause, peer, error } = self;
        let peer = peer.map(|peer| peer.ip().to_canonical().to_string());
        let peer = peer.as_deref().unwrap_or("unix socket");
        let times = Some(times).filter(|times| *times != 1);
        let (problem, help) = (problem(*port, *cause), help_for(*port, *cause));
        let (port, cause) = (port.as_str(), cause.as_str());
        tracing::warn!(port, peer, cause, error, times, help, "{problem}");
    }

    fn network(&self) -> Option<Network> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 64 };
        let address = self.peer?.ip().to_canonical();
        Some(Network::containing(address, bits(address)))
    }
}

impl FailureLines {
    /// Counts a failure. Returns the number of failures for a line, if one is due.
    fn count(&mut self, failed: &FailedConnection, now: Instant) -> Option<u64> {
        let mut network = failed.network();
        if MAX_ADDRESSES <= self.0.len() && !self.0.contains_key(&network) {
            self.remove_old(now);
            network = network.filter(|_| self.0.len() < MAX_ADDRESSES);
        }
        let lines = self.0.entry(network).or_default();
        let Some(last) = lines.get_mut(&(failed.port, failed.cause)) else {
            lines.insert((failed.port, failed.cause), LastLine { at: now, unlogged: 0 });
            return Some(1);
        };
        last.unlogged += 1;
        if now - last.at < LINE_INTERVAL {
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.unlogged))
    }

    fn remove_old(&mut self, now: Instant) {
        self.0.retain(|_, lines| lines.values().any(|last| now - last.at < LINE_INTERVAL));
    }
}

const fn tls_failure(error: &TlsError) -> ConnectionFailure {
    match error {
        TlsError::InvalidMessage(_) => ConnectionFailure::PlainText,
        TlsError::NoApplicationProtocol => ConnectionFailure::Http1,
        TlsError::NoCertificatesPresented
        | TlsError::InvalidCertificate(_)
        | TlsError::UnsupportedNameType => ConnectionFailure::ClientCertificate,
        TlsError::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::BadCertificateStatusResponse,
        ) => ConnectionFailure::ServerCertificate,
        _ => ConnectionFailure::TlsHandshake,
    }
}

fn problem(port: ListenPort, cause: ConnectionFailure) -> String {
    let name = match port {
        ListenPort::Grpc => "gRPC",
        ListenPort::Http => "HTTP",
        ListenPort::Metrics => "metrics",
        ListenPort::Admin => "admin",
        ListenPort::Peer => "peer",
    };
    match cause {
        ConnectionFailure::Http1 => format!("HTTP/1 request at the {name} port"),
        ConnectionFailure::Http2 => format!("HTTP/2 or gRPC at the {name} port"),
        ConnectionFailure::Tls => format!("TLS at the {name} port, which has plain text"),
        ConnectionFailure::PlainText => format!("plain text at the {name} port, which has TLS"),
        ConnectionFailure::ProxyProtocol => format!("PROXY protocol at the {name} port"),
        ConnectionFailure::UnknownProtocol => format!("unknown protocol at the {name} port"),
        ConnectionFailure::ClientCertificate => {
            format!("refused the certificate of a client at the {name} port")
        }
        ConnectionFailure::ServerCertificate => {
            format!("a client refused the certificate of the {name} port")
        }
        ConnectionFailure::TlsHandshake => format!("TLS handshake failed at the {name} port"),
        ConnectionFailure::TlsTimeout => format!("TLS handshake timed out at the {name} port"),
    }
}

const fn help_for(port: ListenPort, cause: ConnectionFailure) -> &'static str {
    match (port, cause) {
        (ListenPort::Peer, _) => "the peer port is for the replicas of this fleet",
        (_, ConnectionFailure::Http1) => {
            "add http2_protocol_options to the proxy's cluster, or use listen.http_port (8080)"
        }
        (_, ConnectionFailure::Http2) => "gRPC has a port of its own: listen.grpc_port (8081)",
        (ListenPort::Grpc, ConnectionFailure::Tls) => {
            "remove the TLS transport_socket from the proxy's cluster, or set listen.tls.cert_file"
        }
        (_, ConnectionFailure::Tls) => "use http://: only the gRPC port has TLS",
        (_, ConnectionFailure::PlainText) => "add a TLS transport_socket to the proxy's cluster",
        (_, ConnectionFailure::ProxyProtocol) => "turn off the PROXY protocol in the load balancer",
        (_, ConnectionFailure::UnknownProtocol) => "find the program at this address",
        (_, ConnectionFailure::ClientCertificate) => {
            "renew the proxy's certificate, or correct listen.tls.client_ca_file"
        }
        (_, ConnectionFailure::ServerCertificate) => {
            "trust its CA in the proxy (validation_context), or renew listen.tls.cert_file"
        }
        (_, ConnectionFailure::TlsHandshake | ConnectionFailure::TlsTimeout) => {
            "the proxy's cluster needs TLS 1.2 or 1.3"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(address: [u8; 4], cause: ConnectionFailure) -> FailedConnection {
        let peer = Some(SocketAddr::from((address, 1)));
        FailedConnection { port: ListenPort::Grpc, cause, peer, error: None }
    }

    #[test]
    fn each_cause_and_address_has_one_line_a_minute() {
        let (mut lines, start) = (FailureLines::default(), Instant::now());
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let mut at = |seconds, address, cause| {
            lines.count(&failed(address, cause), start + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, one, ConnectionFailure::Http1), Some(1));
        assert_eq!(at(1, one, ConnectionFailure::Http1), None);
        assert_eq!(at(1, one, ConnectionFailure::Tls), Some(1));
        assert_eq!(at(2, other, ConnectionFailure::Http1), Some(1));
        assert_eq!(at(59, one, ConnectionFailure::Http1), None);
        assert_eq!(at(60, one, ConnectionFailure::Http1), Some(3));
        assert_eq!(at(61, one, ConnectionFailure::Http1), None);
    }

    #[test]
    fn addresses_beyond_the_maximum_share_their_lines() {
        let (mut lines, start) = (FailureLines::default(), Instant::now());
        let mut count_lines = |at| {
            let due = (0..=255_u8).filter_map(|last| {
                lines.count(&failed([192, 0, 2, last], ConnectionFailure::Http1), at)
            });
            due.count()
        };
        assert_eq!(count_lines(start), MAX_ADDRESSES + 1);
        assert_eq!(count_lines(start + Duration::from_secs(1)), 0);
        assert_eq!(count_lines(start + LINE_INTERVAL), MAX_ADDRESSES + 1);
        assert!(lines.0.len() <= MAX_ADDRESSES + 1);
    }
}
