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

const HANDSHAKE_ERRORS: [(&str, &str); 7] = [
    ("UnknownIssuer", "nobody signed the certificate of redis whom we trust"),
    ("BadSignature", "nobody signed the certificate of redis whom we trust"),
    ("NotValidForName", "the certificate of redis is not made out to the name that we call it by"),
    ("InvalidCertificate(Expired", "the certificate of redis has expired"),
    ("AlertReceived(CertificateRequired)", "redis wants to see a certificate of ours"),
    ("AlertReceived(UnknownCA)", "redis does not trust whoever signed our certificate"),
    ("InvalidContentType", "redis does not speak TLS there"),
];

/// Adds an explanation to a TLS handshake error; without `tls`, returns the error unchanged.
pub(super) fn explain_handshake_error(error: Error, tls: Option<&RedisTls>) -> Error {
    let details = error.details();
    let meaning = HANDSHAKE_ERRORS.iter().find(|(part, _)| tls.is_some() && details.contains(part));
    match meaning {
        Some((_, meaning)) => Error::new(ErrorKind::Tls, format!("{meaning}: {details}")),
        None => error,
    }
}

fn rustls_config(tls: &RedisTls) -> Result<ClientConfig, Error> {
    // Explicit provider, because two dependencies could install different default providers.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(load_roots(tls)?);
    let standard =
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
    let standard = standard.map_err(|error| Error::new(ErrorKind::Tls, error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if tls.accepts_any_name { Arc::new(AnyNameVerifier(standard)) } else { standard };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match &tls.client_identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let chain =
                pem::certificates(&identity.certificate).map_err(|error| file_error(&error))?;
            let key = pem::private_key(&identity.key).map_err(|error| file_error(&error))?;
            let mismatch = |error| {
                pem::PemError::new(&identity.certificate, &format_args!("does not fit: {error}"))
            };
            builder.with_client_auth_cert(chain, key).map_err(|error| file_error(&mismatch(error)))
        }
    }
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
        let message = "this system has no root certificates: name some in `store.tls.ca_file`";
        return Err(Error::new(ErrorKind::Tls, message));
    }
    Ok(roots)
}

fn tls_error(error: &rustls::Error) -> Error {
    Error::new(ErrorKind::Tls, error.to_string())
}
