//! Which Redis, as whom, and how long to wait for it.
//!
//! Guarantees: no text made here has a password in it.
//! Leaves out: reading them from a URL, which is for `config::settings`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::inside::Counter;

/// Which Redis, as whom, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub place: Place,
    /// The ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Password>,
    /// The number of the database; a Cluster has 0 alone.
    pub database: u8,
    /// TLS, to everything that is spoken to; nothing speaks it without.
    pub tls: Option<Tls>,
    /// What every key begins with.
    pub key_prefix: String,
    /// How long one call may take. At least a millisecond, which is what timers can tell.
    pub deadline: Duration,
    /// Any number, another one in every process: where its jitter begins.
    pub jitter: u64,
    /// Whether questions travel together.
    pub batching: Batching,
    /// Counts the connections that carry questions.
    pub connections: Arc<Counter>,
}

/// Whether questions that come while a call is under way share the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// They do.
    #[default]
    On,
    /// Every question has a call of its own: only to measure what the other way saves.
    Off,
}

impl Options {
    /// A Redis without a password, asked for 15 ms, for keys without a prefix.
    #[must_use]
    pub fn at(place: Place) -> Self {
        Self {
            place,
            user: None,
            password: None,
            database: 0,
            tls: None,
            key_prefix: String::new(),
            deadline: Duration::from_millis(15),
            jitter: 0,
            batching: Batching::On,
            connections: Arc::default(),
        }
    }
}

/// Where a Redis is.
#[derive(Clone, Debug)]
pub enum Place {
    /// At an address.
    Tcp(Address),
    /// At a socket in the file system.
    Unix(PathBuf),
    /// Where sentinels say.
    Sentinel(Sentinels),
    /// On the nodes of a Cluster, of which these tell the others.
    Cluster(Vec<Address>),
}

/// Who knows where the primary is.
#[derive(Clone, Debug)]
pub struct Sentinels {
    /// The sentinels; at least one.
    pub addresses: Vec<Address>,
    /// What they call the primary.
    pub primary: String,
    /// Their own ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Password>,
}

/// A host's name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The host, an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A password; its debug form is blank.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// This one.
    Plain(String),
    /// What this file holds when a connection is made, without the line's end.
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("Password(…)"),
            Self::File(path) => write!(f, "Password(in {})", path.display()),
        }
    }
}

/// How TLS is spoken. Certificates are always verified. Files are read anew for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM certificates of who may sign a server's; the system's without.
    pub ca: Option<PathBuf>,
    /// Whether the system's sign as well where `ca` is there.
    pub system_roots: bool,
    /// Who we are.
    pub identity: Option<Identity>,
    /// The name that servers' certificates must be made out to; each one's host without.
    pub server_name: Option<String>,
    /// Whether a server's certificate may be made out to anybody.
    pub any_name: bool,
}

/// A client's certificate and its key, PEM both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, those that link it to its root after it.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}
