//! Implements `sluicegate serve`, which starts the listeners, the engine and the configuration
//! source.
//!
//! Guarantees:
//! - A port in use or invalid limits end the process at once, with an error.
//! - If a task fails, the process ends, because a partial service would be worse.
//! - SIGTERM drains (see [`drain`]), then exits with 0.
//!
//! Not covered:
//! - The behavior of the listeners, the engine and the source.

mod connections;
mod counters;
mod drain;
mod events;
mod first_answer;
mod gauges;
mod limits;
mod listeners;
mod log;
mod mirror;
mod peers;
mod policies;
mod ports;
mod startup_probes;
mod stats;
pub(super) mod store;
mod store_conflicts;
mod summary;
mod tables;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::ratelimit::VariableNote;
use super::{CommandOutcome, Terminal, doctor};
use crate::config::settings::Settings;
use crate::edge::body_memory::BodyLimits;
use crate::edge::health::{Health, Readiness};
use crate::engine::Engine;
use crate::source::{LoadFailure, PublishedConfig};
use crate::telemetry::otlp::OtlpExporters;
use drain::{DrainPhase, DrainTimes, OnHangup, ShutdownSignals};
use listeners::StartupListeners;
use policies::engine_policy;
use ports::ServiceContext;
use summary::print_summary;
use tasks::{ServeError, ServiceTasks};

