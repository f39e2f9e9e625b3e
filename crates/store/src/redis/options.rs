//! The options of the connections to a Redis store.
//!
//! Guarantees:
//! - No debug or display text contains a password.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::stats::ConnectionCounter;

/// The options of one Redis store.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The addresses of Redis: one server, sentinels or a Cluster.
    pub topology: RedisTopology,
    /// The ACL user of Redis; `None` uses the default user.
    pub user: Option<String>,
    /// The password of the ACL user.
    pub password: Option<Password>,
    /// The number of the Redis database; a Cluster has only database 0.
    pub database: u8,
    /// The TLS options for all connections; `None` uses no TLS.
    pub tls: Option<RedisTls>,
    /// The prefix of every key in Redis.
    pub key_prefix: String,
    /// The timeout of one store call: at least 1 ms, the resolution of the timers.
    pub call_timeout: Duration,
    /// The seed of random pauses, different in every process.
    pub jitter_seed: u64,
    /// The batching of checks into store calls.
    pub batching: Batching,
    /// Whether a proxy is in front of several servers.
    pub proxy: ProxyMode,
    /// Counts the connections over which checks are sent.
    pub connection_counter: Arc<ConnectionCounter>,
}

/// Turns the batching of checks into store calls on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// Checks that arrive during a store call share the next call.
    #[default]
    On,
    /// Every check has its own call; only for measuring the effect of batching.
    Off,
}

/// A proxy such as twemproxy, Codis or Envoy, which routes each call by its first key to one of
/// several servers. Each call then has one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// There is a proxy if the server does not know `SCRIPT` or `INFO`.
    #[default]
    Auto,
    /// There is a proxy.
    On,
    /// There is none, or it has only one server and forwards all commands.
    Off,
}

impl RedisOptions {
    /// Returns options without a password or a key prefix, with a call timeout of 15 ms.
    #[must_use]
    pub fn new(topology: RedisTopology) -> Self {
        Self {
            topology,
            user: None,
            password: None,
            database: 0,
            tls: None,
            key_prefix: String::new(),
            call_timeout: Duration::from_millis(15),
            jitter_seed: 0,
            batching: Batching::On,
            proxy: ProxyMode::Auto,
            connection_counter: Arc::default(),
        }
    }
}

/// The addresses of a Redis store.
#[derive(Clone, Debug)]
pub enum RedisTopology {
    /// A TCP address.
    Tcp(Address),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// The primary that Redis Sentinel names.
    Sentinel(SentinelOptions),
    /// Nodes of a Redis Cluster; they name the other nodes.
    Cluster(Vec<Address>),
}

/// The Redis Sentinel processes that watch a primary.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    /// The addresses of the sentinels; at least one.
    pub addresses: Vec<Address>,
    /// The sentinels' name of the primary.
    pub primary_name: String,
    /// The ACL user for connections to the sentinels.
    pub user: Option<String>,
    /// The password of the sentinels' ACL user.
    pub password: Option<Password>,
}

/// The host and the port of a Redis server or sentinel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The host name or address; an IPv6 address has no brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A password, which its debug form omits.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The text of the password.
    Plain(String),
    /// A file whose only line is the password, read for each connection.
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

/// The TLS options. Certificates are always verified, and all files are read for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// The CA bundle (PEM) that verifies servers. Default: the system's CAs.
    pub ca_file: Option<PathBuf>,
    /// Also trust the system's CAs if `ca_file` is set.
    pub trusts_system_cas: bool,
    /// The client certificate.
    pub client_identity: Option<ClientIdentity>,
    /// The name that server certificates must contain. Default: the host of each server.
    pub server_name: Option<String>,
    /// Accept a server certificate with any name.
    pub accepts_any_name: bool,
}

/// A client certificate and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}
