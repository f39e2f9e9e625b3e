//! The connection from the filter to Sluicegate.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::error::FilterConfigError;

/// The connection to Sluicegate. Filters with equal configs share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The address of the gRPC port.
    pub address: ServiceAddress,
    /// The files for TLS. Without them, `https://` trusts the system's CAs.
    #[serde(default)]
    pub tls: Option<ServiceTls>,
}

/// The address of Sluicegate's gRPC port: `host:port`, or `https://host:port` for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct ServiceAddress {
    /// The host name or IP address, without brackets.
    pub host: String,
    /// The port, 1 to 65535.
    pub port: u16,
    /// `true` for `https://`.
    pub has_tls: bool,
}

/// The files for TLS to Sluicegate, and the name in its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTls {
    /// A PEM file with the trusted CAs, by default the system's CAs.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client certificate.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// A PEM file with the key of the client certificate.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The name in the certificate of the service, by default the host of the address.
    #[serde(default)]
    pub server_name: Option<String>,
}

const EXPECTED_ADDRESS: &str = "invalid address, expected `host:port` or `https://host:port`";

impl FromStr for ServiceAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (has_tls, authority) =
            text.strip_prefix("https://").map_or((false, text), |authority| (true, authority));
        let (host, port) = authority.rsplit_once(':').ok_or(EXPECTED_ADDRESS)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(EXPECTED_ADDRESS)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |host: &&str| !host.is_empty() && !host.contains(['/', ':', '@', ' ', '[']);
        let host = bracketed.or_else(|| Some(host).filter(is_name)).ok_or(EXPECTED_ADDRESS)?;
        Ok(Self { host: host.to_owned(), port, has_tls })
    }
}

impl TryFrom<String> for ServiceAddress {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl ServiceConfig {
    pub(super) fn validate(&self) -> Result<(), FilterConfigError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        if !self.address.has_tls {
            let fix = "write `https://` before the address, or remove it";
            return Err(FilterConfigError::new("service.tls", "has no effect without TLS", fix));
        }
        let missing = match (&tls.certificate_file, &tls.key_file) {
            (Some(_), None) => "service.tls.key_file",
            (None, Some(_)) => "service.tls.certificate_file",
            _ => return Ok(()),
        };
        let fix = "name both files of the client certificate, or neither";
        Err(FilterConfigError::new(missing, "is missing", fix))
    }
}
