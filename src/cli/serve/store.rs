//! The engine over the store of counters that the settings name.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use crate::backend::memory::Memory;
use crate::backend::redis::{self, Redis};
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
    if settings.counter_keys == CounterKeys::Envoyproxy {
        let why = "`counter_keys: envoyproxy` with a Redis is not in this version yet";
        return Err(format!("{why}; use `counter_keys: injective`"));
    }
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
    let local = Local { memory: memory.clone(), replicas: settings.replicas_min.get() };
    let engine = Engine::new(Clock::system(), Arc::new(redis), policy).with_local(local);
    (engine, Some(connection))
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
        jitter: std::hash::RandomState::new().hash_one(0_u8),
        batching: redis::Batching::On,
    }
}
