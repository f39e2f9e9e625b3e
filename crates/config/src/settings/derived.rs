//! Values that follow from several settings.

use std::net::{IpAddr, Ipv4Addr};

use super::{AdminSettings, ListenSettings, StoreSettings, StoreUrl};
use crate::kernel::units::Nanos;

impl StoreSettings {
    /// Returns the longest time that a check waits for the store.
    #[must_use]
    pub fn call_timeout(&self) -> Nanos {
        let default = match self.url {
            StoreUrl::Redis(_) => Nanos(15 * Nanos::MILLI.0),
            StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Postgres(_) => {
                Nanos(50 * Nanos::MILLI.0)
            }
        };
        self.timeout.get().unwrap_or(default)
    }
}

impl ListenSettings {
    /// Returns the IP address on which `syslog_port` listens.
    #[must_use]
    pub fn syslog_host(&self) -> IpAddr {
        if self.syslog_from.is_loopback() { Ipv4Addr::LOCALHOST.into() } else { self.host }
    }
}

impl AdminSettings {
    /// Returns `true` if callers of the admin port need a token.
    #[must_use]
    pub const fn has_token(&self) -> bool {
        self.token.is_some() || self.token_file.is_some() || self.token_dir.is_some()
    }
}
