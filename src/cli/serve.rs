//! Implements `sluicegate serve`, which connects the listeners, the engine and the source.
//!
//! Guarantees:
//! - A port in use or invalid limits end the process at once, with an error.
//! - The end of any task ends the process: a partial service would be worse.
//! - SIGTERM drains (see [`drain`]), then exits with 0.
//!
//! Not covered:
//! - The behavior of the parts.

mod connections;
mod drain;
mod gauges;
mod limits;
mod listeners;
mod log;
mod peers;
mod stats;
pub(super) mod store;
mod waiting;

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ratelimit::Note;
use super::{Outcome, Terminal, doctor};
use crate::backend::memory::{self, Memory};
use crate::config::settings::{self, Backend, OtlpProtocol, Settings};
use crate::edge::grpc::incoming::Listener;
use crate::edge::grpc::tls::Tls;
use crate::edge::health::{Health, Ready};
use crate::edge::{Reporting, grpc, headers, http, syslog};
use crate::engine::{CounterKeys, Engine, Overrides, Planning, Policy};
use crate::kernel::units::Nanos;
use crate::source::{Published, Source, Why};
use crate::telemetry::metrics::{Gauges, METRICS, Process};
use crate::telemetry::otlp::{self, Told};
use drain::{Ends, Phase, Times};
use limits::Follower;
use listeners::{Bound, Listeners};

/// The duration of one sweep over all shards of the memory store.
const SWEEP_ROUND: Duration = Duration::from_secs(60);

/// The timeout for returning the balances of leases at shutdown.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// The timeout for forwarding releases to other replicas at shutdown.
const PASSING_ON: Duration = Duration::from_millis(500);

/// The maximum number of domains in the startup output: one screen.
const MOST_DOMAINS_SAID: usize = 20;

/// An error that prevents or ends serving.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("{}", .0.join("\n"))]
    Ports(Vec<String>),
    #[error("{0}")]
    Limits(String),
    #[error("{0}")]
    NoTexts(String),
    #[error("{0}")]
    Settings(String),
    #[error("{0}; ending, for half a service is worse than none")]
    Part(String),
}

