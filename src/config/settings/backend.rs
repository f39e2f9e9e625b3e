//! Where counters live, as a person writes it.
//!
//! Guarantees: a URL is understood as a whole or refused; nothing here prints its password.
//! Leaves out: what it has to do with other settings ([`super::together`]).

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

/// Redis' own port.
const PORT: u16 = 6379;

/// A sentinel's own port.
const SENTINEL_PORT: u16 = 26379;

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In this process.
    Memory,
    /// In a Redis.
    Redis(RedisUrl),
}

/// One Redis, or several that are one, and as whom to speak to it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where it is.
    pub place: Place,
    /// Whether it speaks TLS, its sentinels too.
    pub tls: bool,
    /// The ACL user; Redis' default user without.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u8,
}

/// Where a Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address.
    Tcp(Address),
    /// At a socket in the file system.
    Unix(PathBuf),
    /// Where these sentinels say the primary of this name is.
    Sentinel(Vec<Address>, String),
    /// On the nodes of a Cluster, of which these tell the others.
    Cluster(Vec<Address>),
}

/// A host's name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host, an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl RedisUrl {
    /// What one of these says, `rediss` for TLS:
    ///
    /// * `redis://user:password@host:port/database`
    /// * `redis+sentinel://user:password@host:port,host:port/primary/database`
    /// * `redis+cluster://user:password@host:port,host:port`
    /// * `redis+unix://user:password@/path?db=database`
    ///
    /// `%` escapes are understood in the user, the password and the path; a password without a user is
    /// the default user's.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let (who, rest) = split_user(rest)?;
        let (scheme, tls) = match scheme.strip_prefix("rediss") {
            Some(kind) => (kind, true),
            None => (scheme.strip_prefix("redis")?, false),
        };
        let (place, database) = match (scheme, tls) {
            ("", _) => tcp(rest)?,
            ("+sentinel", _) => sentinel(rest)?,
            ("+cluster", _) => cluster(rest)?,
            ("+unix", false) => unix(rest)?,
            _ => return None,
        };
        let (user, password) = who;
        Some(Self { place, tls, user, password, database: digits(database)?.parse().ok()? })
    }
}

fn tcp(text: &str) -> Option<(Place, &str)> {
    let (host, database) = text.split_once('/').unwrap_or((text, ""));
    Some((Place::Tcp(address(host, PORT)?), or_zero(database)))
}

fn sentinel(text: &str) -> Option<(Place, &str)> {
    let (hosts, rest) = text.split_once('/')?;
    let (primary, database) = rest.split_once('/').unwrap_or((rest, ""));
    // What Redis lets a primary be called.
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_name = !primary.is_empty() && primary.bytes().all(sound);
    let place = Place::Sentinel(addresses(hosts, SENTINEL_PORT)?, primary.to_owned());
    is_name.then_some((place, or_zero(database)))
}

fn cluster(text: &str) -> Option<(Place, &str)> {
    let (hosts, database) = text.split_once('/').unwrap_or((text, ""));
    matches!(database, "" | "0").then_some(())?;
    Some((Place::Cluster(addresses(hosts, PORT)?), "0"))
}

fn unix(text: &str) -> Option<(Place, &str)> {
    let (path, database) = text.split_once("?db=").unwrap_or((text, "0"));
    let path = unescaped(path)?;
    let sound = path.starts_with('/') && !path.contains(['?', '#', '\0']);
    sound.then(|| (Place::Unix(path.into()), database))
}

fn or_zero(database: &str) -> &str {
    if database.is_empty() { "0" } else { database }
}

type Who = (Option<String>, Option<String>);

/// Everything before the last `@`: a password may hold one, a host may not.
fn split_user(text: &str) -> Option<(Who, &str)> {
    let end = text.find('/').unwrap_or(text.len());
    let Some(at) = text.get(..end)?.rfind('@') else { return Some(((None, None), text)) };
    let (who, rest) = (text.get(..at)?, text.get(at + 1..)?);
    let Some((user, password)) = who.split_once(':') else {
        return unescaped(who)
            .filter(|user| !user.is_empty())
            .map(|user| ((Some(user), None), rest));
    };
    let (user, password) = (unescaped(user)?, unescaped(password)?);
    let who = (Some(user).filter(|user| !user.is_empty()), Some(password));
    who.1.as_ref().is_some_and(|password| !password.is_empty()).then_some((who, rest))
}

