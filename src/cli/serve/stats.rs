//! Collects, exposes and sends envoyproxy/ratelimit's statistics.
//!
//! Guarantees:
//! - Sending statistics never delays a check.
//!
//! Not covered:
//! - The counted events: see [`crate::telemetry::stats`]. The queue of unsent lines: see [`sender`].

mod sender;

use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::settings::{MetricNames, Mogrifier, Settings, StatsSink};
use crate::edge::grpc::tls::{ServerTls, TlsReadCounts};
use crate::edge::http::metrics::MetricsFormats;
use crate::engine::Engine;
use crate::store::stats::{ConnectionCounts, DenyCacheStats};
use crate::telemetry::stats::mapping::StatMapping;
use crate::telemetry::stats::{
    ExternalStat, LineFormat, NameRewrite, StatLineFormatter, Stats, render_page,
};
use sender::StatsSender;

/// The interval for resolving the receiver's host name again. Datagrams to an outdated address are
/// lost without an error.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
const MAX_MAPPING_BYTES: u64 = 1 << 20;
/// The most rules with statistics of their own. Further rules are counted as `_overflow_`.
const MAX_RULES: u32 = 10_000;

/// Creates envoyproxy/ratelimit's statistics. Returns `None` if the settings neither expose nor
/// send them.
pub(super) fn create_stats(settings: &Settings) -> Option<Arc<Stats>> {
    let is_shown =
        settings.listen.metrics_port.is_some() && settings.compat.metrics.names != MetricNames::Own;
    let is_sent = settings.compat.stats.sink != StatsSink::None;
    let stats = || {
        let stats = Stats::new(MAX_RULES, load_mapping(settings));
        if settings.compat.stats.replace_dots { stats.with_replaced_dots() } else { stats }
    };
    let made = || if is_sent { stats() } else { stats().without_sending() };
    (is_shown || is_sent).then(|| Arc::new(made()))
}

/// Returns the mapping from statistics to metric names that the setting `compat.metrics.mapping`
/// names. Uses the built-in mapping if the file is missing or invalid, because limits must still be
/// enforced.
fn load_mapping(settings: &Settings) -> StatMapping {
    let built_in = || StatMapping::built_in(settings.compat.metrics.milliseconds);
    let Some(path) = &settings.compat.metrics.mapping else { return built_in() };
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    let text = match std::fs::read_to_string(path) {
        Ok(text) if size <= MAX_MAPPING_BYTES => text,
        Ok(_) => String::new(),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "failed to read the file of compat.metrics.mapping (PROMETHEUS_MAPPER_YAML), using the built-in mapping");
            return built_in();
        }
    };
    StatMapping::parse(&text).unwrap_or_else(|error| {
        let path = path.display();
        tracing::error!(%path, %error, "file of compat.metrics.mapping (PROMETHEUS_MAPPER_YAML) rejected, using the built-in mapping");
        built_in()
    })
}

pub(super) type StatsReader = Arc<dyn Fn() -> Vec<ExternalStat> + Send + Sync>;

pub(super) fn stats_reader(
    engine: &Arc<Engine>,
    tls: Option<Arc<ServerTls>>,
    files: impl Fn() -> usize + Send + Sync + 'static,
) -> StatsReader {
    let engine = Arc::clone(engine);
    Arc::new(move || {
        let files = u64::try_from(files()).unwrap_or(u64::MAX);
        let mut external_stats = vec![ExternalStat::Gauge("runtime.num_values", files)];
        let store_stats = engine.store_stats();
        external_stats.extend(
            store_stats.connections.into_iter().flat_map(|pool| connection_stats(POOL_STATS, pool)),
        );
        external_stats.extend(
            store_stats
                .per_second_connections
                .into_iter()
                .flat_map(|pool| connection_stats(PER_SECOND_POOL_STATS, pool)),
        );
        external_stats.extend(store_stats.deny_cache.into_iter().flat_map(deny_cache_stats));
        external_stats.extend(tls.iter().flat_map(|tls| certificate_stats(tls.read_counts())));
        external_stats
    })
}