pub(super) fn serve(
    settings: &Settings,
    notes: &[Note],
    terminal: &mut Terminal<'_>,
) -> std::io::Result<Outcome> {
    log::start(settings.log_level, settings.log_format);
    for Note { variable, line } in notes {
        tracing::warn!("{variable}: {line}");
    }
    let served = runtime(settings).map_err(Failure::from).and_then(|runtime| {
        let served = runtime.block_on(run(settings, terminal));
        // Requests in flight have already had `drain_timeout`.
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
    // First, so that no signal during startup is lost.
    let (mut ends, hangups) = Ends::listen(settings.on_hangup)?;
    check_settings(settings)?;
    let tls = connections::tls_of(settings).map_err(Failure::Settings)?;
    let bound = Bound::first(settings).await.map_err(Failure::Ports)?;
    let memory = Arc::new(memory_of(settings));
    let (engine, connection) = store::engine(settings, &memory, policy_of(settings));
    let engine = match stats::of(settings) {
        Some(stats) => engine.with_stats(stats),
        None => engine,
    };
    let trust = peers::trust_of(settings).map_err(Failure::Settings)?;
    let (engine, posted) = peers::joined(settings, engine);
    let engine = Arc::new(engine);
    let mut source = limits::watch(settings, &engine).await.map_err(Failure::Settings)?;
    let mut parts = Parts::default();
    parts.lasting(hangups.ask(source.reload.clone()));
    if let Bound::Waits(http) = &bound
        && !source.is_first_here(http.as_ref(), &mut ends).await
    {
        return Ok(());
    }
    let mut listeners = bound.all(settings).await.map_err(Failure::Ports)?;
    let first = source.published.borrow().clone();
    if let (None, false, Some(refused)) =
        (&first.config, settings.start_without_config, &first.status.last_error)
    {
        let words = limits::in_words(refused);
        return Err(match refused.why {
            Why::Diagnostics(_) => Failure::Limits(words),
            Why::Source(_) | Why::Words(_) | Why::Broke => Failure::NoTexts(words),
        });
    }
    let health =
        Health::new(if settings.healthy_with_config { Ready::NoConfig } else { Ready::Yes });
    let (phase, finishing) = watch::channel(Phase::Serving);
    say(settings, &listeners, &first, terminal)?;
    let service = Service {
        settings,
        engine: Arc::clone(&engine),
        memory,
        health: health.clone(),
        finishing,
        tls,
    };
    let told = service.tell();
    let (heard, ending) = (listeners.peers.take(), service.finishing.clone());
    service.start(listeners, source, &mut parts);
    if let Some((listener, posted)) = heard.zip(posted) {
        let peering = peers::Peering { settings, engine: &engine, trust, finishing: ending };
        peering.start(listener, posted, &mut parts)?;
    }
    if let Some(connection) = connection {
        parts.lasting(connection);
        let (beating, paying) = (Arc::clone(&engine), Arc::clone(&engine));
        let speaking = Arc::clone(&engine);
        parts.lasting(async move { speaking.speak_on().await });
        parts.lasting(async move { beating.beat_on().await });
        parts.lasting(async move { paying.pay_on().await });
        if let Some(leases) = engine.leases().cloned() {
            parts.lasting(leases.tend_on());
        }
        let told = doctor::tell_all(settings.clone());
        parts.lasting(async move {
            told.await;
            std::future::pending::<()>().await;
        });
    }
    writeln!(terminal.out, "ready")?;
    terminal.out.flush()?;
    let times = Times { delay: settings.drain_delay.into(), finish: settings.drain_timeout.into() };
    let ended = tokio::select! {
        ended = parts.all_end() => ended,
        () = drain::lead(ends, health, phase, times) => Ok(()),
    };
    if let Some(leases) = engine.leases() {
        // Hits that are not returned in time expire with their leases.
        drop(tokio::time::timeout(GIVING_BACK, leases.give_back()).await);
    }
    engine.pass_on_all(PASSING_ON).await;
    engine.leave().await;
    if told.anything() {
        // This waits for the collector, which would block a worker thread.
        drop(tokio::task::spawn_blocking(move || told.finish()).await);
    }
    ended
}

/// Checks rules that involve several settings.
fn check_settings(settings: &Settings) -> Result<(), Failure> {
    let nothing_is_meant = settings.limits_optional || settings.xds_server.is_some();
    if settings.limits.is_empty() && !nothing_is_meant {
        let why = "no limits: name a file or a directory with --limits".to_owned();
        return Err(Failure::Settings(why));
    }
    store::check(settings).map_err(Failure::Settings)
}

fn say(
    settings: &Settings,
    listeners: &Listeners,
    first: &Published,
    terminal: &mut Terminal<'_>,
) -> std::io::Result<()> {
    for line in listeners.lines() {
        writeln!(terminal.out, "{line}")?;
    }
    if let Backend::Redis(url) = &settings.backend {
        writeln!(terminal.out, "counters in {url}")?;
        if let Some(url) = &settings.backend_per_second {
            writeln!(terminal.out, "counters of limits per second in {url}")?;
        }
    }
    let Some(config) = &first.config else {
        return writeln!(terminal.out, "no limits are loaded; see the log or /config on admin");
    };
    let mut domains: Vec<_> = config.domains.values().collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    for domain in domains.iter().take(MOST_DOMAINS_SAID) {
        let ceilings = match domain.tree.ceilings().len() {
            0 => String::new(),
            some => format!(", {some} ceilings"),
        };
        let rules = domain.tree.rules().len();
        writeln!(terminal.out, "domain {}: {rules} rules{ceilings}", domain.name)?;
    }
    if let more @ 1.. = domains.len().saturating_sub(MOST_DOMAINS_SAID) {
        writeln!(terminal.out, "and {more} more domains")?;
    }
    Ok(())
}

struct Service<'s> {
    settings: &'s Settings,
    engine: Arc<Engine>,
    memory: Arc<Memory>,
    health: Health,
    finishing: watch::Receiver<Phase>,
    tls: Option<Arc<Tls>>,
}

impl Service<'_> {
    fn start(self, listeners: Listeners, source: Source, parts: &mut Parts) {
        let judged = self.settings.healthy_with_config.then(|| self.health.clone());
        let limits = Follower::start(
            source.published,
            Arc::clone(&self.engine),
            judged,
            self.settings.hooks.clone(),
        );
        self.start_grpc(listeners.grpc, parts);
        self.start_http(listeners.http, parts);
        let files = limits.shown();
        let files = move || files.borrow().status.files.len();
        let look = stats::look(&self.engine, self.tls.clone(), files);
        if let Some(metrics) = listeners.metrics {
            self.start_metrics(metrics, Arc::clone(&look), parts);
        }
        if let Some(stats) = self.engine.stats() {
            parts.lasting(stats::send(self.settings.clone(), Arc::clone(stats), look));
        }
        self.start_admin(listeners.admin, limits.shown(), parts);
        if self.settings.healthy_with_backend {
            let (health, engine) = (self.health.clone(), Arc::clone(&self.engine));
            health.set_backend(false);
            parts.lasting(connections::heed_backend(health, engine));
        }
        parts.lasting(limits.follow());
        parts.lasting(async move { drop(source.task.await) });
        if let Some(socket) = listeners.syslog {
            let (engine, from) = (Arc::clone(&self.engine), self.settings.syslog_from.clone());
            parts.lasting(syslog::serve(socket, engine, from));
        }
        let ceilings = Arc::clone(&self.engine);
        parts.lasting(async move { ceilings.expire_on().await });
        parts.lasting(sweep(self.memory, self.engine));
    }

    fn start_grpc(&self, listener: listeners::Grpc, parts: &mut Parts) {
        let (listener, file) = match listener {
            listeners::Grpc::Tcp(listener) => (Listener::Tcp(listener), None),
            listeners::Grpc::Unix(file, listener) => (Listener::Unix(listener), Some(file)),
        };
        let grpc = grpc::Grpc {
            engine: Arc::clone(&self.engine),
            reporting: reporting_of(self.settings),
            hooks: Arc::new(self.settings.hooks.clone()),
            health: self.health.clone(),
            reflection: true,
            tls: self.tls.clone(),
            age: connections::age_of(self.settings),
        };
        let finishing = drain::finishing(self.finishing.clone());
        let closing = async move {
            finishing.await;
            // Remove the socket file now. The listener closes
            // next, and requests in flight end much later.
            drop(file);
        };
        let served = grpc::serve(listener, grpc, closing);
        parts.finishing(
            async move { served.await.map_err(|error| Failure::Part(error.to_string())) },
        );
    }

    fn start_http(&self, listener: TcpListener, parts: &mut Parts) {
        let (leaving, finishing) = self.leaving();
        let ask = http::Ask {
            engine: Arc::clone(&self.engine),
            reporting: reporting_of(self.settings),
            health: self.health.clone(),
            hooks: Arc::new(self.settings.hooks.clone()),
            leaving,
        };
        let served = http::serve(listener, http::router(ask), finishing);
        parts.finishing(async move {
            served.await;
            Ok(())
        });
    }

    /// Starts to export spans and metrics if the environment names a collector.
    fn tell(&self) -> Told {
        if !self.settings.otlp {
            return Told::default();
        }
        let look = self.look();
        let page: otlp::Page = Arc::new(move || METRICS.page(look()).to_string());
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let (told, refused) = otlp::start(&variable, &self.told_as(), &page);
        for why in refused {
            tracing::warn!(why, "a part of the telemetry that OTEL_* asks for is not told");
        }
        told
    }

    /// Returns the defaults for unset `OTEL_*` variables.
    fn told_as(&self) -> otlp::Defaults {
        let settings = self.settings;
        let mut attributes = settings.otlp_attributes.0.clone();
        if !attributes.iter().any(|(name, _)| name == "service.instance.id") {
            attributes.push(("service.instance.id".to_owned(), store::instance()));
        }
        otlp::Defaults {
            protocol: match settings.otlp_protocol {
                OtlpProtocol::Grpc => otlp::Protocol::Grpc,
                OtlpProtocol::Http => otlp::Protocol::Http,
            },
            counts: settings.otlp_counts,
            service: settings.otlp_service.clone(),
            attributes,
            sampled: f64::from(settings.otlp_sampled.get()),
        }
    }

    fn start_metrics(&self, listener: TcpListener, looked: stats::Look, parts: &mut Parts) {
        let look = self.look();
        let own = move || METRICS.page(look()).to_string();
        let engine = Arc::clone(&self.engine);
        let names = self.settings.metrics_names;
        let page = stats::pages(names, own, engine, looked);
        let router =
            http::metrics::router(&self.settings.metrics_path, page, stats::formats(names));
        self.start_pages(listener, router, parts);
    }

    fn look(&self) -> Look {
        let (memory, engine) = (Arc::clone(&self.memory), Arc::clone(&self.engine));
        let started = engine.clock().now();
        let count = |keys| u64::try_from(keys).unwrap_or(u64::MAX);
        Arc::new(move || {
            let in_use = gauges::in_use(&engine);
            Gauges {
                keys: count(memory.live_keys()),
                max_keys: count(memory.max_keys()),
                backend_is_down: engine.trouble().is_some(),
                ceilings: gauges::ceilings(&engine, &in_use),
                in_use,
                balances: gauges::balances(&engine),
                started,
                process: Process::look(),
            }
        })
    }

    fn start_admin(
        &self,
        listener: TcpListener,
        published: watch::Receiver<Published>,
        parts: &mut Parts,
    ) {
        let admin = http::admin::Admin {
            token: self.settings.admin_token.clone(),
            debug_pages: self.settings.debug_pages,
            engine: Arc::clone(&self.engine),
            loads: Arc::new(move || limits::loads(&published)),
        };
        let served = http::serve(
            listener,
            http::admin::router(admin),
            drain::finishing(self.finishing.clone()),
        );
        parts.finishing(async move {
            served.await;
            Ok(())
        });
    }

    /// Returns the drain signal for long-running requests, and the future that stops the listener.
    fn leaving(&self) -> (watch::Receiver<bool>, impl Future<Output = ()> + use<>) {
        let (leave, leaving) = watch::channel(false);
        let finishing = drain::finishing(self.finishing.clone());
        let told = async move {
            finishing.await;
            leave.send_replace(true);
        };
        (leaving, told)
    }

    fn start_pages(&self, listener: TcpListener, router: axum::Router, parts: &mut Parts) {
        let served = http::serve(listener, router, drain::finishing(self.finishing.clone()));
        parts.finishing(async move {
            served.await;
            Ok(())
        });
    }
}

