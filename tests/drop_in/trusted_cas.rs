//! Tests of the trusted CAs for Redis and the xDS server.
//!
//! Guarantees:
//! - As `ratelimit`, a configured CA bundle extends the system CAs.
//! - As `sluicegate`, a configured CA bundle for Redis replaces the system CAs.

use std::fs;

use sluicegate::edge::grpc::tls::TlsFiles;
use sluicegate::source::xds::message::RateLimitConfig;

use super::process;
use crate::support::certificates::Authority;
use crate::support::process::Process;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};
use crate::support::xds::Xds;

/// Starts a Redis that only accepts TLS, with a certificate signed by `authority`.
fn redis(authority: &Authority) -> Process {
    let (ca, own) = (authority.ca(), authority.sign(&["127.0.0.1"]));
    let files = ["--tls-ca-cert-file", &*ca, "--tls-cert-file", &own.certificate];
    let more = ["--tls-key-file", &own.key, "--tls-auth-clients", "no"];
    Process::redis(&[&files[..], &more].concat())
}

/// Starts `ratelimit` with the configured CA bundle `named`. `system` is the file with the system
/// CAs.
fn start_with_cas(redis: &Process, named: &str, system: &str) -> (tempfile::TempDir, Service) {
    let at = redis.address();
    process::start(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &at),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", named),
        ("SSL_CERT_FILE", system),
    ])
}

fn wait_for_redis(service: &Service) {
    until("Redis is believed", || match process::ask(service) {
        200 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
}

fn wait_for_log(service: &Service, what: &str) {
    let logged = || service.log().contains(what).then_some(()).ok_or_else(|| service.log());
    until(what, logged).unwrap();
}

#[test]
fn redis_tls_trusts_configured_and_system_cas() {
    for_a_day_with_a_minute_left();
    let (named, system, other) = (Authority::new(), Authority::new(), Authority::new());
    for by in [&named, &system] {
        let redis = redis(by);
        let (_root, service) = start_with_cas(&redis, &named.ca(), &system.ca());
        wait_for_redis(&service);
    }
    let redis = redis(&other);
    let (_root, service) = start_with_cas(&redis, &named.ca(), &system.ca());
    wait_for_log(&service, "no trusted CA signed the certificate of redis; set store.tls.ca_file");
}

#[test]
fn sluicegate_serve_trusts_only_the_configured_ca() {
    let (named, system) = (Authority::new(), Authority::new());
    let redis = redis(&system);
    let limits = tempfile::tempdir().unwrap();
    fs::write(limits.path().join("a.yaml"), "domain: d\n").unwrap();
    let (ca, url) = (named.ca(), format!("rediss://{}", redis.address()));
    let flags = ["--store-url", &*url, "--store-tls-ca-file", &*ca].map(str::to_owned);
    let system = system.ca();
    let service =
        Service::start_under(limits.path(), &flags, &[("SSL_CERT_FILE", &*system)]).unwrap();
    wait_for_log(&service, "no trusted CA signed the certificate of redis; set store.tls.ca_file");
}

#[test]
fn xds_tls_trusts_configured_and_system_cas() {
    let (named, system) = (Authority::new(), Authority::new());
    for by in [&named, &system] {
        let own = by.sign(&["management.test"]);
        let xds = Xds::start_with_tls(TlsFiles {
            certificate: own.certificate.into(),
            key: own.key.into(),
            client_ca: None,
            client_name: None,
        });
        let domain = "d".to_owned();
        xds.publish(
            "1",
            &[RateLimitConfig { name: domain.clone(), domain, descriptors: Vec::new() }],
        );
        let (url, ca, trusted) = (xds.address.to_string(), named.ca(), system.ca());
        let _service = Service::start_as_ratelimit(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &*url),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &*ca),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "management.test"),
            ("SSL_CERT_FILE", &*trusted),
            ("USE_STATSD", "false"),
            ("SLUICEGATE_STORE_URL", "memory"),
            ("SLUICEGATE_COMPAT_STORE_KEY_FORMAT", "own"),
            ("SLUICEGATE_COMPAT_STORE_EXPIRY_JITTER", "300s"),
        ])
        .unwrap();
        assert_eq!(xds.wait_for_ack("1"), ("1".to_owned(), None));
    }
}
