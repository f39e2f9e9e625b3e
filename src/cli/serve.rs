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
mod startup_probes;
mod stats;
pub(super) mod store;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ratelimit::VariableNote;
use super::{CommandOutcome, Terminal, doctor};
use crate::config::settings::{self, OtlpExport, OtlpProtocol, Settings, StoreUrl};
use crate::edge::body_memory::BodyLimits;
use crate::edge::connection_gate::{ConnectionGate, ListenPort};
use crate::edge::grpc::incoming::GrpcListener;
use crate::edge::grpc::tls::ServerTls;
use crate::edge::health::{Health, Readiness};
use crate::edge::http::admin::{AdminAccess, ConfigDiff};
use crate::edge::mirror::Mirror;
use crate::edge::{ReplyOptions, grpc, headers, http, syslog};
use crate::engine::{DecisionPolicy, Engine, KeyNaming, OverridePolicy, PlanSettings};
use crate::source::{ConfigSource, LoadFailure, PublishedConfig};
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::{Gauges, METRICS, ProcessUsage};
use crate::telemetry::otlp::{self, OtlpExporters};
use drain::{DrainPhase, DrainTimes, OnHangup, ShutdownSignals};
use limits::LimitsFollower;
use listeners::{Listeners, StartupListeners};

/// The time in which expired counters are removed from all shards of the memory store once.
const SWEEP_ROUND: Duration = Duration::from_secs(60);

/// The timeout for returning the balances of leases at shutdown.
const LEASE_RETURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout for forwarding releases to other replicas at shutdown.
const RELEASE_FORWARD_TIMEOUT: Duration = Duration::from_millis(500);

/// The largest number of open connections of the metrics port, and of the admin port.
const MAX_PAGE_CONNECTIONS: usize = 64;

/// The maximum number of domains in the startup output: one screen.
const MAX_DOMAINS_PRINTED: usize = 20;

