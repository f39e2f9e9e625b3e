//! Arguments of `sluicegate bench`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::TlsArgs;
use crate::config::resolve::duration;
use crate::kernel::units::{Nanos, Unit};

const SHORTEST_STEP: Nanos = Nanos(100 * Nanos::MILLI.0);
const LONGEST_STEP: Nanos = Nanos::from_secs(3_600);
const LONGEST_TIMEOUT: Nanos = Nanos::from_secs(60);

/// Arguments of `sluicegate bench`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("grpc_only").multiple(true).args(["address", "max_in_flight", "tls"])))]
#[command(
    after_help = "Charges the counters of the service, as every caller does. Use a domain that no other \
caller uses. Ctrl-C ends the load and prints the results so far."
)]
pub struct BenchArgs {
    /// Address of a gRPC port with `envoy.service.ratelimit.v3.RateLimitService`.
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "HOST:PORT")]
    pub address: String,
    /// Send POST with JSON to this URL instead, such as `http://127.0.0.1:8080/json`. Without TLS.
    #[arg(long, value_name = "URL", conflicts_with = "grpc_only")]
    pub url: Option<String>,
    /// Domain of the checks.
    #[arg(long)]
    pub domain: String,
    /// One descriptor of each check: its entries in order, as `key=value,key=value`. `{key}` in a
    /// value stands for a number from 0 to `--keys` - 1. May be repeated.
    #[arg(long = "descriptor", value_name = "K=V,…", required = true)]
    pub descriptors: Vec<String>,
    /// Repeat the descriptors this many times in each check, each time with a randomly chosen key.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub copies: u32,
    /// Number of different values of `{key}`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: u32,
    /// Exponent of the Zipf distribution of the keys, 0 to 10. 0 uses all keys equally.
    #[arg(long, value_name = "S", default_value = "0", value_parser = parse_skew)]
    pub skew: f64,
    /// Seed of the choice of keys. The same seed sends the same checks.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Hits of each descriptor.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub hits: u32,
    /// Checks per second. Each number is one step, measured after the one before. Checks are sent at
    /// constant intervals, whether or not the service replies.
    #[arg(long, value_name = "R,R,…", default_value = "1000", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Vec<u32>,
    /// Duration of each step, 100ms to 1h.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_step)]
    pub duration: Nanos,
    /// Longest wait for a reply after the check was sent, 1ms to 60s.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    pub timeout: Nanos,
    /// Connections. Over HTTP, each has one check in flight.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Largest number of checks in flight over gRPC. Further checks wait; the wait is part of their
    /// latency.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,
    /// Process of the service, on this machine: print its CPU time per check.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// The limit of each key, such as `100/minute`: print the hits allowed above it, and the hits
    /// denied although it had room.
    #[arg(long, value_name = "N/UNIT", value_parser = parse_limit)]
    pub limit: Option<RequestsPerUnit>,
    /// Strategy of `--limit`.
    #[arg(long, value_enum, default_value_t = BenchStrategy::FixedWindow, requires = "limit")]
    pub strategy: BenchStrategy,
    /// Burst of `--strategy gcra`. Default: the number of `--limit`.
    #[arg(long, value_name = "N", requires = "limit", value_parser = clap::value_parser!(u64).range(1..))]
    pub burst: Option<u64>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = BenchFormat::Table)]
    pub format: BenchFormat,
    /// Also draw the latency of each step by percentile into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// TLS of the connections to `--address`.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// The value of the flag `--limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestsPerUnit {
    /// Hits per unit.
    pub requests: u64,
    /// The unit.
    pub unit: Unit,
}

/// The strategies of the flag `--limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchStrategy {
    /// Windows of the unit's length.
    #[value(name = "fixed_window")]
    FixedWindow,
    /// A bucket that fills evenly.
    Gcra,
}

/// The output formats of `sluicegate bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table for people.
    Table,
    /// One JSON document.
    Json,
}

fn parse_skew(text: &str) -> Result<f64, &'static str> {
    let skew = text.parse().ok().filter(|skew| (0.0..=10.0).contains(skew));
    skew.ok_or("use a number from 0 to 10, such as 1.1")
}

fn parse_step(text: &str) -> Result<Nanos, &'static str> {
    let step = duration::parse(text).ok();
    let step = step.filter(|step| (SHORTEST_STEP..=LONGEST_STEP).contains(step));
    step.ok_or("use a duration from 100ms to 1h, such as 10s")
}

fn parse_timeout(text: &str) -> Result<Nanos, &'static str> {
    let timeout = duration::parse(text).ok();
    let timeout = timeout.filter(|timeout| (Nanos::MILLI..=LONGEST_TIMEOUT).contains(timeout));
    timeout.ok_or("use a duration from 1ms to 60s, such as 500ms")
}

fn parse_limit(text: &str) -> Result<RequestsPerUnit, &'static str> {
    let parts = text.split_once('/').and_then(|(requests, unit)| {
        let unit = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day]
            .into_iter()
            .find(|known| known.to_string() == unit)?;
        // The largest number of a limits file.
        let requests = requests.parse().ok().filter(|requests| *requests < 1 << 53)?;
        Some(RequestsPerUnit { requests, unit })
    });
    parts.ok_or("use N/second, N/minute, N/hour or N/day, such as 100/minute")
}
