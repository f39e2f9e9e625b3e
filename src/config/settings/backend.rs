//! Where counters live, as a person writes it.
//!
//! Guarantees: a URL is understood as a whole or refused; nothing here prints its password.
//! Leaves out: TLS, Sentinel and Cluster, which are words of a later version.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

/// Redis' own port.
const PORT: u16 = 6379;

/// Schemes of a later version.
const LATER: [&str; 5] =
    ["rediss://", "rediss+", "redis+sentinel://", "redis+cluster://", "redis-cluster://"];

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In this process.
    Memory,
    /// In a Redis.
    Redis(RedisUrl),
}

/// One Redis, and as whom to speak to it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where it is.
    pub place: Place,
    /// The ACL user; Redis' default user without.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u8,
}

/// Where a Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host's name or address, and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl RedisUrl {
    /// What `redis://user:password@host:port/database` says, or
    /// `redis+unix://user:password@/path?db=database`. `%` escapes are understood in the user, the
    /// password and the path; a password without a user is the default user's.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("redis+unix://") {
            let (who, path) = split_user(rest)?;
            let (path, database) = path.split_once("?db=").unwrap_or((path, "0"));
            let path = unescaped(path)?;
            (path.starts_with('/') && !path.contains(['?', '#', '\0']))
                .then(|| Place::Unix(path.into()))
                .and_then(|place| Self::at(place, who, database))
        } else {
            let (who, rest) = split_user(text.strip_prefix("redis://")?)?;
            let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
            Self::at(tcp(address)?, who, if database.is_empty() { "0" } else { database })
        }
    }

    fn at(place: Place, (user, password): Who, database: &str) -> Option<Self> {
        Some(Self { place, user, password, database: digits(database)?.parse().ok()? })
    }
}

type Who = (Option<String>, Option<String>);

/// Everything before the last `@`: a password may hold one, a host may not.
fn split_user(text: &str) -> Option<(Who, &str)> {
    let end = text.find('/').unwrap_or(text.len());
    let Some(at) = text.get(..end)?.rfind('@') else { return Some(((None, None), text)) };
    let (user, password) = text.get(..at)?.split_once(':')?;
    let filled = |text: &str| match unescaped(text)? {
        empty if empty.is_empty() => Some(None),
        some => Some(Some(some)),
    };
    let who = (filled(user)?, filled(password)?);
    // Redis has no user without a password to send.
    (who.1.is_some()).then_some((who, text.get(at + 1..)?))
}

fn tcp(address: &str) -> Option<Place> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None => PORT,
        Some(port) => digits(port)?.parse().ok().filter(|port| *port != 0)?,
    };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(sound);
    is_host.then(|| Place::Tcp(host.to_owned(), port))
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

/// The URL with `***` for the password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.place {
            Place::Tcp(..) => "redis",
            Place::Unix(_) => "redis+unix",
        };
        write!(f, "{scheme}://")?;
        if self.password.is_some() {
            write!(f, "{}:***@", self.user.as_deref().unwrap_or_default())?;
        }
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}")?,
            Place::Tcp(host, port) => write!(f, "{host}:{port}")?,
            Place::Unix(path) => write!(f, "{}", path.display())?,
        }
        match (&self.place, self.database) {
            (_, 0) => Ok(()),
            (Place::Tcp(..), database) => write!(f, "/{database}"),
            (Place::Unix(_), database) => write!(f, "?db={database}"),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

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
        "memory, redis://user:password@host:port/database or redis+unix:///path".to_owned()
    }
    fn show(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Redis(url) => quoted(&url.to_string()),
        }
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(memory|redis://.+|redis\\+unix://.*/.+)$"})
    }
    fn is_later(text: &str) -> bool {
        LATER.iter().any(|scheme| text.starts_with(scheme))
    }
    fn masked(text: &str) -> String {
        text.rfind('@').map_or_else(|| text.to_owned(), |at| format!("…{}", &text[at..]))
    }
}