/// An error that prevents or ends serving.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{}", .0.join("\n"))]
    Listen(Vec<String>),
    #[error("{0}")]
    InvalidLimits(String),
    #[error("{0}")]
    UnreadableLimits(String),
    #[error("{0}")]
    InvalidSettings(String),
    #[error("internal error: {0}; exiting")]
    TaskEnded(String),
}

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
    let engine = Arc::new(engine);
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
    if let Some(connection) = connection {
        tasks.spawn_background(connection);
        if !first_answer::wait_for_first_answer(settings, &engine, &bound, &mut shutdown_signals)
            .await
        {
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
        start_fleet_tasks(settings, &engine, &first_config, &mut tasks);
    } else {
        tasks.synchronize_audit(Arc::clone(&engine));
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
    if telemetry.is_active() {
        // `shutdown` waits for the OTLP collector, which would block a worker thread.
        drop(tokio::task::spawn_blocking(move || telemetry.shutdown()).await);
    }
    ended
}

/// Starts the tasks that a shared store needs: reports, debts, leases and the findings of `doctor`.
fn start_fleet_tasks(
    settings: &Settings,
    engine: &Arc<Engine>,
    first_config: &PublishedConfig,
    tasks: &mut ServiceTasks,
) {
    let (report_engine, debt_engine) = (Arc::clone(engine), Arc::clone(engine));
    tasks.spawn_background(async move { report_engine.report_forever().await });
    tasks.spawn_background(async move { debt_engine.repay_forever().await });
    if let Some(leases) = engine.leases().cloned() {
        tasks.spawn_background(leases.run_upkeep());
    }
    let doctor_findings = doctor::log_all_findings(settings.clone(), first_config.config.clone());
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

fn print_summary(
    settings: &Settings,
    (listeners, access): (&Listeners, &AdminAccess),
    first: &PublishedConfig,
    terminal: &mut Terminal<'_>,
) -> std::io::Result<()> {
    let console = connections::console_line(settings, access, listeners.admin.local_addr().ok());
    for line in listeners.summary_lines().into_iter().chain(console) {
        writeln!(terminal.out, "{line}")?;
    }
    if let StoreUrl::File(_) | StoreUrl::Postgres(_) = &settings.store.url {
        writeln!(terminal.out, "counters in {}", settings.store.url)?;
    }
    if let StoreUrl::Redis(url) = &settings.store.url {
        writeln!(terminal.out, "counters in {url}")?;
        if let Some(url) = &settings.compat.store.per_second_url {
            writeln!(terminal.out, "counters of limits per second in {url}")?;
        }
    }
    let Some(config) = &first.config else {
        return writeln!(
            terminal.out,
            "no limits are loaded; see the log, or /config on the admin port"
        );
    };
    let mut domains: Vec<_> = config.domains.values().collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    for domain in domains.iter().take(MAX_DOMAINS_PRINTED) {
        let concurrency_text = match domain.tree.concurrency_limits().len() {
            0 => String::new(),
            1 => ", 1 concurrency limit".to_owned(),
            some => format!(", {some} concurrency limits"),
        };
        let rules = domain.tree.rules().len();
        writeln!(terminal.out, "domain {}: {rules} rules{concurrency_text}", domain.name)?;
    }
    if let more @ 1.. = domains.len().saturating_sub(MAX_DOMAINS_PRINTED) {
        writeln!(terminal.out, "and {more} more domains")?;
    }
    Ok(())
}

struct ServiceContext<'s> {
    settings: &'s Settings,
    engine: Arc<Engine>,
    memory: Arc<MemoryStore>,
    health: Health,
    phase: watch::Receiver<DrainPhase>,
    tls: Option<Arc<ServerTls>>,
    admin_access: AdminAccess,
    max_connections: usize,
    mirror: Option<Mirror>,
    bodies: BodyLimits,
}

impl ServiceContext<'_> {
    fn start(self, listeners: Listeners, source: ConfigSource, parts: &mut ServiceTasks) {
        let readiness = self.settings.limits.required_for_health.then(|| self.health.clone());
        let limits = LimitsFollower::start(
            source.published,
            Arc::clone(&self.engine),
            readiness,
            self.settings.hooks.clone(),
        );
        self.start_grpc(listeners.grpc, parts);
        self.start_http(listeners.http, parts);
        let files = limits.subscribe();
        let files = move || files.borrow().status.files.len();
        let read_stats = stats::stats_reader(&self.engine, self.tls.clone(), files);
        if let Some(metrics) = listeners.metrics {
            self.start_metrics(metrics, Arc::clone(&read_stats), parts);
        }
        if let Some(stats) = self.engine.stats() {
            parts.spawn_background(stats::send_periodically(
                self.settings.clone(),
                Arc::clone(stats),
                read_stats,
            ));
        }
        let config_diff = Arc::clone(limits.config_diff());
        self.start_admin(listeners.admin, (limits.subscribe(), config_diff), parts);
        if self.settings.store.required_for_health {
            let (health, engine) = (self.health.clone(), Arc::clone(&self.engine));
            health.set_store_available(false);
            parts.spawn_background(connections::follow_store(health, engine));
        }
        parts.spawn_background(limits.follow());
        parts.spawn_background(async move { drop(source.task.await) });
        if let Some(socket) = listeners.syslog {
            let (engine, from) =
                (Arc::clone(&self.engine), self.settings.listen.syslog_from.clone());
            parts.spawn_background(syslog::serve(socket, engine, from));
        }
        let expiry_engine = Arc::clone(&self.engine);
        parts.spawn_background(async move { expiry_engine.expire_forever().await });
        let history_engine = Arc::clone(&self.engine);
        parts.spawn_background(async move { history_engine.sample_history_forever().await });
        parts.spawn_background(sweep_counters(self.memory, self.engine));
    }

    fn start_grpc(&self, listener: listeners::GrpcSocket, parts: &mut ServiceTasks) {
        let (listener, file) = match listener {
            listeners::GrpcSocket::Tcp(listener) => (GrpcListener::Tcp(listener), None),
            listeners::GrpcSocket::Unix(file, listener) => {
                (GrpcListener::Unix(listener), Some(file))
            }
        };
        let grpc = grpc::GrpcPort {
            engine: Arc::clone(&self.engine),
            reporting: reporting_options(self.settings),
            hooks: Arc::new(self.settings.hooks.clone()),
            health: self.health.clone(),
            reflection: true,
            tls: self.tls.clone(),
            max_connections: self.max_connections,
            connection_age: connections::connection_age(self.settings),
            mirror: self.mirror.clone(),
            proxies: self.settings.listen.proxies,
            bodies: self.bodies.clone(),
        };
        let finishing = drain::wait_until_finishing(self.phase.clone());
        let closing = async move {
            finishing.await;
            // Remove the file of the Unix socket now. The listener closes next, and requests in
            // flight end much later.
            drop(file);
        };
        let served = grpc::serve(listener, grpc, closing);
        parts.spawn_listener(async move {
            served.await.map_err(|error| ServeError::TaskEnded(error.to_string()))
        });
    }

    fn start_http(&self, listener: TcpListener, parts: &mut ServiceTasks) {
        let (draining, finishing) = self.drain_signal();
        let check_port = http::CheckPort {
            engine: Arc::clone(&self.engine),
            reporting: reporting_options(self.settings),
            health: self.health.clone(),
            hooks: Arc::new(self.settings.hooks.clone()),
            draining,
            bodies: self.bodies.clone(),
        };
        let router = http::router(check_port, self.max_connections);
        let gate = ConnectionGate::new(ListenPort::Http, self.max_connections);
        let served = http::serve(listener, router, gate, finishing);
        parts.spawn_listener(async move {
            served.await;
            Ok(())
        });
    }

    /// Starts to export spans and metrics if the environment names a collector.
    fn start_telemetry(&self) -> OtlpExporters {
        if self.settings.telemetry.otlp.export == OtlpExport::None {
            return OtlpExporters::default();
        }
        let look = self.gauges_reader();
        let page: otlp::RenderPage = Arc::new(move || METRICS.page(look()).to_string());
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let (exporters, errors) = otlp::start(&variable, &self.otlp_defaults(), &page);
        for why in errors {
            tracing::warn!(error = why, "OTLP export disabled");
        }
        exporters
    }

    /// Returns the defaults for unset `OTEL_*` variables.
    fn otlp_defaults(&self) -> otlp::OtlpDefaults {
        let settings = self.settings;
        let mut attributes = settings.compat.tracing.attributes.0.clone();
        if !attributes.iter().any(|(name, _)| name == "service.instance.id") {
            attributes.push(("service.instance.id".to_owned(), store::random_uuid()));
        }
        otlp::OtlpDefaults {
            protocol: match settings.compat.tracing.protocol {
                OtlpProtocol::Grpc => otlp::OtlpTransport::Grpc,
                OtlpProtocol::Http => otlp::OtlpTransport::Http,
            },
            has_metrics: settings.telemetry.otlp.export == OtlpExport::All,
            attributes,
            sampled_fraction: f64::from(settings.compat.tracing.sampling_ratio.get()),
        }
    }

    fn start_metrics(
        &self,
        listener: TcpListener,
        read_stats: stats::StatsReader,
        parts: &mut ServiceTasks,
    ) {
        let look = self.gauges_reader();
        let own = move || METRICS.page(look()).to_string();
        let engine = Arc::clone(&self.engine);
        let names = self.settings.compat.metrics.names;
        let page = stats::metrics_page(names, own, engine, read_stats);
        let router = http::metrics::router(
            &self.settings.compat.metrics.path,
            page,
            stats::page_formats(names),
        );
        let router = if http::is_health_path(&self.settings.compat.metrics.path) {
            router
        } else {
            router.merge(http::health_routes(Arc::clone(&self.engine), self.health.clone()))
        };
        let finishing = drain::wait_until_finishing(self.phase.clone());
        Self::start_pages(ListenPort::Metrics, (listener, router), finishing, parts);
    }

    fn gauges_reader(&self) -> GaugesReader {
        let (memory, engine) = (Arc::clone(&self.memory), Arc::clone(&self.engine));
        let mirror = self.mirror.as_ref().map(Mirror::report);
        let bodies = self.bodies.clone();
        let started = engine.clock().now();
        let count = |keys| u64::try_from(keys).unwrap_or(u64::MAX);
        Arc::new(move || {
            let in_use = gauges::concurrency_usage(&engine);
            Gauges {
                keys: count(memory.live_keys()),
                max_keys: count(memory.max_keys()),
                is_store_down: engine.store_failure().is_some(),
                concurrency: gauges::concurrency_totals(&engine, &in_use),
                concurrency_limits: in_use,
                rule_decisions: engine.rule_decisions(),
                leases: gauges::lease_balances(&engine),
                lease_proxies: count(engine.proxies().count()),
                undelivered_events: engine.undelivered_events(),
                mirror_differences: mirror
                    .as_ref()
                    .map(|report| report.differences())
                    .unwrap_or_default(),
                body_memory: count(bodies.in_use()),
                max_body_memory: count(bodies.max()),
                started_at: started,
                process: ProcessUsage::measure(),
            }
        })
    }

    fn start_admin(
        &self,
        listener: TcpListener,
        (published, config_diff): (watch::Receiver<PublishedConfig>, Arc<ConfigDiff>),
        parts: &mut ServiceTasks,
    ) {
        let admin = http::admin::Admin {
            access: self.admin_access.clone(),
            engine: Arc::clone(&self.engine),
            load_report: Arc::new(move || limits::admin_loads(&published)),
            config_diff,
            mirror: self.mirror.as_ref().map(Mirror::report),
        };
        let (finishing, engine) =
            (drain::wait_until_finishing(self.phase.clone()), Arc::clone(&self.engine));
        let shutdown = async move {
            finishing.await;
            // Otherwise its client would delay the shutdown.
            engine.stop_recording();
        };
        let pages = (listener, http::admin::router(admin));
        Self::start_pages(ListenPort::Admin, pages, shutdown, parts);
    }

    /// Returns the drain signal for long-running requests, and the future that stops the listener.
    fn drain_signal(&self) -> (watch::Receiver<bool>, impl Future<Output = ()> + use<>) {
        let (drain_sender, draining) = watch::channel(false);
        let finishing = drain::wait_until_finishing(self.phase.clone());
        let finished = async move {
            finishing.await;
            drain_sender.send_replace(true);
        };
        (draining, finished)
    }

    fn start_pages(
        port: ListenPort,
        (listener, router): (TcpListener, axum::Router),
        shutdown: impl Future<Output = ()> + Send + 'static,
        parts: &mut ServiceTasks,
    ) {
        let gate = ConnectionGate::new(port, MAX_PAGE_CONNECTIONS);
        let served = http::serve(listener, router, gate, shutdown);
        parts.spawn_listener(async move {
            served.await;
            Ok(())
        });
    }
}

