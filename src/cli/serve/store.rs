//! The engine over the store of counters that the settings name.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use crate::backend::memory::Memory;
use crate::backend::redis::{self, Redis, Stores, reference};
use crate::clock::Clock;
use crate::config::settings::{Backend, CounterKeys, Place, RedisUrl, Settings};
use crate::engine::{Engine, Local, Policy};
use crate::kernel::units::Nanos;

/// Settings of the store that do not go together.
///
/// # Errors
/// A sentence that says which.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    let Backend::Redis(_) = settings.backend else { return Ok(()) };
    if settings.backend_deadline < Nanos::MILLI {
        let got = settings.backend_deadline;
        return Err(format!(
            "`backend_deadline` {got} leaves no time to answer; at least 1ms does"
        ));
    }
    Ok(())
}

/// The engine, and what keeps its connection where it has one. `memory` counts where there is no
/// other store, and where that does not answer.
pub(super) fn engine(
    settings: &Settings,
    memory: &Arc<Memory>,
    policy: Policy,
) -> (Engine, Option<impl Future<Output = ()> + Send + 'static>) {
    let Backend::Redis(url) = &settings.backend else {
        return (Engine::new(Clock::system(), memory.clone(), policy), None);
    };
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
    let local = Local { memory: memory.clone(), replicas: settings.replicas_min.get() };
    let engine = Engine::new(Clock::system(), Arc::new(stores), policy).with_local(local);
    let both = async move {
        match second {
            Some(second) => drop(tokio::join!(connection, second)),
            None => connection.await,
        }
    };
    (engine, Some(both))
}

fn reference_of(settings: &Settings) -> reference::Options {
    let jitter = settings.expiry_jitter.0 / Nanos::SECOND.0;
    reference::Options {
        prefix: settings.reference_key_prefix.as_str().to_owned(),
        jitter_secs: u32::try_from(jitter).unwrap_or(u32::MAX),
        denied_bytes: usize::try_from(settings.local_deny_cache).unwrap_or(usize::MAX),
        stop_when_over: settings.stop_when_over,
        quota_for_all: settings.quota_mode,
        seed: random(),
    }
}

/// Any number, another one in every process.
fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0_u8)
}

/// How each Redis that `settings` name is spoken to.
pub(in crate::cli) fn all(settings: &Settings) -> Vec<redis::Options> {
    let main = match &settings.backend {
        Backend::Redis(url) => Some(url),
        Backend::Memory => None,
    };
    main.into_iter().chain(&settings.backend_per_second).map(|url| options(settings, url)).collect()
}

fn options(settings: &Settings, url: &RedisUrl) -> redis::Options {
    redis::Options {
        place: match &url.place {
            Place::Tcp(host, port) => redis::Place::Tcp(host.clone(), *port),
            Place::Unix(path) => redis::Place::Unix(path.clone()),
        },
        user: url.user.clone(),
        password: url.password.clone().map(redis::Password),
        database: url.database,
        key_prefix: settings.key_prefix.clone(),
        deadline: settings.backend_deadline.into(),
        jitter: random(),
        batching: redis::Batching::On,
    }
}
