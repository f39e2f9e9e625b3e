//! envoyproxy/ratelimit's statistics: made, shown, sent.
//!
//! Guarantees: what cannot be sent waits, up to [`MOST_WAITING`] bytes, and is dropped beyond that with a line in the log;
//! nothing here holds a question up.
//! Leaves out: what is counted ([`crate::telemetry::stats`]).

use std::collections::VecDeque;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{interval, timeout};

use crate::backend::inside::{Connections, Remembered};
use crate::config::settings::{
    Address, MetricNames, Mogrifier, Settings, StatsProtocol, StatsSink,
};
use crate::edge::grpc::tls::{Readings, Tls};
use crate::edge::http::metrics::Formats;
use crate::engine::Engine;
use crate::telemetry::stats::mapping::Mapping;
use crate::telemetry::stats::{Dialect, Lines, Looked, Rewrite, Stats, page};

/// Most bytes that wait for StatsD.
const MOST_WAITING: usize = 4 << 20;
/// How long a connection or a write may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest datagram: what fits a frame of Ethernet.
const DATAGRAM: usize = 1432;
/// The largest file of a mapping, in bytes.
const LARGEST: u64 = 1 << 20;

/// What the settings ask to be counted, if anything.
pub(super) fn of(settings: &Settings) -> Option<Arc<Stats>> {
    let is_shown = settings.metrics && settings.metrics_names != MetricNames::Own;
    let is_sent = settings.stats_sink != StatsSink::None;
    let stats = || Stats::new(settings.max_rule_stats, mapping(settings));
    let made = || if is_sent { stats() } else { stats().unsent() };
    (is_shown || is_sent).then(|| Arc::new(made()))
}

/// The mapping that is named, or the built-in one: a file that is not there or wrong is no reason not to limit.
fn mapping(settings: &Settings) -> Mapping {
    let built_in = || Mapping::built_in(settings.metrics_milliseconds);
    let Some(path) = &settings.metrics_mapping else { return built_in() };
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    let text = match std::fs::read_to_string(path) {
        Ok(text) if size <= LARGEST => text,
        Ok(_) => String::new(),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "the file of metrics_mapping (PROMETHEUS_MAPPER_YAML) cannot be read; the built-in one is taken");
            return built_in();
        }
    };
    Mapping::read(&text).unwrap_or_else(|error| {
        let path = path.display();
        tracing::error!(%path, %error, "the file of metrics_mapping (PROMETHEUS_MAPPER_YAML) is wrong; the built-in one is taken");
        built_in()
    })
}

/// What looks up the reference's statistics that are counted elsewhere.
pub(super) type Look = Arc<dyn Fn() -> Vec<Looked> + Send + Sync>;

/// Those of this process.
pub(super) fn look(
    engine: &Arc<Engine>,
    tls: Option<Arc<Tls>>,
    files: impl Fn() -> usize + Send + Sync + 'static,
) -> Look {
    let engine = Arc::clone(engine);
    Arc::new(move || {
        let files = u64::try_from(files()).unwrap_or(u64::MAX);
        let mut looked = vec![Looked::Gauge("runtime.num_values", files)];
        let inside = engine.inside();
        looked.extend(inside.connections.into_iter().flat_map(|pool| connections(FIRST, pool)));
        looked.extend(inside.per_second.into_iter().flat_map(|pool| connections(SECOND, pool)));
        looked.extend(inside.remembered.into_iter().flat_map(remembered));
        looked.extend(tls.iter().flat_map(|tls| certificates(tls.readings())));
        looked
    })
}

/// Names of what is open, what was made and what is gone.
const FIRST: [&str; 3] = [
    "ratelimit.redis_pool.cx_active",
    "ratelimit.redis_pool.cx_total",
    "ratelimit.redis_pool.cx_local_close",
];
const SECOND: [&str; 3] = [
    "ratelimit.redis_per_second_pool.cx_active",
    "ratelimit.redis_per_second_pool.cx_total",
    "ratelimit.redis_per_second_pool.cx_local_close",
];

