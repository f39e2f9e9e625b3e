//! Parses the setting `store.url`: the store of the counters.
//!
//! Guarantees:
//! - A URL with an invalid part is rejected.
//! - Of a URL with a password, only scheme and hosts are printed.
//!
//! Not covered:
//! - Conflicts with other settings (see `super::conflicts`).

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::percent::{decode_percent, encode_percent};
use super::postgres_url::PostgresUrl;
use super::url_cause::cause_of;
use super::value::{Value, quoted};
use crate::kernel::units::Nanos;

const REDIS_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// The store of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// The memory of this process, saved in a file of this directory.
    File(PathBuf),
    /// Redis, at this URL.
    Redis(RedisUrl),
    /// PostgreSQL, at this URL.
    Postgres(PostgresUrl),
}

impl StoreUrl {
    /// Returns `true` if replicas share the store.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_) | Self::Postgres(_))
    }
}

/// Formats the URL; with a password, only its scheme and hosts.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File(directory) => {
                write!(f, "{FILE_SCHEME}{}", directory.display().to_string().replace('%', "%25"))
            }
            Self::Redis(url) => url.fmt(f),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

/// The address of a Redis deployment, with the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The hosts or the socket of the deployment.
    pub endpoint: RedisEndpoint,
    /// `true` to use TLS for Redis and its sentinels.
    pub tls: bool,
    /// The ACL user. Default: Redis' default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the Redis database.
    pub database: u8,
}

/// The address of a Redis deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisEndpoint {
    /// The host and the port of a server.
    Tcp(HostPort),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// The sentinels, and the name of the primary that they monitor.
    Sentinel(Vec<HostPort>, String),
    /// Some nodes of a Redis Cluster. They report the other nodes.
    Cluster(Vec<HostPort>),
}

/// The host and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host name or IP address, for IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl RedisUrl {
    /// Parses one of these URLs. With TLS, the scheme starts with `rediss` instead of `redis`. For
    /// Valkey, it may also start with `valkey` or `valkeys`.
    ///
    /// * `redis://user:password@host:port/database`
    /// * `redis+sentinel://user:password@host:port,host:port/primary/database`
    /// * `redis+cluster://user:password@host:port,host:port`
    /// * `redis+unix://user:password@/path?db=database`
    ///
    /// The user, the password and the path may contain `%` escapes. A password without a user is
    /// for Redis' default user.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let (credentials, rest) = split_credentials(rest)?;
        let kind =
            SCHEMES.into_iter().find_map(|(name, tls)| Some((scheme.strip_prefix(name)?, tls)));
        let (scheme, tls) = kind?;
        let (endpoint, database) = match (scheme, tls) {
            ("", _) => parse_tcp(rest)?,
            ("+sentinel", _) => parse_sentinel(rest)?,
            ("+cluster", _) => parse_cluster(rest)?,
            ("+unix", false) => parse_unix(rest)?,
            _ => return None,
        };
        let (user, password) = credentials;
        Some(Self { endpoint, tls, user, password, database: only_digits(database)?.parse().ok()? })
    }
}

/// The starts of the schemes, each with true for TLS. The longer one of two comes first.
const SCHEMES: [(&str, bool); 4] =
    [("rediss", true), ("redis", false), ("valkeys", true), ("valkey", false)];

const FILE_SCHEME: &str = "file://";

/// Returns the directory of a URL such as `file:///var/lib/sluicegate`. `%` escapes are decoded.
fn parse_directory(url: &str) -> Option<PathBuf> {
    let path = decode_percent(url.strip_prefix(FILE_SCHEME)?)?;
    let is_directory = path.starts_with('/') && !path.trim_matches('/').is_empty();
    (is_directory && !path.contains(['?', '#', '\0'])).then(|| path.into())
}

fn parse_tcp(text: &str) -> Option<(RedisEndpoint, &str)> {
    let (host, database) = text.split_once('/').unwrap_or((text, ""));
    Some((RedisEndpoint::Tcp(parse_address(host, REDIS_PORT)?), database_or_zero(database)))
}

fn parse_sentinel(text: &str) -> Option<(RedisEndpoint, &str)> {
    let (hosts, rest) = text.split_once('/')?;
    let (primary, database) = rest.split_once('/').unwrap_or((rest, ""));
    // Redis Sentinel allows only these characters in the name of a primary.
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_name = !primary.is_empty() && primary.bytes().all(sound);
    let endpoint =
        RedisEndpoint::Sentinel(parse_addresses(hosts, SENTINEL_PORT)?, primary.to_owned());
    is_name.then_some((endpoint, database_or_zero(database)))
}

