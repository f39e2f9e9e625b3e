//! A case from the field: clients with another protocol or a bad certificate left no trace.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use crate::support::certificates::{Authority, Files};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, until};

/// The connection preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The start of a `ClientHello` (RFC 8446, 4.1.2).
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03";
const HTTP1: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn serve(flags: &[&str]) -> Service {
    let limits = Path::new("tests/field/wrong-protocol-is-silent/limits.yaml");
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Service::start(limits, &flags).unwrap()
}

/// Sends bytes, and reads until the service closes the connection.
fn send(port: SocketAddr, bytes: &[u8]) {
    let mut client = TcpStream::connect(port).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(bytes).unwrap();
    client.shutdown(Shutdown::Write).ok();
    client.read_to_end(&mut Vec::new()).ok();
}

fn failures(service: &Service, port: &str, cause: &str) -> String {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let series =
        format!("sluicegate_connections_failed_total{{port=\"{port}\",cause=\"{cause}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&*series)).unwrap().to_owned()
}

/// Waits for three failures and their only line, which has these texts.
fn assert_one_line(service: &Service, (port, cause): (&str, &str), texts: &[&str]) {
    until("three failures", || match failures(service, port, cause) {
        count if count == "3" => Ok(()),
        count => Err(count),
    })
    .unwrap();
    let log = service.log();
    let is_about = |line: &&str| {
        line.contains("WARN")
            && line.contains(&format!("port=\"{port}\""))
            && line.contains(&format!("cause=\"{cause}\""))
    };
    let lines: Vec<_> = log.lines().filter(is_about).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for text in texts.iter().chain(&["127.0.0.1"]) {
        assert!(lines[0].contains(text), "{text}: {}", lines[0]);
    }
}

#[test]
fn a_wrong_protocol_gets_one_line_with_its_cure() {
    let service = serve(&[]);
    for (port, name, bytes, cause, texts) in [
        (
            service.grpc,
            "grpc",
            HTTP1,
            "http1",
            ["HTTP/1 request at the gRPC port", "http2_protocol_options"],
        ),
        (service.grpc, "grpc", CLIENT_HELLO, "tls", ["TLS at the gRPC port", "transport_socket"]),
        (
            service.grpc,
            "grpc",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
            "proxy_protocol",
            ["PROXY protocol", "load balancer"],
        ),
        (
            service.grpc,
            "grpc",
            b"\0\0\0\0",
            "unknown_protocol",
            ["unknown protocol", "find the program"],
        ),
        (
            service.http,
            "http",
            PREFACE,
            "http2",
            ["HTTP/2 or gRPC at the HTTP port", "listen.grpc_port (8081)"],
        ),
        (
            service.http,
            "http",
            CLIENT_HELLO,
            "tls",
            ["TLS at the HTTP port", "only the gRPC port has TLS"],
        ),
        (
            service.admin,
            "admin",
            CLIENT_HELLO,
            "tls",
            ["TLS at the admin port", "only the gRPC port has TLS"],
        ),
    ] {
        (0..3).for_each(|_| send(port, bytes));
        assert_one_line(&service, (name, cause), &texts);
    }
    // The right protocols, and a probe that sends nothing, leave no line.
    send(service.grpc, PREFACE);
    send(service.http, HTTP1);
    send(service.grpc, b"");
    assert_eq!(service.log().matches("cause=").count(), 7, "{}", service.log());
}

struct Client<'a> {
    trusted: &'a Authority,
    own: Option<Files>,
}

impl Client<'_> {
    /// Makes a TLS handshake, and returns its error. With TLS 1.3, the service refuses a
    /// certificate after the handshake.
    fn handshake(&self, port: SocketAddr) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        for one in certificates(&self.trusted.ca()) {
            roots.add(one).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &self.own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
                config.with_client_auth_cert(certificates(&own.certificate), key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("sluicegate.test").unwrap();
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(port)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = Stream::new(&mut session, &mut socket);
        stream.write_all(PREFACE)?;
        stream.read(&mut [0; 1]).map(drop)
    }
}

fn certificates(file: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
}

#[test]
fn refused_certificates_and_plain_text_get_one_line() {
    let (authority, other) = (Authority::new(), Authority::new());
    let own = authority.sign(&["sluicegate.test"]);
    let service = serve(&[
        "--listen-tls-cert-file",
        &own.certificate,
        "--listen-tls-key-file",
        &own.key,
        "--listen-tls-client-ca-file",
        &authority.ca(),
    ]);
    let handshakes = |trusted: &Authority, own: Option<Files>| {
        let client = Client { trusted, own };
        (0..3).for_each(|_| assert!(client.handshake(service.grpc).is_err()));
    };
    (0..3).for_each(|_| send(service.grpc, PREFACE));
    assert_one_line(
        &service,
        ("grpc", "plain_text"),
        &["plain text at the gRPC port", "transport_socket"],
    );
    handshakes(&other, Some(authority.sign(&["edge"])));
    assert_one_line(
        &service,
        ("grpc", "server_certificate"),
        &["refused the certificate", "listen.tls.cert_file"],
    );
    handshakes(&authority, Some(authority.sign_expired("edge-old")));
    assert_one_line(
        &service,
        ("grpc", "client_certificate"),
        &["expired", "renew the proxy's certificate"],
    );
    // A valid certificate, and a probe that closes the connection, leave no line.
    Client { trusted: &authority, own: Some(authority.sign(&["edge-new"])) }
        .handshake(service.grpc)
        .unwrap();
    send(service.grpc, b"");
    assert_eq!(service.log().matches("cause=").count(), 3, "{}", service.log());
}
