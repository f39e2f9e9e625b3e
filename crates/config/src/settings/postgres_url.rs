//! Parses `postgres://…`, the URL of a PostgreSQL store.
//!
//! Guarantees:
//! - A URL with an invalid part is rejected.
//! - Of a URL with a password, only scheme and hosts are printed.

use std::fmt;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::percent::{decode_percent, encode_percent};

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
    /// The parameters besides `sslmode` and those of the address, as written.
    parameters: Vec<String>,
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
        let parsed: Config = text.parse().ok()?;
        let parameters = other_parameters(&text);
        // Equal servers have equal texts, and so equal values.
        let server: Config = full_text(&parsed, &parameters).parse().ok()?;
        // An `sslmode` that was not found, for example after a `?` in the password, must not be
        // ignored.
        (server.get_ssl_mode() == SslMode::Prefer).then_some(())?;
        let has_user = server.get_user().is_some_and(|user| !user.is_empty());
        let has_host = !server.get_hosts().is_empty();
        (has_user && has_host).then_some(Self { server, tls, parameters })
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

/// Returns the parameters of a URL that are not a part of the address.
fn other_parameters(text: &str) -> Vec<String> {
    const ADDRESS: [&str; 5] = ["user", "password", "host", "port", "dbname"];
    let query = text.split_once('?').map_or("", |(_, query)| query);
    let is_other = |pair: &&str| {
        let key = pair.split('=').next().and_then(decode_percent);
        !pair.is_empty() && key.is_none_or(|key| !ADDRESS.contains(&key.as_str()))
    };
    query.split('&').filter(is_other).map(str::to_owned).collect()
}

/// Returns the URL of a server with its password, without `sslmode`.
fn full_text(server: &Config, parameters: &[String]) -> String {
    let password = server.get_password().map(|bytes| {
        let encoded = bytes.iter().map(|byte| format!("%{byte:02X}"));
        format!(":{}", encoded.collect::<Vec<_>>().concat())
    });
    let user = encode_percent(server.get_user().unwrap_or_default(), "");
    let credentials = format!("{user}{}@", password.unwrap_or_default());
    format!("postgres://{credentials}{}", address(server, parameters))
}

/// Returns hosts, database and parameters.
fn address(server: &Config, parameters: &[String]) -> String {
    let database = server.get_dbname().map(|name| format!("/{}", encode_percent(name, "")));
    let query = if parameters.is_empty() { "" } else { "?" };
    let database = database.unwrap_or_default();
    format!("{}{database}{query}{}", join_hosts(server), parameters.join("&"))
}

/// Returns hosts and ports, separated by commas. A port of a Unix socket is shown unless it is the
/// default.
fn join_hosts(server: &Config) -> String {
    let ports = server.get_ports();
    let hosts = server.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = ports.get(index).or_else(|| ports.first()).copied().unwrap_or(POSTGRES_PORT);
        match host {
            Host::Unix(path) => {
                let path = encode_percent(&path.display().to_string(), "");
                if port == POSTGRES_PORT { path } else { format!("{path}:{port}") }
            }
            Host::Tcp(name) if name.contains(':') => format!("[{name}]:{port}"),
            Host::Tcp(name) => format!("{}:{port}", encode_percent(name, "")),
        }
    });
    hosts.collect::<Vec<_>>().join(",")
}

/// Formats the URL; with a password, only its scheme and hosts.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.server;
        if self.has_password() {
            return write!(f, "postgres://{}", join_hosts(server));
        }
        let mut parameters = self.parameters.clone();
        if self.tls {
            parameters.insert(0, "sslmode=require".to_owned());
        }
        let user = encode_percent(server.get_user().unwrap_or_default(), "");
        write!(f, "postgres://{user}@{}", address(server, &parameters))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}
