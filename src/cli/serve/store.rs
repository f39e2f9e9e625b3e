//! Creates the engine and the store that the settings name.

use std::hash::BuildHasher as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::counters::LocalCounters;
use crate::config::settings::{
    FileSync, HostPort, KeyFormat, Overrides, PostgresDurability, PostgresPrepare, PostgresUrl,
    RedisEndpoint, RedisProxy, RedisUrl, SecretText, Settings, StoreUrl,
};
use crate::engine::fleet::reporter::{FleetReporter, SharePace};
use crate::engine::{DecisionPolicy, Engine, LocalFallback, Membership};
use crate::kernel::units::Nanos;
use crate::store::Store;
use crate::store::postgres::{
    self, ConnectError, Durability, PostgresOptions, PostgresStore, Preparation,
};
use crate::store::redis::{self, RedisStore, StoreGroup, reference};

/// Validates the rules that involve several settings of the store.
///
/// # Errors
/// A message with the violated rule and the values of its settings.
pub(super) fn check_settings(settings: &Settings) -> Result<(), String> {
    let waits_for_store = settings.store.url.is_shared()
        || matches!(settings.store.url, StoreUrl::File(_))
            && settings.store.file.sync == FileSync::Always;
    if !waits_for_store {
        return Ok(());
    }
    if settings.store.call_timeout() < Nanos::MILLI {
        let got = settings.store.call_timeout();
        return Err(format!("`store.timeout` {got} is too short for a reply; set at least 1ms"));
    }
    let (heartbeat, share_lifetime) = (settings.fleet.heartbeat, settings.fleet.share_expiry);
    if heartbeat < MIN_HEARTBEAT || share_lifetime.0 < heartbeat.0.saturating_mul(3) {
        return Err(format!(
            "`fleet.heartbeat` {heartbeat} and `fleet.share_expiry` {share_lifetime}: set a heartbeat of \
             at least {MIN_HEARTBEAT}, and a share expiry of at least three heartbeats"
        ));
    }
    Ok(())
}

/// Returns `true` if the ports open after the first answer of a shared store.
pub(super) fn waits_for_answer(settings: &Settings) -> bool {
    settings.store.url.is_shared() && settings.store.start_timeout.get().is_some()
}

/// The shortest heartbeat interval. With a shorter one, store calls that time out could fill all
/// the time between two heartbeats.
const MIN_HEARTBEAT: Nanos = Nanos(100 * Nanos::MILLI.0);

/// The task that keeps the connections of a store open.
pub(super) type StoreConnections = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates the engine and, with a shared store, the task of its connections. `counters` are the
/// store without a shared one, and else the store of the fallback `local`.
pub(super) fn create_engine(
    settings: &Settings,
    counters: LocalCounters,
    policy: DecisionPolicy,
) -> (Engine, Option<StoreConnections>) {
    let (store, connections): (Arc<dyn Store>, StoreConnections) = match &settings.store.url {
        StoreUrl::Memory | StoreUrl::File(_) => {
            let engine = Engine::new(counters.clock, counters.store, policy);
            let most = usize::try_from(settings.store.max_buckets).unwrap_or(usize::MAX);
            let engine = engine.with_store_kind(store_kind(&settings.store.url));
            return (engine.with_max_buckets(most, random_u64()), None);
        }
        StoreUrl::Redis(url) => {
            let (stores, connections) = create_stores(settings, url);
            (Arc::new(stores), Box::pin(connections))
        }
        StoreUrl::Postgres(url) => {
            let (store, connections) = PostgresStore::new(postgres_options(settings, url));
            (Arc::new(store), Box::pin(connections))
        }
    };
    let LocalCounters { memory, clock, .. } = counters;
    // The start time is a unique incarnation, because no two starts share a nanosecond.
    let incarnation = clock.now().0;
    let membership =
        Membership::new(&replica_name(settings), incarnation, settings.fleet.min_replicas.get());
    let membership = Arc::new(membership);
    let pace = SharePace {
        heartbeat: settings.fleet.heartbeat,
        share_duration: settings.fleet.share_expiry,
    };
    let call_timeout = Duration::from(settings.store.call_timeout());
    let fleet = FleetReporter::new(membership.clone(), clock.now(), pace, call_timeout);
    let local = LocalFallback::new(memory, membership);
    let engine = Engine::new(clock, store, policy).with_local_fallback(local);
    let (most, jitter) =
        (usize::try_from(settings.store.max_buckets).unwrap_or(usize::MAX), random_u64());
    let engine = engine.with_max_buckets(most, jitter).with_fleet(Arc::new(fleet));
    let engine = engine.with_store_kind(store_kind(&settings.store.url));
    (engine, Some(connections))
}