/// The names of envoyproxy/ratelimit's statistics for open, created and closed Redis connections.
const POOL_STATS: [&str; 3] = [
    "ratelimit.redis_pool.cx_active",
    "ratelimit.redis_pool.cx_total",
    "ratelimit.redis_pool.cx_local_close",
];
const PER_SECOND_POOL_STATS: [&str; 3] = [
    "ratelimit.redis_per_second_pool.cx_active",
    "ratelimit.redis_per_second_pool.cx_total",
    "ratelimit.redis_per_second_pool.cx_local_close",
];

fn connection_stats(
    [active, total, close]: [&'static str; 3],
    connections: ConnectionCounts,
) -> [ExternalStat; 3] {
    let open = connections.opened.saturating_sub(connections.closed);
    [
        ExternalStat::Gauge(active, open),
        ExternalStat::Counter(total, connections.opened),
        ExternalStat::Counter(close, connections.closed),
    ]
}

fn deny_cache_stats(cache: DenyCacheStats) -> [ExternalStat; 8] {
    [
        ("ratelimit.localcache.evacuateCount", cache.evicted),
        ("ratelimit.localcache.expiredCount", cache.expired),
        ("ratelimit.localcache.entryCount", cache.keys),
        ("ratelimit.localcache.averageAccessTime", cache.mean_last_access()),
        ("ratelimit.localcache.hitCount", cache.hits),
        ("ratelimit.localcache.missCount", cache.misses),
        ("ratelimit.localcache.lookupCount", cache.hits + cache.misses),
        ("ratelimit.localcache.overwriteCount", cache.overwritten),
    ]
    .map(|(name, value)| ExternalStat::Gauge(name, value))
}

fn certificate_stats(reads: TlsReadCounts) -> [ExternalStat; 3] {
    [
        ExternalStat::Counter("certs.load_attempts", reads.attempts),
        ExternalStat::Counter("certs.load_failures", reads.failures),
        ExternalStat::Gauge("certs.num_values", reads.files),
    ]
}

/// Returns a function that renders the metrics page: Sluicegate's own metrics, those of
/// envoyproxy/ratelimit, or both.
pub(super) fn metrics_page(
    names: MetricNames,
    own: impl Fn() -> String + Send + Sync + 'static,
    engine: Arc<Engine>,
    read_stats: StatsReader,
) -> Arc<dyn Fn() -> String + Send + Sync> {
    let render_ratelimit_stats = move || {
        let Some(stats) = engine.stats() else { return String::new() };
        stats.advance(engine.clock().now());
        render_page(stats, &read_stats())
    };
    Arc::new(move || match names {
        MetricNames::Own => own(),
        MetricNames::Compat => render_ratelimit_stats(),
        MetricNames::All => render_ratelimit_stats() + &own(),
    })
}

/// Returns the formats of the metrics page. OpenMetrics is impossible with envoyproxy/ratelimit's
/// counters, because these lack the required suffix `_total`.
pub(super) const fn page_formats(names: MetricNames) -> MetricsFormats {
    match names {
        MetricNames::Own => MetricsFormats::Both,
        MetricNames::Compat | MetricNames::All => MetricsFormats::Text,
    }
}

pub(super) async fn send_periodically(
    settings: Settings,
    stats: Arc<Stats>,
    read_stats: StatsReader,
) {
    let dialect = match settings.compat.stats.sink {
        StatsSink::None => return std::future::pending().await,
        StatsSink::Statsd | StatsSink::StatsdUdp => LineFormat::Statsd,
        StatsSink::Dogstatsd => LineFormat::Dogstatsd,
        StatsSink::Log => LineFormat::Log,
    };
    let rewrites = settings.compat.stats.mogrifiers.0.iter().filter_map(compile_rewrite).collect();
    let mut lines = StatLineFormatter::new(dialect, &settings.compat.stats.tags.0, rewrites);
    let mut sink = StatsSender::from_settings(&settings);
    let mut ticks = interval(settings.compat.stats.interval.into());
    let mut lookups = interval(LOOKUP_INTERVAL);
    lookups.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = lookups.tick() => sink.destination.resolve_again().await,
            _ = ticks.tick() => {
                sink.enqueue(lines.next_lines(&stats, &read_stats()));
                sink.send().await;
            }
        }
    }
}

fn compile_rewrite(rule: &Mogrifier) -> Option<NameRewrite> {
    // The pattern is valid, because loading the settings has validated it.
    let pattern = Regex::new(&rule.pattern).ok()?;
    Some(NameRewrite { pattern, name: rule.name.clone(), tags: rule.tags.clone() })
}