fn connections([active, total, close]: [&'static str; 3], of: Connections) -> [Looked; 3] {
    let open = of.made.saturating_sub(of.gone);
    [Looked::Gauge(active, open), Looked::Counter(total, of.made), Looked::Counter(close, of.gone)]
}

fn remembered(of: Remembered) -> [Looked; 8] {
    [
        ("ratelimit.localcache.evacuateCount", of.evicted),
        ("ratelimit.localcache.expiredCount", of.expired),
        ("ratelimit.localcache.entryCount", of.keys),
        ("ratelimit.localcache.averageAccessTime", of.average_found_at()),
        ("ratelimit.localcache.hitCount", of.hits),
        ("ratelimit.localcache.missCount", of.misses),
        ("ratelimit.localcache.lookupCount", of.hits + of.misses),
        ("ratelimit.localcache.overwriteCount", of.overwritten),
    ]
    .map(|(name, value)| Looked::Gauge(name, value))
}

fn certificates(of: Readings) -> [Looked; 3] {
    [
        Looked::Counter("certs.load_attempts", of.attempts),
        Looked::Counter("certs.load_failures", of.failures),
        Looked::Gauge("certs.num_values", of.files),
    ]
}

/// The page of metrics: `own`, the reference's, or both.
pub(super) fn pages(
    names: MetricNames,
    own: impl Fn() -> String + Send + Sync + 'static,
    engine: Arc<Engine>,
    look: Look,
) -> Arc<dyn Fn() -> String + Send + Sync> {
    let reference = move || {
        let Some(stats) = engine.stats() else { return String::new() };
        stats.pass(engine.clock().now());
        page(stats, &look())
    };
    Arc::new(move || match names {
        MetricNames::Own => own(),
        MetricNames::Reference => reference(),
        MetricNames::All => reference() + &own(),
    })
}

/// How that page may be had: the reference's in its own format alone, for it has counters that are not called `_total`.
pub(super) const fn formats(names: MetricNames) -> Formats {
    match names {
        MetricNames::Own => Formats::Both,
        MetricNames::Reference | MetricNames::All => Formats::Text,
    }
}

/// Sends statistics for ever.
pub(super) async fn send(settings: Settings, stats: Arc<Stats>, look: Look) {
    let dialect = match settings.stats_sink {
        StatsSink::None => return std::future::pending().await,
        StatsSink::Statsd => Dialect::Statsd,
        StatsSink::Dogstatsd => Dialect::Dogstatsd,
        StatsSink::Log => Dialect::Log,
    };
    let rewrites = settings.stats_mogrifiers.0.iter().filter_map(rewrite).collect();
    let mut lines = Lines::new(dialect, &settings.stats_tags.0, rewrites);
    let mut sink = Sink::of(&settings);
    let mut ticks = interval(settings.stats_interval.into());
    loop {
        ticks.tick().await;
        sink.take(lines.next(&stats, &look()));
        sink.send().await;
    }
}

fn rewrite(rule: &Mogrifier) -> Option<Rewrite> {
    // The settings have compiled it before.
    let pattern = Regex::new(&rule.pattern).ok()?;
    Some(Rewrite { pattern, name: rule.name.clone(), tags: rule.tags.clone() })
}

struct Sink {
    to: To,
    waiting: VecDeque<String>,
    bytes: usize,
    is_cut_off: bool,
}

enum To {
    Log,
    Tcp(Address, Option<TcpStream>),
    Udp(Address, Option<UdpSocket>),
}

impl Sink {
    fn of(settings: &Settings) -> Self {
        let to = match (&settings.stats_address, settings.stats_sink) {
            (None, _) | (_, StatsSink::Log | StatsSink::None) => To::Log,
            (Some(at), StatsSink::Statsd) if settings.stats_protocol == StatsProtocol::Tcp => {
                To::Tcp(at.clone(), None)
            }
            (Some(at), _) => To::Udp(at.clone(), None),
        };
        Self { to, waiting: VecDeque::new(), bytes: 0, is_cut_off: false }
    }

    fn take(&mut self, lines: Vec<String>) {
        let mut dropped = 0_u64;
        for line in lines {
            if MOST_WAITING < self.bytes + line.len() {
                dropped += 1;
                continue;
            }
            self.bytes += line.len() + 1;
            self.waiting.push_back(line + "\n");
        }
        if dropped != 0 {
            tracing::warn!(dropped, "statistics are lost: nobody takes them, and no more can wait");
        }
    }

    /// Sends what waits, until something fails.
    async fn send(&mut self) {
        let sent = timeout(PATIENCE, self.to.send(&mut self.waiting)).await;
        let error = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(std::io::ErrorKind::TimedOut.into()),
        };
        self.bytes = self.waiting.iter().map(String::len).sum();
        if let Some(error) = &error {
            self.to.hang_up();
            if !self.is_cut_off {
                tracing::warn!(to = %self.to, %error, "statistics cannot be sent; trying on");
            }
        }
        self.is_cut_off = error.is_some();
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log => f.write_str("the log"),
            Self::Tcp(at, _) => write!(f, "{}:{} (tcp)", at.host, at.port),
            Self::Udp(at, _) => write!(f, "{}:{} (udp)", at.host, at.port),
        }
    }
}

