//! Certificates for Sluicegate and its Envoys. Sluicegate serves no Envoy without one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::super::envoy::replace_once;
use crate::support::certificates::{Authority, Files};

/// The name in the certificate of Sluicegate.
const SERVICE: &str = "sluicegate.test";

/// An authority, and the certificate of all replicas.
pub struct Certificates {
    authority: Authority,
    service: Files,
    clients: AtomicUsize,
}

impl Certificates {
    pub fn new() -> Self {
        let authority = Authority::new();
        let service = authority.sign(&[SERVICE]);
        Self { authority, service, clients: AtomicUsize::new(0) }
    }

    /// The flags of a replica that requires client certificates.
    pub fn flags(&self) -> Vec<String> {
        let Files { certificate, key } = self.service.clone();
        let flag = |name: &str, file| [format!("--listen-tls-{name}-file"), file];
        let ca = self.authority.ca();
        [flag("cert", certificate), flag("key", key), flag("client-ca", ca)].concat()
    }

    /// Gives the shipped configuration of an Envoy a certificate of its own.
    pub fn add_to(&self, text: &mut String, service: SocketAddr) {
        let Files { certificate, key } = self.new_client();
        let ca = self.authority.ca();
        let tls = format!(
            "{{address: \"https://{service}\", tls: {{ca_file: {ca}, certificate_file: \
             {certificate}, key_file: {key}, server_name: {SERVICE}}}}}"
        );
        replace_once(text, &format!("{{address: \"{service}\"}}"), &tls);
    }

    /// The gRPC port of a replica, for a client with a certificate of its own.
    pub fn endpoint(&self, service: SocketAddr) -> Endpoint {
        let read = |path: String| std::fs::read(path).unwrap();
        let Files { certificate, key } = self.new_client();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(self.authority.ca())))
            .identity(Identity::from_pem(read(certificate), read(key)))
            .domain_name(SERVICE);
        Endpoint::from_shared(format!("https://{service}")).unwrap().tls_config(tls).unwrap()
    }

    fn new_client(&self) -> Files {
        let number = self.clients.fetch_add(1, Relaxed);
        self.authority.sign(&[&format!("envoy-{number}")])
    }
}
