//! TLS arguments of commands that call a gRPC port.

use std::path::PathBuf;

use clap::Args;

/// TLS of a connection to a gRPC port.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Connect with TLS.
    #[arg(long = "tls", id = "tls")]
    pub is_on: bool,
    /// CA bundle (PEM) that verifies the service's certificate; the default is the system's CAs.
    #[arg(long = "tls-ca-file", id = "tls_ca_file", value_name = "FILE", requires = "tls")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate.
    #[arg(long = "tls-cert-file", id = "tls_cert_file", value_name = "FILE", requires_all = ["tls", "tls_key_file"])]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    #[arg(long = "tls-key-file", id = "tls_key_file", value_name = "FILE", requires_all = ["tls", "tls_cert_file"])]
    pub key_file: Option<PathBuf>,
    /// Expected name in the service's certificate, if it differs from the host in the address.
    #[arg(long = "tls-server-name", id = "tls_server_name", value_name = "NAME", requires = "tls")]
    pub server_name: Option<String>,
}