/// Returns the kind of the store, for the admin pages.
const fn store_kind(url: &StoreUrl) -> &'static str {
    match url {
        StoreUrl::Memory => "memory",
        StoreUrl::File(_) => "file",
        StoreUrl::Redis(_) => "redis",
        StoreUrl::Postgres(_) => "postgres",
    }
}

fn create_stores(
    settings: &Settings,
    url: &RedisUrl,
) -> (StoreGroup, impl Future<Output = ()> + Send + 'static) {
    let (redis, connection) = RedisStore::new(redis_options(settings, url));
    let mut stores = StoreGroup::new(redis);
    let mut second = None;
    if let Some(url) = &settings.compat.store.per_second_url {
        let (redis, connection) = RedisStore::new(redis_options(settings, url));
        stores = stores.with_per_second(redis);
        second = Some(connection);
    }
    if settings.compat.store.key_format == KeyFormat::Compat {
        stores = stores.with_reference(compat_options(settings));
    }
    let connections = async move {
        match second {
            Some(second) => drop(tokio::join!(connection, second)),
            None => connection.await,
        }
    };
    (stores, connections)
}

fn compat_options(settings: &Settings) -> reference::CompatOptions {
    let jitter = settings.compat.store.expiry_jitter.0 / Nanos::SECOND.0;
    reference::CompatOptions {
        prefix: settings.compat.store.key_prefix.as_str().to_owned(),
        jitter_secs: u32::try_from(jitter).unwrap_or(u32::MAX),
        deny_cache_bytes: settings
            .compat
            .store
            .deny_cache
            .get()
            .map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        stop_when_over: settings.compat.store.stop_when_over,
        quota_for_all: settings.compat.limits.quota_mode,
        keys_have_several_limits: settings.limits.overrides == Overrides::Lower,
        seed: random_u64(),
    }
}

/// Returns a random number, which differs between processes.
fn random_u64() -> u64 {
    std::hash::RandomState::new().hash_one(0_u8)
}

pub(super) fn random_uuid() -> String {
    let (high, low) = (random_u64(), random_u64());
    let (version, variant) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 2 << 62);
    let (first, second) = (version >> 32, version >> 16 & 0xffff);
    let (fourth, last) = (variant >> 48, variant & 0xffff_ffff_ffff);
    format!("{first:08x}-{second:04x}-{:04x}-{fourth:04x}-{last:012x}", version & 0xffff)
}

pub(super) fn replica_name(settings: &Settings) -> String {
    if !settings.fleet.replica_name.is_empty() {
        return settings.fleet.replica_name.clone();
    }
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let host: String = host_name.chars().filter(is_allowed).take(MAX_HOST_LEN).collect();
    format!("{host}-{:08x}", random_u64() >> 32)
}

/// The maximum length of the host name in a generated replica name, which then has 64 characters,
/// the maximum of `fleet.replica_name`.
const MAX_HOST_LEN: usize = 55;

pub(in crate::cli) fn all_redis_options(settings: &Settings) -> Vec<redis::RedisOptions> {
    let main = match &settings.store.url {
        StoreUrl::Redis(url) => Some(url),
        StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Postgres(_) => None,
    };
    main.into_iter()
        .chain(&settings.compat.store.per_second_url)
        .map(|url| redis_options(settings, url))
        .collect()
}

/// Returns the options of the Redis with the fleet; `None` if `store.url` names another store.
pub(in crate::cli) fn main_redis_options(settings: &Settings) -> Option<redis::RedisOptions> {
    match &settings.store.url {
        StoreUrl::Redis(url) => Some(redis_options(settings, url)),
        StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Postgres(_) => None,
    }
}

fn redis_options(settings: &Settings, url: &RedisUrl) -> redis::RedisOptions {
    redis::RedisOptions {
        user: url.user.clone(),
        password: redis_password(url.password.as_deref(), settings.store.password_file.as_deref()),
        database: url.database,
        tls: url.tls.then(|| redis_tls(settings)),
        key_prefix: settings.store.key_prefix.clone(),
        call_timeout: settings.store.call_timeout().into(),
        jitter_seed: random_u64(),
        proxy: match settings.store.redis.proxy {
            RedisProxy::Auto => redis::ProxyMode::Auto,
            RedisProxy::On => redis::ProxyMode::On,
            RedisProxy::Off => redis::ProxyMode::Off,
        },
        ..redis::RedisOptions::new(redis_topology(&url.endpoint, Some(settings)))
    }
}

