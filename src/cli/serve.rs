//! `sluicegate serve`: the listeners, the engine and the limits, wired together until told to stop.
//!
//! Guarantees: a port that is taken or limits that do not load end the process at once, in words; a
//! task that dies takes the process with it, because half a service is worse than none; SIGTERM
//! drains (see [`drain`]) and exits with 0.
//! Leaves out: what any of the parts does.

mod drain;
mod listeners;
mod log;

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Outcome, Terminal};
use crate::backend::memory::{self, Memory};
use crate::clock::Clock;
use crate::config::settings::{self, ResponseHeaders, Settings};
use crate::edge::health::{Health, Ready};
use crate::edge::{Reporting, grpc, headers};
use crate::engine::{CounterKeys, Engine, Overrides, Planning, Policy};
use crate::kernel::units::Nanos;
use drain::{Ends, Phase, Times};
use listeners::Listeners;

/// How long a full round of sweeps over the memory backend takes.
const SWEEP_ROUND: Duration = Duration::from_secs(60);

/// Why serving did not begin, or ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// What the operating system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Ports.
    #[error("{}", .0.join("\n"))]
    Ports(Vec<String>),
    /// Limits that do not load.
    #[error("{0}")]
    Limits(String),
    /// A part that ended on its own.
    #[error("{0}; ending, for half a service is worse than none")]
    Part(String),
}

/// Serves until it is told to stop.
pub(super) fn serve(settings: &Settings, terminal: &mut Terminal<'_>) -> std::io::Result<Outcome> {
    log::start(settings.log_level, settings.log_format);
    let served = runtime(settings).map_err(Failure::from).and_then(|runtime| {
        let served = runtime.block_on(run(settings, terminal));
        // What is still under way has had its time, `drain_timeout`.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => Ok(Outcome::Yes),
        Err(failure) => {
            writeln!(terminal.err, "{failure}")?;
            Ok(if matches!(failure, Failure::Limits(_)) {
                Outcome::No
            } else {
                Outcome::CouldNotSay
            })
        }
    }
}

fn runtime(settings: &Settings) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = usize::try_from(settings.threads).ok().filter(|threads| *threads > 0) {
        builder.worker_threads(threads);
    }
    builder.enable_all().build()
}

async fn run(settings: &Settings, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    // Before anything else, so that a signal that comes while starting is not lost.
    let ends = Ends::listen()?;
    let listeners = Listeners::bind(settings).await.map_err(Failure::Ports)?;
    for line in listeners.lines() {
        writeln!(terminal.out, "{line}")?;
    }
    let memory = Arc::new(memory_of(settings));
    let engine = Arc::new(Engine::new(Clock::system(), memory.clone(), policy_of(settings)));
    let health =
        Health::new(if settings.healthy_with_config { Ready::NoConfig } else { Ready::Yes });
    let (phase, finishing) = watch::channel(Phase::Serving);
    let mut parts = JoinSet::new();
    let grpc = grpc::Grpc {
        engine: Arc::clone(&engine),
        reporting: reporting_of(settings),
        health: health.clone(),
        reflection: true,
    };
    let grpc = grpc::serve(listeners.grpc, grpc, drain::finishing(finishing.clone()));
    parts.spawn(async move { grpc.await.map_err(|error| Failure::Part(error.to_string())) });
    let sweeping = tokio::spawn(sweep(memory, engine));
    writeln!(terminal.out, "ready")?;
    terminal.out.flush()?;
    let times = Times { delay: settings.drain_delay.into(), finish: settings.drain_timeout.into() };
    tokio::select! {
        ended = all_end(&mut parts) => ended?,
        () = drain::lead(ends, health, phase, times) => {}
    }
    sweeping.abort();
    Ok(())
}

/// Waits for every part; the first failure ends the wait.
async fn all_end(parts: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = parts.join_next().await {
        ended.map_err(|died| Failure::Part(format!("a task died: {died}")))??;
    }
    Ok(())
}

fn memory_of(settings: &Settings) -> Memory {
    let when_full = match settings.when_full {
        settings::WhenFull::Deny => memory::WhenFull::Deny,
        settings::WhenFull::Allow => memory::WhenFull::Allow,
    };
    let most = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
    Memory::new(most, when_full, secret())
}

/// Sixteen bytes that nobody outside knows: the standard library seeds its hashers from the system.
fn secret() -> [u8; 16] {
    let random = std::hash::RandomState::new();
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&random.hash_one(0_u8).to_le_bytes());
    secret[8..].copy_from_slice(&random.hash_one(1_u8).to_le_bytes());
    secret
}

fn policy_of(settings: &Settings) -> Policy {
    let keys = match settings.counter_keys {
        settings::CounterKeys::Injective => CounterKeys::Injective,
        settings::CounterKeys::Envoyproxy => CounterKeys::Envoyproxy,
    };
    let overrides = match settings.overrides {
        settings::Overrides::Allow => Overrides::Allow,
        settings::Overrides::Deny => Overrides::Deny,
        settings::Overrides::Max => Overrides::Max,
    };
    let planning = Planning { keys, overrides, quota_for_all: settings.quota_mode };
    Policy { planning, shadow: settings.shadow_mode }
}

fn reporting_of(settings: &Settings) -> Reporting {
    let chosen = settings.response_headers;
    let reference = matches!(chosen, ResponseHeaders::Reference | ResponseHeaders::All);
    let names = || headers::Names {
        limit: settings.limit_header.as_str().into(),
        remaining: settings.remaining_header.as_str().into(),
        reset: settings.reset_header.as_str().into(),
    };
    Reporting {
        headers: headers::Headers {
            reference: reference.then(names),
            draft: matches!(chosen, ResponseHeaders::Draft | ResponseHeaders::All),
            retry_after: settings.retry_after,
        },
        dynamic_metadata: settings.dynamic_metadata,
        negative_hits: settings.negative_hits,
    }
}

/// Drops rested counters, a shard at a time, and says once a round when keys found no room.
async fn sweep(memory: Arc<Memory>, engine: Arc<Engine>) {
    let shards = u32::try_from(Memory::SHARDS).unwrap_or(u32::MAX);
    let mut ticks = tokio::time::interval(SWEEP_ROUND / shards);
    let mut told = 0;
    loop {
        for _ in 0..shards {
            ticks.tick().await;
            memory.sweep_next(engine.clock().now());
        }
        let full = memory.times_full();
        if full > told {
            tracing::warn!(
                times = full - told,
                max_keys = memory.max_keys(),
                "new keys found no room; raise max_keys, or see which descriptor has so many values"
            );
            told = full;
        }
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}