/// The timeout for returning the balances of leases at shutdown.
const LEASE_RETURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout for forwarding releases to other replicas at shutdown.
const RELEASE_FORWARD_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn serve(
    settings: &Settings,
    migrate: bool,
    notes: &[VariableNote],
    terminal: &mut Terminal<'_>,
) -> std::io::Result<CommandOutcome> {
    log::start(&settings.telemetry.log);
    for VariableNote { variable, line } in notes {
        tracing::warn!("{variable}: {line}");
    }
    let served = runtime().map_err(ServeError::from).and_then(|runtime| {
        let served = runtime.block_on(run(settings, migrate, terminal));
        // Do not wait for requests in flight: they have already had `listen.drain_timeout` to
        // finish.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => Ok(CommandOutcome::Success),
        Err(failure) => {
            writeln!(terminal.err, "{failure}")?;
            Ok(if matches!(failure, ServeError::InvalidLimits(_)) {
                CommandOutcome::Negative
            } else {
                CommandOutcome::Failed
            })
        }
    }
}

/// Creates the runtime, with one worker thread for each CPU. The environment variable
/// `TOKIO_WORKER_THREADS` sets another number.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

async fn run(
    settings: &Settings,
    migrate: bool,
    terminal: &mut Terminal<'_>,
) -> Result<(), ServeError> {
    let on_hangup =
        if settings.compat.listen.like_ratelimit { OnHangup::Stop } else { OnHangup::Reload };
    // Install the signal handlers first, so that no signal during startup is lost.
    let (mut shutdown_signals, reload_signals) = ShutdownSignals::install(on_hangup)?;
    check_settings(settings)?;
    store::prepare_schema(settings, migrate).await.map_err(ServeError::InvalidSettings)?;
    let tls = connections::load_tls(settings).map_err(ServeError::InvalidSettings)?;
    let admin_access = connections::admin_access(settings).map_err(ServeError::InvalidSettings)?;
    let bound = StartupListeners::bind_startup(settings).await.map_err(ServeError::Listen)?;
    let (counters, writer) = counters::open(settings).map_err(ServeError::InvalidSettings)?;
    let memory = Arc::clone(&counters.memory);
    let (engine, connection) = store::create_engine(settings, counters, engine_policy(settings));
    let has_shared_store = connection.is_some();
    let engine = match stats::create_stats(settings) {
        Some(stats) => engine.with_stats(stats),
        None => engine,
    };
    let trust = peers::load_trust(settings).map_err(ServeError::InvalidSettings)?;
    let (engine, forwarded_releases) = peers::with_forwarding(settings, engine);
    let (engine, events) =
        events::with_events(settings, engine).map_err(ServeError::InvalidSettings)?;
    let engine = Arc::new(engine.with_table_states(tables::states(settings)));
    let mut source =
        limits::start_source(settings, &engine).await.map_err(ServeError::InvalidSettings)?;
    let mut tasks = ServiceTasks::default();
    tasks.spawn_background(reload_signals.trigger_reloads(source.reload.clone()));
    if listeners::waits_for_limits(settings)
        && let StartupListeners::HttpOnly(http) = &bound
        && !source.wait_for_first_limits(http.as_ref(), &mut shutdown_signals).await
    {
        return Ok(());
    }
    let first_config = source.published.borrow().clone();
    if let Some(refused) = first_load_error(settings, &first_config) {
        return Err(refused);
    }
    tables::start(settings, &engine, first_config.config.clone(), &mut tasks)?;
    if !tables::wait_for_first_tables(&engine, &bound, &mut shutdown_signals).await {
        return Ok(());
    }
    if let Some(connection) = connection {
        tasks.spawn_background(connection);
        if !first_answer::wait_for_store(settings, &engine, &bound, &mut shutdown_signals).await {
            return Ok(());
        }
    }
    let mut listeners = bound.bind_rest(settings).await.map_err(ServeError::Listen)?;
    let health = Health::new(if settings.limits.required_for_health {
        Readiness::NoConfig
    } else {
        Readiness::Ready
    });
    engine.restore_actions().await;
    let (phase, phase_receiver) = watch::channel(DrainPhase::Serving);
    print_summary(settings, (&listeners, &admin_access), &first_config, terminal)?;
    let writer = writer.map(|writer| counters::start_writer(writer, &engine)).transpose()?;
    let mirror =
        mirror::start(settings, &engine, &mut tasks).map_err(ServeError::InvalidSettings)?;
    let service = ServiceContext {
        settings,
        engine: Arc::clone(&engine),
        memory,
        health: health.clone(),
        phase: phase_receiver,
        tls,
        admin_access,
        max_connections: connections::max_connections(settings),
        mirror,
        bodies: BodyLimits::new(&settings.listen),
    };
    let telemetry = service.start_telemetry();
    let events = events::start(events, &engine, &mut tasks);
    let (peer_listener, peer_phase) = (listeners.peers.take(), service.phase.clone());
    service.start(listeners, source, &mut tasks);
    if let Some((listener, posted)) = peer_listener.zip(forwarded_releases) {
        let peering = peers::PeerContext { settings, engine: &engine, trust, phase: peer_phase };
        peering.start(listener, posted, &mut tasks)?;
    }
    if has_shared_store {
        start_fleet_tasks(settings, &engine, &mut tasks);
    } else {
        tasks.start_without_fleet(&engine);
    }
    writeln!(terminal.out, "ready")?;
    terminal.out.flush()?;
    let times = drain_times(settings);
    let ended = tokio::select! {
        ended = tasks.wait_for_listeners() => ended,
        () = drain::run_drain(shutdown_signals, health, phase, times) => Ok(()),
    };
    if let Some(leases) = engine.leases() {
        // Hits that are not returned in time expire with their leases.
        drop(tokio::time::timeout(LEASE_RETURN_TIMEOUT, leases.return_all()).await);
    }
    engine.flush_forwarded(RELEASE_FORWARD_TIMEOUT).await;
    engine.leave().await;
    events.drain().await;
    counters::close(writer).await;
    stop_telemetry(telemetry).await;
    ended
}

async fn stop_telemetry(exporters: OtlpExporters) {
    if exporters.is_active() {
        // `shutdown` waits for the OTLP collector, which would block a worker thread.
        drop(tokio::task::spawn_blocking(move || exporters.shutdown()).await);
    }
}

/// Starts the tasks that a shared store needs: reports, debts, leases and the findings of `doctor`.
fn start_fleet_tasks(settings: &Settings, engine: &Arc<Engine>, tasks: &mut ServiceTasks) {
    tasks.count_strikes(Arc::clone(engine));
    let (report_engine, debt_engine) = (Arc::clone(engine), Arc::clone(engine));
    tasks.spawn_background(async move { report_engine.report_forever().await });
    tasks.spawn_background(async move { debt_engine.repay_forever().await });
    if let Some(leases) = engine.leases().cloned() {
        tasks.spawn_background(leases.run_upkeep());
    }
    let doctor_findings = doctor::log_all_findings(settings.clone());
    tasks.spawn_background(async move {
        doctor_findings.await;
        std::future::pending::<()>().await;
    });
}

fn drain_times(settings: &Settings) -> DrainTimes {
    let listen = &settings.listen;
    DrainTimes { delay: listen.drain_delay.into(), finish: listen.drain_timeout.into() }
}

/// Returns the error if the first load has no limits and `limits.required_at_start` is on.
fn first_load_error(settings: &Settings, first: &PublishedConfig) -> Option<ServeError> {
    let refused = first.status.last_error.as_ref()?;
    if first.config.is_some() || !settings.limits.required_at_start {
        return None;
    }
    let message = limits::error_text(refused);
    Some(match refused.reason {
        LoadFailure::Invalid(_) => ServeError::InvalidLimits(message),
        LoadFailure::Unreadable(_)
        | LoadFailure::Unconvertible(_)
        | LoadFailure::ParserPanicked => ServeError::UnreadableLimits(message),
    })
}

/// Validates the rules that involve several settings.
fn check_settings(settings: &Settings) -> Result<(), ServeError> {
    let is_empty_allowed =
        settings.compat.limits.optional_paths || settings.limits.xds.server.is_some();
    if settings.limits.paths.is_empty() && !is_empty_allowed {
        let why =
            "no limits are configured: set --limits-paths to a file or a directory".to_owned();
        return Err(ServeError::InvalidSettings(why));
    }
    store::check_settings(settings).map_err(ServeError::InvalidSettings)
}