/// At least one address, with commas between them.
fn addresses(text: &str, port: u16) -> Option<Vec<Address>> {
    text.split(',').map(|text| address(text, port)).collect()
}

pub(super) fn address(text: &str, default: u16) -> Option<Address> {
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
        Some(port) => digits(port)?.parse().ok().filter(|port| *port != 0)?,
    };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(sound);
    is_host.then(|| Address { host: host.to_owned(), port })
}

/// `text` if it is digits only: `parse` would take a sign.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

/// `text` with `%41` for `A`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    let nibble = |byte: Option<u8>| char::from(byte?).to_digit(16);
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let code = nibble(bytes.next())? * 16 + nibble(bytes.next())?;
            plain.push(u8::try_from(code).ok()?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).ok()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The URL with `***` for the password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.place {
            Place::Tcp(_) => "",
            Place::Unix(_) => "+unix",
            Place::Sentinel(..) => "+sentinel",
            Place::Cluster(_) => "+cluster",
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        match (&self.user, &self.password) {
            (None, None) => {}
            (user, Some(_)) => write!(f, "{}:***@", user.as_deref().unwrap_or_default())?,
            (Some(user), None) => write!(f, "{user}@")?,
        }
        match &self.place {
            Place::Tcp(address) => address.fmt(f)?,
            Place::Unix(path) => path.display().fmt(f)?,
            Place::Sentinel(addresses, primary) => write!(f, "{}/{primary}", listed(addresses))?,
            Place::Cluster(addresses) => listed(addresses).fmt(f)?,
        }
        match (&self.place, self.database) {
            (_, 0) => Ok(()),
            (Place::Unix(_), database) => write!(f, "?db={database}"),
            (_, database) => write!(f, "/{database}"),
        }
    }
}

fn listed(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// What a URL looks like from afar.
const URLS: &str = "rediss?://.+|rediss?\\+(sentinel|cluster)://.+|redis\\+unix://.*/.+";

const ACCEPTED: &str = "redis://user:password@host:port/database, \
     redis+sentinel://user:password@host:port,host:port/primary/database, \
     redis+cluster://user:password@host:port,host:port, each with rediss for TLS, \
     or redis+unix:///path";

impl Value for Backend {
    const CHOICES: &'static [&'static str] = &["memory"];
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            ["memory"] => Some(Self::Memory),
            [text] => RedisUrl::new(text).map(Self::Redis),
            _ => None,
        }
    }
    fn accepts() -> String {
        format!("memory, {ACCEPTED}")
    }
    fn show(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Redis(url) => quoted(&url.to_string()),
        }
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": format!("^(memory|{URLS})$")})
    }
    fn masked(text: &str) -> String {
        masked(text)
    }
}

/// A Redis beside `backend`; empty for none.
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
    fn schema() -> Json {
        json!({"type": "string", "pattern": format!("^({URLS})?$")})
    }
    fn masked(text: &str) -> String {
        masked(text)
    }
}

/// A text that was refused, without what may be a password: of a URL its scheme, and the host where an `@` says which part
/// that is. Without one it may be the host that was forgotten.
fn masked(text: &str) -> String {
    let is_word = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    if is_word(text) {
        return text.to_owned();
    }
    let scheme = text.split_once("://").filter(|(scheme, _)| is_word(scheme));
    let scheme = scheme.map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
    // What comes after a `?` may be a password that holds an `@`.
    let host = text.rsplit_once('@').filter(|(who, _)| !who.contains('?'));
    let host = host.and_then(|(_, host)| host.split(['/', '?']).next()).map(without_password);
    format!("{scheme}…{}", host.map(|host| format!("@{host}")).unwrap_or_default())
}

/// A host and its port: what stands there and is none may be a password.
fn without_password(host: &str) -> &str {
    let end = if host.starts_with('[') { host.find(']').map(|at| at + 1) } else { host.find(':') };
    let (name, port) = host.split_at(end.unwrap_or(host.len()));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if port.strip_prefix(':').is_some_and(is_port) { host } else { name }
}