fn parse_cluster(text: &str) -> Option<(RedisEndpoint, &str)> {
    let (hosts, database) = text.split_once('/').unwrap_or((text, ""));
    matches!(database, "" | "0").then_some(())?;
    Some((RedisEndpoint::Cluster(parse_addresses(hosts, REDIS_PORT)?), "0"))
}

fn parse_unix(text: &str) -> Option<(RedisEndpoint, &str)> {
    let (path, database) = text.split_once("?db=").unwrap_or((text, "0"));
    let path = decode_percent(path)?;
    let sound = path.starts_with('/') && !path.contains(['?', '#', '\0']);
    sound.then(|| (RedisEndpoint::Unix(path.into()), database))
}

fn database_or_zero(database: &str) -> &str {
    if database.is_empty() { "0" } else { database }
}

type Credentials = (Option<String>, Option<String>);

/// Returns the credentials before the last `@`, and the text after it. A password may contain `@`,
/// but a host may not.
fn split_credentials(text: &str) -> Option<(Credentials, &str)> {
    let end = text.find('/').unwrap_or(text.len());
    let Some(at) = text.get(..end)?.rfind('@') else { return Some(((None, None), text)) };
    let (credentials, rest) = (text.get(..at)?, text.get(at + 1..)?);
    let Some((user, password)) = credentials.split_once(':') else {
        return decode_percent(credentials)
            .filter(|user| !user.is_empty())
            .map(|user| ((Some(user), None), rest));
    };
    let (user, password) = (decode_percent(user)?, decode_percent(password)?);
    let credentials = (Some(user).filter(|user| !user.is_empty()), Some(password));
    credentials
        .1
        .as_ref()
        .is_some_and(|password| !password.is_empty())
        .then_some((credentials, rest))
}

fn parse_addresses(text: &str, port: u16) -> Option<Vec<HostPort>> {
    text.split(',').map(|text| parse_address(text, port)).collect()
}

pub(super) fn parse_address(text: &str, default: u16) -> Option<HostPort> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None => default,
        Some(port) => only_digits(port)?.parse().ok().filter(|port| *port != 0)?,
    };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(sound);
    is_host.then(|| HostPort { host: host.to_owned(), port })
}

/// Returns `text` if it contains only digits. `str::parse` would also accept a sign.
fn only_digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Formats the URL; with a password, only its scheme and hosts.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.endpoint {
            RedisEndpoint::Tcp(_) => "",
            RedisEndpoint::Unix(_) => "+unix",
            RedisEndpoint::Sentinel(..) => "+sentinel",
            RedisEndpoint::Cluster(_) => "+cluster",
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        if let (Some(user), None) = (&self.user, &self.password) {
            write!(f, "{}@", encode_percent(user, ""))?;
        }
        match &self.endpoint {
            RedisEndpoint::Tcp(address) => address.fmt(f)?,
            RedisEndpoint::Unix(path) => {
                f.write_str(&encode_percent(&path.display().to_string(), "/"))?;
            }
            RedisEndpoint::Sentinel(addresses, _) | RedisEndpoint::Cluster(addresses) => {
                join_addresses(addresses).fmt(f)?;
            }
        }
        if self.password.is_some() {
            return Ok(());
        }
        if let RedisEndpoint::Sentinel(_, primary) = &self.endpoint {
            write!(f, "/{primary}")?;
        }
        match (&self.endpoint, self.database) {
            (_, 0) => Ok(()),
            (RedisEndpoint::Unix(_), database) => write!(f, "?db={database}"),
            (_, database) => write!(f, "/{database}"),
        }
    }
}