impl To {
    async fn send(&mut self, waiting: &mut VecDeque<String>) -> std::io::Result<()> {
        match self {
            Self::Log => {
                let text: String = waiting.drain(..).collect();
                std::io::stderr().lock().write_all(text.as_bytes())
            }
            Self::Tcp(at, held) => {
                let mut stream = match held.take() {
                    Some(stream) => stream,
                    None => TcpStream::connect((at.host.as_str(), at.port)).await?,
                };
                while let Some(packet) = packet(waiting, 64 << 10) {
                    stream.write_all(packet.as_bytes()).await?;
                }
                *held = Some(stream);
                Ok(())
            }
            Self::Udp(at, held) => {
                let socket = match held.take() {
                    Some(socket) => socket,
                    None => connected(at).await?,
                };
                while let Some(packet) = packet(waiting, DATAGRAM) {
                    // Nobody may listen just now, which UDP tells only to the next one that is sent.
                    drop(socket.send(packet.trim_end().as_bytes()).await);
                }
                *held = Some(socket);
                Ok(())
            }
        }
    }

    fn hang_up(&mut self) {
        match self {
            Self::Log => {}
            Self::Tcp(_, stream) => *stream = None,
            Self::Udp(_, socket) => *socket = None,
        }
    }
}

/// The next lines that fit together, at least one.
fn packet(waiting: &mut VecDeque<String>, most: usize) -> Option<String> {
    let mut packet = waiting.pop_front()?;
    while waiting.front().is_some_and(|next| packet.len() + next.len() <= most) {
        packet.push_str(&waiting.pop_front()?);
    }
    Some(packet)
}

async fn connected(at: &Address) -> std::io::Result<UdpSocket> {
    let found = lookup_host((at.host.as_str(), at.port)).await?.next();
    let address = found.ok_or(std::io::ErrorKind::NotFound)?;
    let own = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(address).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::{DATAGRAM, packet};

    #[test]
    fn a_datagram_is_as_long_as_fits_a_frame_of_ethernet_and_no_longer() {
        // 1432: what StatsD advises for fast Ethernet (docs/metric_types.md, "Multi-Metric Packets").
        let lines = |lengths: [usize; 3]| lengths.map(|length| "x".repeat(length)).into();
        let lengths = |mut waiting| {
            std::iter::from_fn(move || packet(&mut waiting, DATAGRAM))
                .map(|one| one.len())
                .collect()
        };
        let of = |its| -> Vec<usize> { lengths(lines(its)) };
        assert_eq!(of([700, 732, 1]), [1_432, 1]);
        assert_eq!(of([700, 733, 1]), [700, 734]);
        // What is longer alone is not held back.
        assert_eq!(of([1_433, 1_431, 1]), [1_433, 1_432]);
    }
}