/// Returns the addresses of a Redis. The login of sentinels is that of the store, in `settings`.
pub(super) fn redis_topology(
    endpoint: &RedisEndpoint,
    settings: Option<&Settings>,
) -> redis::RedisTopology {
    let addresses = |list: &[HostPort]| list.iter().map(redis_address).collect();
    match endpoint {
        RedisEndpoint::Tcp(at) => redis::RedisTopology::Tcp(redis_address(at)),
        RedisEndpoint::Unix(path) => redis::RedisTopology::Unix(path.clone()),
        RedisEndpoint::Cluster(nodes) => redis::RedisTopology::Cluster(addresses(nodes)),
        RedisEndpoint::Sentinel(sentinels, primary) => {
            redis::RedisTopology::Sentinel(redis::SentinelOptions {
                addresses: addresses(sentinels),
                primary_name: primary.clone(),
                user: settings
                    .map(|settings| settings.store.sentinel.user.clone())
                    .filter(|user| !user.is_empty()),
                password: settings.and_then(sentinel_password),
            })
        }
    }
}

fn sentinel_password(settings: &Settings) -> Option<redis::Password> {
    redis_password(
        settings.compat.store.sentinel_password.as_ref().map(SecretText::reveal),
        settings.store.sentinel.password_file.as_deref(),
    )
}

fn redis_address(address: &HostPort) -> redis::Address {
    redis::Address { host: address.host.clone(), port: address.port }
}

fn redis_password(plain: Option<&str>, file: Option<&Path>) -> Option<redis::Password> {
    let plain = plain.map(|text| redis::Password::Plain(text.to_owned()));
    plain.or_else(|| file.map(|path| redis::Password::File(path.to_owned())))
}

fn redis_tls(settings: &Settings) -> redis::RedisTls {
    let files = (&settings.store.tls.cert_file, &settings.store.tls.key_file);
    redis::RedisTls {
        ca_file: settings.store.tls.ca_file.clone(),
        trusts_system_cas: settings.compat.system_cas,
        client_identity: match files {
            (Some(certificate), Some(key)) => {
                Some(redis::ClientIdentity { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        },
        server_name: settings.store.tls.server_name.as_ref().map(|name| name.as_str().to_owned()),
        accepts_any_name: settings.compat.store.any_server_name,
    }
}

/// Returns the options of the PostgreSQL store; `None` if the settings name another store.
pub(in crate::cli) fn all_postgres_options(settings: &Settings) -> Option<PostgresOptions> {
    match &settings.store.url {
        StoreUrl::Postgres(url) => Some(postgres_options(settings, url)),
        StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Redis(_) => None,
    }
}

fn postgres_options(settings: &Settings, url: &PostgresUrl) -> PostgresOptions {
    PostgresOptions {
        password: redis_password(None, settings.store.password_file.as_deref()),
        tls: url.tls.then(|| redis_tls(settings)),
        key_prefix: settings.store.key_prefix.clone(),
        call_timeout: settings.store.call_timeout().into(),
        connections: usize::try_from(settings.store.postgres.connections.get().get())
            .unwrap_or(usize::MAX),
        prepare: match settings.store.postgres.prepare {
            PostgresPrepare::Auto => Preparation::Auto,
            PostgresPrepare::On => Preparation::Always,
            PostgresPrepare::Off => Preparation::Never,
        },
        jitter_seed: random_u64(),
        ..PostgresOptions::new(url.server.clone())
    }
}

/// Returns the durability of the tables, from the settings.
pub(in crate::cli) const fn postgres_durability(settings: &Settings) -> Durability {
    match settings.store.postgres.durability {
        PostgresDurability::Full => Durability::Full,
        PostgresDurability::Unlogged => Durability::Unlogged,
    }
}

/// Prepares the tables in PostgreSQL: creates or upgrades them with `migrate`, else verifies their
/// version. A server that is unreachable is no error without `migrate`.
///
/// # Errors
/// The schema has another version, or the migration failed.
pub(super) async fn prepare_schema(settings: &Settings, migrate: bool) -> Result<(), String> {
    let Some(options) = all_postgres_options(settings) else {
        return if migrate { Err(migrate_needs_postgres()) } else { Ok(()) };
    };
    if migrate {
        let durability = Some(postgres_durability(settings));
        let migrated = postgres::migrate(&options, durability).await;
        return migrated.map(drop).map_err(|error| format!("the migration failed: {error}"));
    }
    match postgres::verify_schema(&options).await {
        Err(ConnectError::WrongSchema(why)) => Err(why),
        // The store logs a server that it cannot reach, and connects later.
        Ok(()) | Err(ConnectError::Refused(_)) => Ok(()),
    }
}

/// The error of a migration for another store.
pub(in crate::cli) fn migrate_needs_postgres() -> String {
    "only PostgreSQL has tables to migrate; set --store-url to postgres://…".to_owned()
}
