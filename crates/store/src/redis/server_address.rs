//! The address of a Redis server, and the time for a connection to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::options::Address;

/// The timeout for connecting, and for a command that charges nothing.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    Tcp(Address),
    Unix(PathBuf),
}

impl ServerAddress {
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Tcp(address) => &address.host,
            Self::Unix(_) => "",
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
