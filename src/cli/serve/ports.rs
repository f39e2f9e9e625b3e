//! Starts the listeners of all ports except the peer port, and the tasks that every replica has.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::counters::sweep_counters;
use super::drain::{self, DrainPhase};
use super::limits::{self, LimitsFollower};
use super::listeners::{self, Listeners};
use super::policies::reporting_options;
use super::tasks::{ServeError, ServiceTasks};
use super::{connections, gauges, stats, store};
use crate::config::settings::{OtlpExport, OtlpProtocol, Settings};
use crate::edge::body_memory::BodyLimits;
use crate::edge::connection_gate::{ConnectionGate, ListenPort};
use crate::edge::grpc::incoming::GrpcListener;
use crate::edge::grpc::tls::ServerTls;
use crate::edge::health::Health;
use crate::edge::http::admin::{AdminAccess, ConfigDiff};
use crate::edge::mirror::Mirror;
use crate::edge::{grpc, http, syslog};
use crate::engine::Engine;
use crate::source::{ConfigSource, PublishedConfig};
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::{Gauges, METRICS, ProcessUsage};
use crate::telemetry::otlp::{self, OtlpExporters};

/// The largest number of open connections of each of the ports for metrics and administration.
const MAX_PAGE_CONNECTIONS: usize = 64;

/// What all ports share.
pub(super) struct ServiceContext<'s> {
    pub(super) settings: &'s Settings,
    pub(super) engine: Arc<Engine>,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) health: Health,
    pub(super) phase: watch::Receiver<DrainPhase>,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) admin_access: AdminAccess,
    pub(super) max_connections: usize,
    pub(super) mirror: Option<Mirror>,
    pub(super) bodies: BodyLimits,
}

impl ServiceContext<'_> {
    pub(super) fn start(
        self,
        listeners: Listeners,
        source: ConfigSource,
        parts: &mut ServiceTasks,
    ) {
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
            // Remove the file of the Unix socket before the listener closes. Afterwards it may belong
            // to another process.
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

    /// Starts to export spans and metrics if the environment names a collector and
    /// `telemetry.otlp.export` is not `none`.
    pub(super) fn start_telemetry(&self) -> OtlpExporters {
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
                bans: engine.ban_count(),
                undelivered_events: engine.undelivered_events(),
                mirror_differences: mirror
                    .as_ref()
                    .map(|report| report.differences())
                    .unwrap_or_default(),
                tables: gauges::tables(&engine),
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
            // The client of a recording keeps its request open, which would delay the shutdown.
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
