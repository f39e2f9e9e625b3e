//! TLS connections to Redis.
//!
//! Guarantees:
//! - A server certificate is always verified against the configured CAs, the system's CAs, or both.
//! - The name in the certificate is verified, too, unless the settings allow any name.
//! - The certificate files are read again for each connection.

use std::sync::Arc;

use fred::error::{Error, ErrorKind};
use fred::types::config::{TlsConfig, TlsConnector};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::files::{file_error, run_blocking};
use super::options::RedisTls;
use crate::pem;

/// Returns the TLS configuration for the client library. Fails if a file is invalid, or if the
/// system has no CAs.
pub(super) async fn load_config(tls: &RedisTls) -> Result<TlsConfig, Error> {
    let tls = tls.clone();
    run_blocking(move || Ok(TlsConnector::from(rustls_config(&tls)?).into())).await
}

const UNTRUSTED: &str =
    "no trusted CA signed the certificate of redis; set store.tls.ca_file (REDIS_TLS_CACERT)";

/// The errors of the TLS handshake by a part of their text, with their explanations.
const HANDSHAKE_ERRORS: [(&str, &str); 9] = [
    ("UnknownIssuer", UNTRUSTED),
    ("BadSignature", UNTRUSTED),
    (
        "NotValidForName",
        "the certificate of redis has another name; set store.tls.server_name \
         (REDIS_TLS_SKIP_HOSTNAME_VERIFICATION)",
    ),
    ("InvalidCertificate(Expired", "the certificate of redis has expired"),
    ("InvalidCertificate(NotValidYet", "the certificate of redis is not valid yet"),
    (
        "AlertReceived(CertificateRequired)",
        "redis requires a client certificate; set store.tls.cert_file and store.tls.key_file \
         (REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY)",
    ),
    (
        "AlertReceived(UnknownCA)",
        "redis does not trust the CA of the client certificate (store.tls.cert_file)",
    ),
    (
        "InvalidContentType",
        "this port of redis does not use TLS; write redis:// in store.url (REDIS_TLS=false)",
    ),
    (
        "UnsupportedCertVersion",
        "the certificate of redis has X.509 version 1; issue it again as version 3, with a \
         subjectAltName (`openssl x509 -req -extfile`)",
    ),
];

/// Replaces the text of a TLS handshake error by its explanation. Without `tls`, returns the error
/// unchanged.
pub(super) fn explain_handshake_error(error: Error, tls: Option<&RedisTls>) -> Error {
    let details = error.details();
    let meaning = HANDSHAKE_ERRORS.iter().find(|(part, _)| tls.is_some() && details.contains(part));
    if let Some((_, meaning)) = meaning {
        return Error::new(ErrorKind::Tls, *meaning);
    }
    // The client library writes other errors of the handshake in Rust's debug format.
    let inner = details.split_once("kind: InvalidData, error: ").filter(|_| tls.is_some());
    let inner = inner.map(|(_, inner)| inner.trim_end_matches([' ', '}']).to_owned());
    match inner {
        Some(inner) => Error::new(ErrorKind::Tls, format!("the TLS handshake failed: {inner}")),
        None => error,
    }
}

/// Returns the rustls configuration of these options. Fails as [`load_config`].
pub(crate) fn rustls_config(tls: &RedisTls) -> Result<ClientConfig, Error> {
    let roots = Arc::new(load_roots(tls)?);
    let identity = tls.client_identity.as_ref();
    let identity = identity.map(|identity| (&*identity.certificate, &*identity.key));
    let mut config =
        pem::client_config(Arc::clone(&roots), identity).map_err(|error| file_error(&error))?;
    if tls.accepts_any_name {
        let provider = Arc::clone(config.crypto_provider());
        let standard = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let standard = standard.map_err(|error| Error::new(ErrorKind::Tls, error.to_string()))?;
        config.dangerous().set_certificate_verifier(Arc::new(AnyNameVerifier(standard)));
    }
    Ok(config)
}

/// A verifier that accepts a server certificate with any name, if all else is valid.
#[derive(Debug)]
struct AnyNameVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyNameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Self(standard) = self;
        // `rustls` verifies the name last, so an error about the name means that all else is valid.
        match standard.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn load_roots(tls: &RedisTls) -> Result<RootCertStore, Error> {
    let roots = pem::trusted_cas_or_system(tls.ca_file.as_deref(), tls.trusts_system_cas)
        .map_err(|error| file_error(&error))?;
    if roots.is_empty() {
        let message =
            "this system has no CA certificates; set store.tls.ca_file (REDIS_TLS_CACERT)";
        return Err(Error::new(ErrorKind::Tls, message));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::{Error, ErrorKind, RedisTls, explain_handshake_error};

    #[test]
    fn certificate_of_x509_version_1_names_the_fix() {
        // The text of the client library for a certificate from `openssl x509 -req`.
        let text = "Custom { kind: InvalidData, error: \
                    InvalidCertificate(Other(OtherError(UnsupportedCertVersion))) }";
        let tls = RedisTls::default();
        let explained = explain_handshake_error(Error::new(ErrorKind::IO, text), Some(&tls));
        let fix = "the certificate of redis has X.509 version 1; issue it again as version 3";
        assert!(explained.details().starts_with(fix), "{explained:?}");
    }
}
