//! Parses `postgres://…`, the URL of a PostgreSQL store.
//!
//! Guarantees:
//! - A URL with an invalid part is rejected.
//! - Of a URL with a password, only scheme and hosts are printed.

use std::fmt;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

const POSTGRES_PORT: u16 = 5432;

/// The values of `sslmode` that this store offers. The others would hide that TLS is off, or that
/// no certificate is verified.
const SSL_MODES: [(&str, bool); 4] =
    [("disable", false), ("require", true), ("verify-ca", true), ("verify-full", true)];

/// The parameter by which some programs learn of a pooler. It has no effect here:
/// `store.postgres.prepare` finds out.
const POOLER: &str = "pgbouncer";

/// Returns `true` if `store.url` accepts this value of `sslmode`.
pub(super) fn is_ssl_mode(mode: &str) -> bool {
    SSL_MODES.iter().any(|(word, _)| *word == mode)
}

/// The address of a PostgreSQL database, with the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// Hosts, user, password, database and parameters.
    pub server: Config,
    /// `true` to use TLS and verify the server's certificate and its name.
    pub tls: bool,
}

impl PostgresUrl {
    /// Parses `postgres://user:password@host:port,host:port/database?parameters`. The scheme may
    /// also be `postgresql`.
    ///
    /// `sslmode` is `disable` (default), `require`, `verify-ca` or `verify-full`; the last three
    /// mean the same. `pgbouncer` has no effect. Other parameters are those of the client library, such as
    /// `connect_timeout` and `application_name`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (scheme, _) = text.split_once("://")?;
        matches!(scheme, "postgres" | "postgresql").then_some(())?;
        let (text, mode) = remove_parameter(text, "sslmode")?;
        let (text, _pooler) = remove_parameter(&text, POOLER)?;
        let (_, tls) =
            SSL_MODES.into_iter().find(|(word, _)| *word == mode.unwrap_or("disable"))?;
        let server: Config = text.parse().ok()?;
        // An `sslmode` that was not found, for example after a `?` in the password, must not be
        // ignored.
        (server.get_ssl_mode() == SslMode::Prefer).then_some(())?;
        let has_user = server.get_user().is_some_and(|user| !user.is_empty());
        let has_host = !server.get_hosts().is_empty();
        (has_user && has_host).then_some(Self { server, tls })
    }

    /// Returns `true` if the URL contains the password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.server.get_password().is_some()
    }
}

/// Removes the parameter `name`. Returns `None` if it is given twice.
fn remove_parameter<'t>(text: &'t str, name: &str) -> Option<(String, Option<&'t str>)> {
    let Some((address, query)) = text.split_once('?') else { return Some((text.to_owned(), None)) };
    let is_named = |pair: &&str| pair.split('=').next() == Some(name);
    let value_of = |pair: &'t str| pair.split_once('=').map_or("", |(_, value)| value);
    let mut values = query.split('&').filter(is_named).map(value_of);
    let value = values.next();
    if values.next().is_some() {
        return None;
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_named(pair)).collect();
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    Some((format!("{address}{query}"), value))
}

/// Formats the URL; with a password, only its scheme and hosts.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.server;
        f.write_str("postgres://")?;
        if !self.has_password() {
            write!(f, "{}@", server.get_user().unwrap_or_default())?;
        }
        let ports = server.get_ports();
        for (index, host) in server.get_hosts().iter().enumerate() {
            let port = ports.get(index).or_else(|| ports.first()).copied().unwrap_or(POSTGRES_PORT);
            f.write_str(if index == 0 { "" } else { "," })?;
            match host {
                Host::Unix(path) => write!(f, "{}", path.display())?,
                Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]:{port}")?,
                Host::Tcp(name) => write!(f, "{name}:{port}")?,
            }
        }
        if self.has_password() {
            return Ok(());
        }
        if let Some(database) = server.get_dbname() {
            write!(f, "/{database}")?;
        }
        if self.tls {
            f.write_str("?sslmode=require")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}
