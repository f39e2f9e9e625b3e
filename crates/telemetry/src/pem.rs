//! Reads certificates and private keys from PEM files, for all TLS code, and configures TLS clients.
//!
//! Guarantees:
//! - An error names its file and never contains key material.
//! - A file larger than [`MAX_FILE_BYTES`] is refused.
//! - A certificate file without a certificate is an error.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The largest accepted file size in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// An error in a PEM file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct PemError {
    /// The path of the file.
    pub path: PathBuf,
    /// The problem, without the path.
    pub what: String,
}

impl PemError {
    /// Creates an error for `path`.
    #[must_use]
    pub fn new(path: &Path, what: &dyn std::fmt::Display) -> Self {
        Self { path: path.to_owned(), what: what.to_string() }
    }

    /// Creates an error for the certificate file `path`, which cannot be used with its private key.
    #[must_use]
    pub fn unusable_certificate(path: &Path, error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                Self::new(path, &"the certificate does not match the private key")
            }
            error if error.to_string().contains("UnsupportedCertVersion") => Self::new(
                path,
                &"the certificate has X.509 version 1; create one of version 3 with subjectAltName",
            ),
            _ => Self::new(path, &format_args!("the certificate is not usable: {error}")),
        }
    }
}

/// Reads a whole file.
///
/// # Errors
/// The file cannot be read, or is larger than [`MAX_FILE_BYTES`].
pub fn read_file(path: &Path) -> Result<Vec<u8>, PemError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| PemError::new(path, &format_args!("cannot be read: {error}")))?;
    if MAX_FILE_BYTES < u64::try_from(bytes.len()).unwrap_or(u64::MAX) {
        return Err(PemError::new(path, &"larger than 1 MiB"));
    }
    Ok(bytes)
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// The file cannot be read, is not PEM, or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_file(path)?).collect();
    let certificates = parsed.map_err(|_| PemError::new(path, &"not a PEM file"))?;
    if certificates.is_empty() {
        return Err(PemError::new(path, &"contains no certificate"));
    }
    Ok(certificates)
}

/// Reads the private key of a PEM file.
///
/// # Errors
/// The file cannot be read, or has no private key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    // The inner error is dropped, because it could contain part of the key.
    PrivateKeyDer::from_pem_slice(&read_file(path)?)
        .map_err(|_| PemError::new(path, &"contains no PEM private key"))
}

/// Reads the certificates of a PEM file as trusted CAs.
///
/// # Errors
/// The file cannot be read, is not PEM, or has no certificate that can be a trusted CA.
pub fn trusted_cas(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let invalid_ca =
            |error| PemError::new(path, &format_args!("contains an invalid CA: {error}"));
        roots.add(certificate).map_err(invalid_ca)?;
    }
    Ok(roots)
}

/// Reads the CAs of the PEM file `path`, plus the system CAs if `with_system` is `true`. Without a
/// file, returns the system CAs.
///
/// # Errors
/// The file cannot be read, is not PEM, or has no certificate that can be a trusted CA.
pub fn trusted_cas_or_system(
    path: Option<&Path>,
    with_system: bool,
) -> Result<RootCertStore, PemError> {
    let mut roots = path.map_or_else(|| Ok(RootCertStore::empty()), trusted_cas)?;
    if path.is_none() || with_system {
        // A system without CAs is not an error.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(roots)
}

/// Configures a TLS client that trusts the CAs `roots`, and presents the certificate and the private
/// key of the PEM files `identity`.
///
/// # Errors
/// A file cannot be read, or the key does not match the certificate.
pub fn client_config(
    roots: impl Into<Arc<RootCertStore>>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, PemError> {
    // Explicit provider, because two dependencies could install different default providers.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PemError::new(Path::new("TLS"), &error))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    builder
        .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| PemError::unusable_certificate(certificate, &error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn errors_name_the_file_without_showing_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let write_file = |name: &str, text: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let broken = b"-----BEGIN PRIVATE KEY-----\nsecret!\n-----END PRIVATE KEY-----\n";
        let (gone, empty) = (directory.path().join("gone"), write_file("empty", b""));
        let too_large = vec![b'x'; (1 << 20) + 1];
        let (broken, large) = (write_file("broken", broken), write_file("large", &too_large));
        for (error, path, what) in [
            (certificates(&gone).unwrap_err(), &gone, "cannot be read"),
            (certificates(&empty).unwrap_err(), &empty, "contains no certificate"),
            (trusted_cas(&empty).unwrap_err(), &empty, "contains no certificate"),
            (certificates(&large).unwrap_err(), &large, "larger than 1 MiB"),
            (private_key(&empty).unwrap_err(), &empty, "contains no PEM private key"),
            (private_key(&broken).unwrap_err(), &broken, "contains no PEM private key"),
            (trusted_cas_or_system(Some(&gone), true).unwrap_err(), &gone, "cannot be read"),
        ] {
            let text = error.to_string();
            assert!(text.starts_with(&path.display().to_string()) && text.contains(what), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
