//! Creates TLS certificates in temporary files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A certificate authority for tests.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Issuers are looked up by name, so each authority needs its own.
        let name = format!("authority {}", dir.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), own.pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// Path of the CA certificate.
    pub fn ca(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    /// Issues a certificate for these host names or addresses.
    pub fn sign(&self, names: &[&str]) -> Files {
        self.sign_until(names, None)
    }

    /// Issues a certificate for a host name that expired in the year 2000.
    pub fn sign_expired(&self, name: &str) -> Files {
        self.sign_until(&[name], Some(2000))
    }

    fn sign_until(&self, names: &[&str], year: Option<i32>) -> Files {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let name = names.first().unwrap().clone();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, &name);
        if let Some(year) = year {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let files = [self.path(&format!("{name}.pem")), self.path(&format!("{name}.key"))];
        std::fs::write(&files[0], signed.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        let [certificate, key] = files.map(|file| file.display().to_string());
        Files { certificate, key }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
