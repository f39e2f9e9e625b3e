//! Creates the engine and the store that the settings name.

use std::hash::BuildHasher as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::Memory;
use crate::backend::redis::{self, Redis, Stores, reference};
use crate::clock::Clock;
use crate::config::settings::{
    Address, Backend, CounterKeys, Overrides, Place, RedisUrl, Secret, Settings,
};
use crate::engine::admit::fleet::{Fleet, Pace};
use crate::engine::{Engine, Local, Membership, Policy};
use crate::kernel::units::Nanos;

/// Checks rules that involve several settings of the store.
///
/// # Errors
/// The rule and the values that break it.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    let Backend::Redis(_) = settings.backend else { return Ok(()) };
    if settings.backend_deadline < Nanos::MILLI {
        let got = settings.backend_deadline;
        return Err(format!(
            "`backend_deadline` {got} leaves no time to answer; at least 1ms does"
        ));
    }
    let (heartbeat, term) = (settings.fleet_heartbeat, settings.fleet_term);
    if heartbeat < SHORTEST_HEARTBEAT || term.0 < heartbeat.0.saturating_mul(3) {
        return Err(format!(
            "`fleet_heartbeat` {heartbeat} and `fleet_term` {term}: heartbeats take at least \
             {SHORTEST_HEARTBEAT}, and a term at least three of them"
        ));
    }
    Ok(())
}

/// Below this interval, timeouts of store calls could fill all the time.
const SHORTEST_HEARTBEAT: Nanos = Nanos(100 * Nanos::MILLI.0);

/// Creates the engine, and the task of its store connections, if any.
/// `memory` is the store without Redis, and the fallback store with Redis.
pub(super) fn engine(
    settings: &Settings,
    memory: &Arc<Memory>,
    policy: Policy,
) -> (Engine, Option<impl Future<Output = ()> + Send + 'static>) {
    let Backend::Redis(url) = &settings.backend else {
        let engine = Engine::new(Clock::system(), memory.clone(), policy);
        let most = usize::try_from(settings.max_buckets).unwrap_or(usize::MAX);
        return (engine.with_buckets(most, random()), None);
    };
    let (stores, connections) = stores(settings, url);
    let clock = Clock::system();
    // Differs in every start: no two starts share a nanosecond.
    let incarnation = clock.now().0;
    let membership = Membership::new(&node(settings), incarnation, settings.replicas_min.get());
    let membership = Arc::new(membership);
    let pace = Pace { heartbeat: settings.fleet_heartbeat, term: settings.fleet_term };
    let patience = Duration::from(settings.backend_deadline);
    let fleet = Fleet::new(Arc::clone(&membership), clock.now(), pace, patience);
    let local = Local::new(memory.clone(), membership);
    let engine = Engine::new(clock, Arc::new(stores), policy).with_local(local);
    let (most, jitter) = (usize::try_from(settings.max_buckets).unwrap_or(usize::MAX), random());
    let engine = engine.with_buckets(most, jitter).with_fleet(Arc::new(fleet));
    (engine, Some(connections))
}

fn stores(
    settings: &Settings,
    url: &RedisUrl,
) -> (Stores, impl Future<Output = ()> + Send + 'static) {
    let (redis, connection) = Redis::new(options(settings, url));
    let mut stores = Stores::new(redis);
    let mut second = None;
    if let Some(url) = &settings.backend_per_second {
        let (redis, connection) = Redis::new(options(settings, url));
        stores = stores.with_per_second(redis);
        second = Some(connection);
    }
    if settings.counter_keys == CounterKeys::Envoyproxy {
        stores = stores.with_reference(reference_of(settings));
    }
    let connections = async move {
        match second {
            Some(second) => drop(tokio::join!(connection, second)),
            None => connection.await,
        }
    };
    (stores, connections)
}

