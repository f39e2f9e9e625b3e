//! The options of the connections to PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::redis::{Password, RedisTls};
use crate::stats::ConnectionCounter;

/// The options of a PostgreSQL store.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Hosts, user, database and parameters, from `store.url`.
    pub server: tokio_postgres::Config,
    /// The password if `server` has none.
    pub password: Option<Password>,
    /// The TLS options; `None` uses no TLS.
    pub tls: Option<RedisTls>,
    /// The prefix of every key.
    pub key_prefix: String,
    /// The timeout of one store call.
    pub call_timeout: Duration,
    /// The number of connections; at least 1.
    pub connections: usize,
    /// Prepare statements once per connection.
    pub prepare: Preparation,
    /// The seed of random pauses, different in every process.
    pub jitter_seed: u64,
    /// Counts the connections.
    pub connection_counter: Arc<ConnectionCounter>,
}

/// The use of prepared statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Prepare, unless a pooler gives each transaction another server connection.
    Auto,
    /// Prepare always.
    Always,
    /// Never prepare.
    Never,
}

impl PostgresOptions {
    /// Returns options with 4 connections, without TLS and key prefix, and with a call timeout of
    /// 15 ms.
    #[must_use]
    pub fn new(server: tokio_postgres::Config) -> Self {
        Self {
            server,
            password: None,
            tls: None,
            key_prefix: String::new(),
            call_timeout: Duration::from_millis(15),
            connections: 4,
            prepare: Preparation::Auto,
            jitter_seed: 0,
            connection_counter: Arc::default(),
        }
    }
}

/// The client library's form of the configuration omits the password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("server", &self.server).finish_non_exhaustive()
    }
}
