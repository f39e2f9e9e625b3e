//! The engine over the store of counters that the settings name.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use crate::backend::memory::Memory;
use crate::backend::redis::{self, Redis};
use crate::clock::Clock;
use crate::config::settings::{Backend, CounterKeys, Place, RedisUrl, Settings};
use crate::engine::{Engine, Local, Membership, Policy};
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
    let clock = Clock::system();
    // Another one in every life: no two begin in one nanosecond.
    let incarnation = clock.now().0;
    let membership = Membership::new(&node(settings), incarnation, settings.replicas_min.get());
    let local = Local::new(memory.clone(), Arc::new(membership));
    (Engine::new(clock, Arc::new(redis), policy).with_local(local), Some(connection))
}

/// The name of this replica.
fn node(settings: &Settings) -> String {
    if !settings.node_id.is_empty() {
        return settings.node_id.clone();
    }
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let sound = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let host: String = told.chars().filter(sound).take(HOST_AT_MOST).collect();
    let random = std::hash::RandomState::new().hash_one(0_u8);
    format!("{host}-{:08x}", random >> 32)
}

/// Characters of the host's name that are kept: with the random end, as long as `node_id` may be.
const HOST_AT_MOST: usize = 55;

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