fn reference_of(settings: &Settings) -> reference::Options {
    let jitter = settings.expiry_jitter.0 / Nanos::SECOND.0;
    reference::Options {
        prefix: settings.reference_key_prefix.as_str().to_owned(),
        jitter_secs: u32::try_from(jitter).unwrap_or(u32::MAX),
        denied_bytes: usize::try_from(settings.local_deny_cache).unwrap_or(usize::MAX),
        stop_when_over: settings.stop_when_over,
        quota_for_all: settings.quota_mode,
        several_limits: settings.overrides == Overrides::Max,
        seed: random(),
    }
}

/// Returns a random number, which differs between processes.
fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0_u8)
}

pub(super) fn instance() -> String {
    let (high, low) = (random(), random());
    let (version, variant) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 2 << 62);
    let (first, second) = (version >> 32, version >> 16 & 0xffff);
    let (fourth, last) = (variant >> 48, variant & 0xffff_ffff_ffff);
    format!("{first:08x}-{second:04x}-{:04x}-{fourth:04x}-{last:012x}", version & 0xffff)
}

fn node(settings: &Settings) -> String {
    if !settings.node_id.is_empty() {
        return settings.node_id.clone();
    }
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let sound = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let host: String = told.chars().filter(sound).take(HOST_AT_MOST).collect();
    format!("{host}-{:08x}", random() >> 32)
}

/// The maximum length of the host part. The name then has 64 characters, the maximum of `node_id`.
const HOST_AT_MOST: usize = 55;

pub(in crate::cli) fn all(settings: &Settings) -> Vec<redis::Options> {
    let main = match &settings.backend {
        Backend::Redis(url) => Some(url),
        Backend::Memory => None,
    };
    main.into_iter().chain(&settings.backend_per_second).map(|url| options(settings, url)).collect()
}

fn options(settings: &Settings, url: &RedisUrl) -> redis::Options {
    redis::Options {
        user: url.user.clone(),
        password: password(url.password.as_deref(), settings.backend_password_file.as_deref()),
        database: url.database,
        tls: url.tls.then(|| tls(settings)),
        key_prefix: settings.key_prefix.clone(),
        deadline: settings.backend_deadline.into(),
        jitter: random(),
        ..redis::Options::at(place(settings, &url.place))
    }
}

fn place(settings: &Settings, place: &Place) -> redis::Place {
    let addresses = |list: &[Address]| list.iter().map(address).collect();
    match place {
        Place::Tcp(at) => redis::Place::Tcp(address(at)),
        Place::Unix(path) => redis::Place::Unix(path.clone()),
        Place::Cluster(nodes) => redis::Place::Cluster(addresses(nodes)),
        Place::Sentinel(sentinels, primary) => redis::Place::Sentinel(redis::Sentinels {
            addresses: addresses(sentinels),
            primary: primary.clone(),
            user: Some(settings.backend_sentinel_user.clone()).filter(|user| !user.is_empty()),
            password: password(
                settings.backend_sentinel_password.as_ref().map(Secret::reveal),
                settings.backend_sentinel_password_file.as_deref(),
            ),
        }),
    }
}

fn address(of: &Address) -> redis::Address {
    redis::Address { host: of.host.clone(), port: of.port }
}

fn password(plain: Option<&str>, file: Option<&Path>) -> Option<redis::Password> {
    let plain = plain.map(|text| redis::Password::Plain(text.to_owned()));
    plain.or_else(|| file.map(|path| redis::Password::File(path.to_owned())))
}

fn tls(settings: &Settings) -> redis::Tls {
    let files = (&settings.backend_tls_cert_file, &settings.backend_tls_key_file);
    redis::Tls {
        ca: settings.backend_tls_ca_file.clone(),
        system_roots: settings.backend_tls_system_roots,
        identity: match files {
            (Some(certificate), Some(key)) => {
                Some(redis::Identity { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        },
        server_name: settings.backend_tls_server_name.as_ref().map(|name| name.as_str().to_owned()),
        any_name: settings.backend_tls_any_name,
    }
}
