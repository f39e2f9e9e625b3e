//! Parses the URL of a Redis deployment.
//!
//! Guarantees:
//! - A URL with an invalid part is rejected.
//! - Of a URL with a password, only scheme and hosts are printed.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::host_port::{HostPort, only_digits, parse_address};
use super::masked_url::masked;
use super::percent::{decode_percent, encode_percent};
use super::url_cause::cause_of;
use super::value::{Value, quoted};

const REDIS_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// A rough regular expression of valid Redis URLs, for the JSON Schema.
pub(super) const URLS: &str =
    "(redis|valkey)s?(\\+(sentinel|cluster))?://.+|(redis|valkey)\\+unix://.*/.+";

pub(super) const ACCEPTED: &str = "redis://user:password@host:port/database, \
     redis+sentinel://user:password@host:port,host:port/primary/database, \
     redis+cluster://user:password@host:port,host:port, each with rediss for TLS, \
     or redis+unix:///path";

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
pub(super) fn missing_scheme(text: &str) -> Option<String> {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| only_digits(port).is_some());
    (has_port && parse_address(text, REDIS_PORT).is_some())
        .then(|| format!("has no scheme; write `redis://{text}`"))
}