/// A function that reads the gauges, whose values are sampled instead of counted.
type GaugesReader = Arc<dyn Fn() -> Gauges + Send + Sync>;

#[derive(Default)]
struct ServiceTasks {
    /// The tasks of the listeners. Each ends when the requests in flight of its listener are
    /// finished.
    listeners: JoinSet<Result<(), ServeError>>,
    /// The tasks that run as long as the process. If a background task ends, that is an error.
    background: JoinSet<()>,
}

impl ServiceTasks {
    fn spawn_listener(
        &mut self,
        part: impl Future<Output = Result<(), ServeError>> + Send + 'static,
    ) {
        self.listeners.spawn(part);
    }

    fn spawn_background(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(part);
    }

    /// Keeps the audit log of a store without a fleet, which has no heartbeats.
    fn synchronize_audit(&mut self, engine: Arc<Engine>) {
        self.spawn_background(async move { engine.synchronize_audit_forever().await });
    }

    /// Waits until all listeners have finished. Returns
    /// an error as soon as any task ends unexpectedly.
    async fn wait_for_listeners(&mut self) -> Result<(), ServeError> {
        let lost =
            |how: &dyn std::fmt::Display| ServeError::TaskEnded(format!("a task failed: {how}"));
        loop {
            tokio::select! {
                ended = self.listeners.join_next() => match ended {
                    None => return Ok(()),
                    Some(ended) => ended.map_err(|died| lost(&died))??,
                },
                Some(ended) = self.background.join_next() => {
                    return Err(ended.map_or_else(|died| lost(&died), |()| lost(&"it ended early")));
                }
            }
        }
    }
}

