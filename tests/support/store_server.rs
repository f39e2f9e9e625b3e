//! The server of a shared store, which a test can kill, pause and empty.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::postgres::Postgres;
use super::redis::Redis;
use super::resp::Value;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    Postgres,
}

/// A running server.
#[derive(Debug)]
pub enum StoreServer {
    Redis(Redis),
    Postgres(Postgres),
}

impl StoreServer {
    pub fn start(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Redis => Self::Redis(Redis::start()),
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
        }
    }

    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Redis(redis) => redis.socket(),
            Self::Postgres(postgres) => postgres.socket(),
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Redis(redis) => redis.url(),
            Self::Postgres(postgres) => postgres.url(),
        }
    }

    /// The URL of a proxy before this server.
    pub fn url_of_proxy(&self, proxy: SocketAddr) -> String {
        match self {
            Self::Redis(_) => format!("redis://{proxy}"),
            Self::Postgres(_) => format!("postgres://postgres@{proxy}/postgres"),
        }
    }

    /// Deletes all state.
    pub fn clear(&self) {
        match self {
            Self::Redis(redis) => drop(redis.command(&["FLUSHALL"])),
            Self::Postgres(postgres) => drop(postgres.sql("TRUNCATE sluicegate_state")),
        }
    }

    pub fn kill(&mut self) {
        match self {
            Self::Redis(redis) => redis.kill(),
            Self::Postgres(postgres) => postgres.kill(),
        }
    }

    pub fn launch(&mut self) {
        match self {
            Self::Redis(redis) => redis.launch(&["--port", "0"]),
            Self::Postgres(postgres) => postgres.launch(),
        }
    }

    /// Sends a signal to all processes of the server.
    pub fn signal(&self, name: &str) {
        match self {
            Self::Redis(redis) => redis.signal(name),
            Self::Postgres(postgres) => postgres.signal_all(name),
        }
    }

    /// The number of strict limits with permits in the store, or of permits; 0 without any.
    /// Expired permits are included.
    pub fn stored_permits(&self) -> i64 {
        match self {
            Self::Redis(redis) => {
                let Value::Array(keys) = redis.command(&["KEYS", "*{permits}:c:*"]) else {
                    panic!()
                };
                keys.iter().map(|key| redis.command(&["ZCARD", &key.text()]).int()).sum()
            }
            // A row without permits has a version byte and two empty lists.
            Self::Postgres(postgres) => postgres
                .sql(
                    "SELECT count(*) FROM sluicegate_state \
                     WHERE substring(key FROM 11 FOR 1) = 'p' AND 3 < length(value)",
                )
                .parse()
                .unwrap(),
        }
    }

    /// The Redis of a test that only Redis can pass.
    pub fn redis(&mut self) -> &mut Redis {
        match self {
            Self::Redis(redis) => redis,
            Self::Postgres(_) => panic!("the test needs Redis"),
        }
    }
}
