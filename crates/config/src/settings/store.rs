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

use super::masked_url::masked;
use super::percent::decode_percent;
use super::postgres_url::PostgresUrl;
use super::redis_url::{ACCEPTED, RedisUrl, URLS, missing_scheme};
use super::url_cause::cause_of;
use super::value::{Value, quoted};

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

const FILE_SCHEME: &str = "file://";

/// Returns the directory of a URL such as `file:///var/lib/sluicegate`. `%` escapes are decoded.
fn parse_directory(url: &str) -> Option<PathBuf> {
    let path = decode_percent(url.strip_prefix(FILE_SCHEME)?)?;
    let is_directory = path.starts_with('/') && !path.trim_matches('/').is_empty();
    (is_directory && !path.contains(['?', '#', '\0'])).then(|| path.into())
}

const POSTGRES_ACCEPTED: &str =
    "postgres://user:password@host:port,host:port/database?sslmode=disable|require";

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