fn engine_policy(settings: &Settings) -> DecisionPolicy {
    let keys = match settings.compat.store.key_format {
        settings::KeyFormat::Own => KeyNaming::Unique,
        settings::KeyFormat::Compat => KeyNaming::Envoyproxy,
    };
    let overrides = match settings.limits.overrides {
        settings::Overrides::Replace => OverridePolicy::Allow,
        settings::Overrides::Ignore => OverridePolicy::Deny,
        settings::Overrides::Lower => OverridePolicy::Max,
    };
    let planning =
        PlanSettings { keys, overrides, quota_for_all: settings.compat.limits.quota_mode };
    let near_limit_ratio = settings.telemetry.near_limit.get();
    DecisionPolicy {
        planning,
        is_shadow: settings.answers.shadow_mode,
        near_limit_ratio,
        descriptor_values: settings.telemetry.descriptor_values,
        max_counted_rules: settings.telemetry.metrics.max_rules,
    }
}

fn reporting_options(settings: &Settings) -> ReplyOptions {
    ReplyOptions {
        headers: headers::RateLimitHeaders::from_settings(settings),
        upstream_names: settings
            .compat
            .answers
            .request_headers
            .then(|| headers::CompatHeaderNames::from_settings(settings)),
        dynamic_metadata: settings.answers.metadata,
        denied_by_metadata: matches!(
            settings.answers.denied_by,
            settings::DeniedBy::Metadata | settings::DeniedBy::Both
        ),
        allow_negative_hits: settings.limits.refunds,
    }
}

/// Removes expired counters from the memory store, one shard per tick. Warns at most once per
/// [`SWEEP_ROUND`] if the store had no room for new keys.
async fn sweep_counters(memory: Arc<MemoryStore>, engine: Arc<Engine>) {
    let shards = u32::try_from(MemoryStore::SHARDS).unwrap_or(u32::MAX);
    let mut ticks = tokio::time::interval(SWEEP_ROUND / shards);
    let mut reported = 0;
    loop {
        for _ in 0..shards {
            ticks.tick().await;
            memory.sweep_next(engine.clock().now());
        }
        let full = memory.times_full();
        if full > reported {
            tracing::warn!(
                new_keys = full - reported,
                max_keys = memory.max_keys(),
                "store is full: raise store.max_keys, or find the descriptor with too many values"
            );
            reported = full;
        }
    }
}
