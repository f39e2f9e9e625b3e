//! The limiter over TLS, with and without a client certificate.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sluicegate::config::hooks::Hooks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::grpc::incoming::GrpcListener;
use sluicegate::edge::grpc::tls::{ServerTls, TlsFiles};
use sluicegate::edge::grpc::{GrpcPort, serve};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::kernel::decision::RuleVerdict;
use sluicegate_proxy::settings::{LimiterSettings, ProxyIdentity, ServiceSettings, TlsSettings};
use sluicegate_proxy::{DEFAULT_MEMORY_BYTES, Limiter};

use super::{LEASED, decide, engine, until};
use crate::support::certificates::{Authority, Files};

/// The log of all limiters.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Serves on a port that admits only certificates of `authority`.
async fn serve_with_tls(authority: &Authority, own: &Files) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let files = TlsFiles {
        certificate: (&own.certificate).into(),
        key: (&own.key).into(),
        client_ca: Some(authority.ca().into()),
        client_name: None,
    };
    let grpc = GrpcPort {
        engine: engine(LEASED),
        reporting: ReplyOptions::default(),
        health: Health::new(Readiness::Ready),
        hooks: Arc::new(Hooks::default()),
        reflection: false,
        tls: Some(Arc::new(ServerTls::new(files).unwrap())),
        max_connections: 100,
        connection_age: None,
        mirror: None,
        proxies: sluicegate::config::settings::ProxyAccess::Auto,
        bodies: BodyLimits::default(),
    };
    tokio::spawn(serve(GrpcListener::Tcp(listener), grpc, std::future::pending()));
    address
}

fn limiter(address: SocketAddr, tls: TlsSettings) -> Limiter {
    let service = ServiceSettings { address: address.to_string(), tls: Some(tls) };
    let identity = ProxyIdentity { name: "edge-1".into(), software: "test/1".into() };
    let log = |line: &str| LOG.lock().unwrap().push(line.to_owned());
    let settings = LimiterSettings { service, identity, memory_bytes: DEFAULT_MEMORY_BYTES };
    Limiter::start_thread(settings, log, |_, _| {}).unwrap()
}

/// The number of lines about connections that failed. A limiter writes one for each reason.
fn refusals() -> usize {
    let log = LOG.lock().unwrap();
    log.iter().filter(|line| line.starts_with("no connection to Sluicegate")).count()
}

#[tokio::test]
async fn a_limiter_needs_the_certificate_that_the_service_requires() {
    let authority = Authority::new();
    let (own, client) = (authority.sign(&["sluicegate.test"]), authority.sign(&["edge-1"]));
    let address = serve_with_tls(&authority, &own).await;
    let without = TlsSettings {
        ca_file: Some(PathBuf::from(authority.ca())),
        identity: None,
        server_name: Some("sluicegate.test".to_owned()),
    };
    let refused = limiter(address, without.clone());
    until("a refused connection", || refusals() == 1).await;
    assert!(!refused.is_connected());
    let identity = Some((PathBuf::from(client.certificate), PathBuf::from(client.key)));
    let admitted = limiter(address, TlsSettings { identity, ..without.clone() });
    until("the connection", || admitted.is_connected()).await;
    assert_eq!(decide(&admitted, "a").await.verdict, RuleVerdict::Allow);
    // Another authority did not sign the service's certificate.
    let other = Authority::new();
    let distrusting = limiter(address, TlsSettings { ca_file: Some(other.ca().into()), ..without });
    until("a distrusted service", || refusals() == 2).await;
    assert!(!distrusting.is_connected());
}