fn join_addresses(addresses: &[HostPort]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// A rough regular expression of valid Redis URLs, for the JSON Schema.
const URLS: &str = "(redis|valkey)s?(\\+(sentinel|cluster))?://.+|(redis|valkey)\\+unix://.*/.+";

const POSTGRES_ACCEPTED: &str =
    "postgres://user:password@host:port,host:port/database?sslmode=disable|require";

const ACCEPTED: &str = "redis://user:password@host:port/database, \
     redis+sentinel://user:password@host:port,host:port/primary/database, \
     redis+cluster://user:password@host:port,host:port, each with rediss for TLS, \
     or redis+unix:///path";

impl Value for StoreUrl {
    const CHOICES: &'static [&'static str] = &["memory"];
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            ["memory"] => Some(Self::Memory),
            [text] if text.starts_with(FILE_SCHEME) => parse_directory(text).map(Self::File),
            [text] => {
                let redis = || RedisUrl::new(text).map(Self::Redis);
                PostgresUrl::new(text).map(Self::Postgres).or_else(redis)
            }
            _ => None,
        }
    }
    fn accepts() -> String {
        format!("memory, file:///directory, {POSTGRES_ACCEPTED}, {ACCEPTED}")
    }
    fn show(&self) -> String {
        match self {
            Self::Memory => self.to_string(),
            Self::File(_) | Self::Redis(_) | Self::Postgres(_) => quoted(&self.to_string()),
        }
    }
    fn hides_secret(&self) -> bool {
        match self {
            Self::Memory | Self::File(_) => false,
            Self::Redis(url) => url.password.is_some(),
            Self::Postgres(url) => url.has_password(),
        }
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": format!("^(memory|file:///.+|postgres(ql)?://.+|{URLS})$")})
    }
    fn why(text: &str) -> Option<String> {
        let path = text.strip_prefix(FILE_SCHEME).or_else(|| text.starts_with('/').then_some(text));
        let path = path.map(|path| path.trim_start_matches('/'));
        path.map(|path| format!("is not the URL of a directory; write `{FILE_SCHEME}/{path}`"))
            .or_else(|| missing_scheme(text))
            .or_else(|| cause_of(text))
    }
    fn masked(text: &str) -> String {
        masked(text)
    }
}

/// When the file store writes charges to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSync {
    /// Before each answer.
    Always,
    /// Once per interval.
    Every(Nanos),
}

impl FileSync {
    /// A shorter interval would write more often than a disk can.
    const SHORTEST: Nanos = Nanos::MILLI;
}

impl Value for FileSync {
    const CHOICES: &'static [&'static str] = &["always"];
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            ["always"] => Some(Self::Always),
            _ => Nanos::read(texts).filter(|interval| Self::SHORTEST <= *interval).map(Self::Every),
        }
    }
    fn accepts() -> String {
        format!("always, or an interval of at least {}; for example 10ms or 1s", Self::SHORTEST)
    }
    fn show(&self) -> String {
        match self {
            Self::Always => "always".to_owned(),
            Self::Every(interval) => interval.show(),
        }
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(always|[0-9]+(us|ms|s|m|h|d))$"})
    }
}

impl Value for Option<RedisUrl> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => RedisUrl::new(text).map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        format!("{ACCEPTED}; or nothing for none")
    }
    fn show(&self) -> String {
        quoted(&self.as_ref().map(ToString::to_string).unwrap_or_default())
    }
    fn hides_secret(&self) -> bool {
        self.as_ref().is_some_and(|url| url.password.is_some())
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": format!("^({URLS})?$")})
    }
    fn why(text: &str) -> Option<String> {
        missing_scheme(text).or_else(|| cause_of(text))
    }
    fn masked(text: &str) -> String {
        masked(text)
    }
}

/// Returns the error for an address without a scheme, such as `localhost:6379`. Returns `None` for
/// other texts, because they may contain a password.
fn missing_scheme(text: &str) -> Option<String> {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| only_digits(port).is_some());
    (has_port && parse_address(text, REDIS_PORT).is_some())
        .then(|| format!("has no scheme; write `redis://{text}`"))
}

/// Returns an invalid URL for an error message, with everything masked that may be a password. Only
/// the scheme stays, and the host if it follows an `@`. Without an `@`, the text in the place of
/// the host may be a password.
pub(super) fn masked(text: &str) -> String {
    let is_word = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    if is_word(text) {
        return text.to_owned();
    }
    let scheme = text.split_once("://").filter(|(scheme, _)| is_word(scheme));
    let scheme = scheme.map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
    // If a `?` precedes the `@`, the text after the `?` may be a password that contains an `@`.
    let host = text.rsplit_once('@').filter(|(credentials, _)| !credentials.contains('?'));
    let host = host.and_then(|(_, host)| host.split(['/', '?']).next()).map(without_invalid_port);
    format!("{scheme}…{}", host.map(|host| format!("@{host}")).unwrap_or_default())
}

/// Returns the host and port of an invalid URL. An invalid port may be a part of a password, so it
/// is removed.
fn without_invalid_port(host: &str) -> &str {
    let end = if host.starts_with('[') { host.find(']').map(|at| at + 1) } else { host.find(':') };
    let (host_name, port) = host.split_at(end.unwrap_or(host.len()));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if port.strip_prefix(':').is_some_and(is_port) { host } else { host_name }
}
