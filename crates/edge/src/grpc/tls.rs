//! TLS configuration of the gRPC port and the peer port: the server's certificate, and the
//! verification of client certificates.
//!
//! Guarantees:
//! - TLS 1.2 or later, with HTTP/2.
//! - Changed certificate, key and CA files are reloaded before the next handshake.
//! - If changed files are invalid, the last valid configuration stays in use.
//! - Client certificates are accepted only from the configured CA, not from system CAs.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};
use tokio::task::spawn_blocking;

use crate::pem;
pub use crate::pem::PemError;

/// The paths of the TLS files of one port, and the name that client certificates must contain.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate chain (a PEM file).
    pub certificate: PathBuf,
    /// The certificate's private key (a PEM file).
    pub key: PathBuf,
    /// The CA bundle (PEM) that verifies client certificates. `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The DNS name or IP address that each client certificate must contain, if any.
    pub client_name: Option<String>,
}

/// The TLS configuration of a port, reloaded when its files change.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    log_name: &'static str,
    loaded: Mutex<LoadedTls>,
    attempts: AtomicU64,
    failures: AtomicU64,
}

/// How often the TLS files were read, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsReadCounts {
    /// The number of reads of all files, including failed reads.
    pub attempts: u64,
    /// The number of failed reads: a file was unreadable, or the key did not match.
    pub failures: u64,
    /// The number of TLS files of the port: 2, or 3 with a client CA.
    pub files: u64,
}

#[derive(Debug)]
struct LoadedTls {
    fingerprints: Vec<FileFingerprint>,
    config: Arc<ServerConfig>,
}

/// The inode, size and ctime of a file, which change when it is written or replaced. `None` if the
/// file is missing.
type FileFingerprint = Option<[u64; 4]>;

impl ServerTls {
    /// Reads the TLS files of the gRPC port.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not match the certificate.
    pub fn new(files: TlsFiles) -> Result<Self, PemError> {
        let (fingerprints, config) = (files.fingerprints(), Arc::new(files.server_config()?));
        let (loaded, log_name) = (Mutex::new(LoadedTls { fingerprints, config }), "gRPC");
        Ok(Self {
            files,
            log_name,
            loaded,
            attempts: AtomicU64::new(1),
            failures: AtomicU64::new(0),
        })
    }

    /// Reads the TLS files of the peer port, which serves other replicas.
    ///
    /// # Errors
    /// The errors of [`ServerTls::new`].
    pub fn for_peers(files: TlsFiles) -> Result<Self, PemError> {
        Ok(Self { log_name: "peer", ..Self::new(files)? })
    }

    /// Returns how often the TLS files were read.
    #[must_use]
    pub fn read_counts(&self) -> TlsReadCounts {
        let failures = self.failures.load(Relaxed);
        let attempts = self.attempts.load(Relaxed).max(failures);
        TlsReadCounts { attempts, failures, files: 2 + u64::from(self.files.client_ca.is_some()) }
    }

    /// Returns the TLS configuration from the current files, or from their last valid state.
    pub async fn current(tls: &Arc<Self>) -> Arc<ServerConfig> {
        let reloading = Arc::clone(tls);
        let config = spawn_blocking(move || reloading.reload_if_changed()).await;
        config.unwrap_or_else(|_| Arc::clone(&tls.loaded.lock().config))
    }

    fn reload_if_changed(&self) -> Arc<ServerConfig> {
        let fingerprints = self.files.fingerprints();
        let mut loaded = self.loaded.lock();
        if loaded.fingerprints != fingerprints {
            self.attempts.fetch_add(1, Relaxed);
            let (log_name, file) = (self.log_name, self.files.certificate.display());
            match self.files.server_config() {
                Ok(config) => {
                    tracing::info!(%file, "{log_name} TLS certificate reloaded");
                    loaded.config = Arc::new(config);
                }
                Err(error) => {
                    self.failures.fetch_add(1, Relaxed);
                    tracing::error!(
                        %error,
                        "failed to reload the {log_name} TLS certificate, keeping the previous one"
                    );
                }
            }
            loaded.fingerprints = fingerprints;
        }
        Arc::clone(&loaded.config)
    }
}

impl TlsFiles {
    fn fingerprints(&self) -> Vec<FileFingerprint> {
        let fingerprint = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            let ctime = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
            Some([metadata.ino(), metadata.len(), ctime[0], ctime[1]])
        };
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        files.into_iter().flatten().map(|path| fingerprint(path)).collect()
    }

    fn server_config(&self) -> Result<ServerConfig, PemError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unusable(&error))?;
        let clients = match &self.client_ca {
            None => versions.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(pem::trusted_cas(ca)?);
                let builder = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                let verifier = builder
                    .map_err(|error| PemError::new(ca, &format_args!("invalid CA: {error}")))?;
                versions.with_client_cert_verifier(self.with_name_check(verifier)?)
            }
        };
        let config = clients
            .with_single_cert(pem::certificates(&self.certificate)?, pem::private_key(&self.key)?);
        let mut config = config.map_err(|error| self.unusable(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// Builds the TLS configuration of a client that presents this certificate and trusts
    /// `client_ca`, or without `client_ca` only the certificate itself.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not match the certificate.
    pub fn client_config(&self) -> Result<ClientConfig, PemError> {
        let ca = self.client_ca.as_ref().unwrap_or(&self.certificate);
        let identity = Some((&*self.certificate, &*self.key));
        let mut config = pem::client_config(pem::trusted_cas(ca)?, identity)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn unusable(&self, error: &rustls::Error) -> PemError {
        PemError::unusable_certificate(&self.certificate, error)
    }

    fn with_name_check(
        &self,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Result<Arc<dyn ClientCertVerifier>, PemError> {
        let Some(name) = &self.client_name else { return Ok(verifier) };
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            PemError::new(&self.certificate, &format_args!("`{name}`: {error}"))
        })?;
        Ok(Arc::new(NamedClientVerifier { inner: verifier, name }))
    }
}

#[derive(Debug)]
struct NamedClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