/// Reads the gauges, which are sampled instead of counted.
type Look = Arc<dyn Fn() -> Gauges + Send + Sync>;

#[derive(Default)]
struct Parts {
    /// Listeners. Each ends when its requests in flight are finished.
    finishing: JoinSet<Result<(), Failure>>,
    /// Tasks that run as long as the process. The end of one is an error.
    lasting: JoinSet<()>,
}

impl Parts {
    fn finishing(&mut self, part: impl Future<Output = Result<(), Failure>> + Send + 'static) {
        self.finishing.spawn(part);
    }

    fn lasting(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.lasting.spawn(part);
    }

    /// Waits until all listeners have finished. Returns
    /// an error as soon as any task ends unexpectedly.
    async fn all_end(&mut self) -> Result<(), Failure> {
        let lost = |how: &dyn std::fmt::Display| Failure::Part(format!("a part was lost: {how}"));
        loop {
            tokio::select! {
                ended = self.finishing.join_next() => match ended {
                    None => return Ok(()),
                    Some(ended) => ended.map_err(|died| lost(&died))??,
                },
                Some(ended) = self.lasting.join_next() => {
                    return Err(ended.map_or_else(|died| lost(&died), |()| lost(&"it ended")));
                }
            }
        }
    }
}

fn memory_of(settings: &Settings) -> Memory {
    let when_full = match settings.when_full {
        settings::WhenFull::Deny => memory::WhenFull::Deny,
        settings::WhenFull::Allow => memory::WhenFull::Allow,
    };
    let most = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
    Memory::new(most, when_full, secret())
}

/// Returns 16 unpredictable bytes. The standard library seeds its hashers from the system.
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
    let near_limit_ratio = settings.near_limit_ratio.get();
    Policy { planning, shadow: settings.shadow_mode, near_limit_ratio }
}

fn reporting_of(settings: &Settings) -> Reporting {
    Reporting {
        headers: headers::Headers::chosen(settings),
        upstream: settings.request_headers.then(|| headers::Names::chosen(settings)),
        dynamic_metadata: settings.dynamic_metadata,
        negative_hits: settings.negative_hits,
    }
}

/// Removes expired counters, one shard per tick. Warns
/// once per round if the store had no room for new keys.
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
