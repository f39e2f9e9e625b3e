//! The results of a bench as a table or as JSON.
//!
//! Not covered:
//! - The picture (see [`super::plot`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::latency::LatencyHistogram;
use super::law::{LawError, LawStrategy, LimitLaw};
use super::load::StepResult;
use crate::kernel::units::Nanos;

/// The reported quantiles, in millionths.
const QUANTILES: [(&str, u64); 4] =
    [("p50", 500_000), ("p90", 900_000), ("p99", 990_000), ("p99.9", 999_000)];

const COLUMNS: [&str; 12] = [
    "RATE",
    "SENT",
    "NOT SENT",
    "FAILED",
    "DECIDED/S",
    "P50",
    "P90",
    "P99",
    "P99.9",
    "MAX",
    "DELAY P99",
    "CPU/CHECK",
];

/// The results of a bench.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// The protocol and the address, such as `gRPC 127.0.0.1:8081`.
    pub target: String,
    /// The number of keys, as the user gave it.
    pub keys: u32,
    /// The exponent of the Zipf distribution.
    pub skew: f64,
    /// Hits of each descriptor.
    pub hits: u32,
    /// The seed of the choice of keys.
    pub seed: u64,
    /// The steps, in order.
    pub steps: Vec<StepResult>,
    /// The error against the limit, if the user gave it.
    pub law: Option<(LimitLaw, LawError)>,
}

impl BenchReport {
    /// Formats the results for people.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { target, keys, skew, hits, seed, .. } = self;
        let mut text = format!("{target}: keys {keys}, skew {skew}, hits {hits}, seed {seed}\n");
        line(&mut text, &COLUMNS.map(str::to_owned));
        for step in &self.steps {
            line(&mut text, &cells(step));
        }
        for step in &self.steps {
            let codes = step.tally.codes.iter().map(|(code, count)| format!("{code} {count}"));
            let codes = codes.collect::<Vec<_>>().join(", ");
            let _infallible = writeln!(text, "answers at {}/s: {codes}", step.rate);
        }
        if let Some((law, error)) = &self.law {
            let LawError { allowed, denied, over, under } = error;
            let (requests, unit, strategy) = (law.requests, law.unit, strategy(law.strategy));
            let _infallible = writeln!(
                text,
                "limit {requests} per {unit}, {strategy}: {over} hits over, {under} under; \
                 {allowed} allowed, {denied} denied"
            );
        }
        text
    }

    /// Returns the results as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let law = self.law.as_ref().map(|(law, error)| {
            json!({
                "requests": law.requests, "unit": law.unit.to_string(),
                "strategy": strategy(law.strategy), "allowed_hits": error.allowed,
                "denied_hits": error.denied, "over_hits": error.over, "under_hits": error.under,
            })
        });
        json!({
            "target": self.target, "keys": self.keys, "skew": self.skew, "hits": self.hits,
            "seed": self.seed, "steps": self.steps.iter().map(step_json).collect::<Vec<_>>(),
            "law": law,
        })
    }

    /// Returns `true` if no check got a decision, or if more hits were allowed than the limit.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        let is_over = self.law.as_ref().is_some_and(|(_, error)| 0 < error.over);
        is_over || self.steps.iter().all(|step| step.tally.decisions() == 0)
    }
}

impl StepResult {
    /// Returns the decisions per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn decisions_per_second(&self) -> f64 {
        self.tally.decisions() as f64 / (self.elapsed.0.max(1) as f64 / 1e9)
    }

    /// Returns the CPU time of the server per check that was sent, in microseconds.
    #[must_use]
    pub fn cpu_micros_per_check(&self) -> Option<f64> {
        let sent = self.tally.sent();
        self.cpu.filter(|_| 0 < sent).map(|cpu| micros(Nanos(cpu.0 / sent)))
    }
}

fn cells(step: &StepResult) -> [String; 12] {
    let tally = &step.tally;
    let quantiles = QUANTILES.map(|(_, millionths)| quantile(&tally.latency, millionths));
    let [p50, p90, p99, p99_9] = quantiles;
    let cpu = step.cpu_micros_per_check().map_or("-".to_owned(), |cpu| format!("{cpu:.1}µs"));
    [
        format!("{}/s", step.rate),
        tally.sent().to_string(),
        tally.not_sent.to_string(),
        (tally.sent() - tally.decisions()).to_string(),
        format!("{:.0}", step.decisions_per_second()),
        p50,
        p90,
        p99,
        p99_9,
        quantile(&tally.latency, 1_000_000),
        quantile(&tally.send_delay, 990_000),
        cpu,
    ]
}

fn line(text: &mut String, cells: &[String; 12]) {
    let widths = COLUMNS.map(|name| name.len().max(8) + 1);
    for (cell, width) in cells.iter().zip(widths) {
        let _infallible = write!(text, "{cell:>width$}");
    }
    text.push('\n');
}

fn quantile(latencies: &LatencyHistogram, millionths: u64) -> String {
    match latencies.count() {
        0 => "-".to_owned(),
        _ => time_text(latencies.quantile(millionths)),
    }
}

/// Formats a time in µs, ms or s.
pub(super) fn time_text(time: Nanos) -> String {
    let micros = micros(time);
    match time.0 {
        0..1_000_000 => format!("{micros:.0}µs"),
        1_000_000..1_000_000_000 => format!("{:.1}ms", micros / 1e3),
        _ => format!("{:.2}s", micros / 1e6),
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

const fn strategy(strategy: LawStrategy) -> &'static str {
    match strategy {
        LawStrategy::FixedWindow => "fixed_window",
        LawStrategy::Gcra { .. } => "gcra",
    }
}

fn step_json(step: &StepResult) -> Value {
    let tally = &step.tally;
    let codes: BTreeMap<_, _> =
        tally.codes.iter().map(|(code, count)| (code.to_string(), count)).collect();
    json!({
        "rate": step.rate, "seconds": micros(step.elapsed) / 1e6,
        "sent": tally.sent(), "not_sent": tally.not_sent, "decided": tally.decisions(),
        "decided_per_second": step.decisions_per_second(),
        "latency_us": quantiles_json(&tally.latency),
        "send_delay_us": quantiles_json(&tally.send_delay),
        "cpu_us_per_check": step.cpu_micros_per_check(), "answers": codes,
    })
}

fn quantiles_json(latencies: &LatencyHistogram) -> Value {
    let quantile = |millionths| {
        Some(latencies).filter(|it| 0 < it.count()).map(|it| micros(it.quantile(millionths)))
    };
    let named = QUANTILES.into_iter().chain([("max", 1_000_000)]);
    let named = named.map(|(name, millionths)| (name.to_owned(), json!(quantile(millionths))));
    Value::Object(named.collect())
}
