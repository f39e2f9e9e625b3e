//! Time to compare two configurations for a recording of ten million checks, on one core.
//!
//! The checks have 1 M keys with a skewed use, two descriptors each, at 10,000 checks per second.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use sluicegate::config::{Config, load};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::recording::percent::Percent;
use sluicegate::recording::{
    CheckOrder, CheckOutcome, RecordedDecision, RecordedPlanning, RecordingHeader, RecordingWriter,
};
use sluicegate::replay::comparison::{ReplayLimits, compare};

const CHECKS: u64 = 10_000_000;
const KEYS: u64 = 1_000_000;
const START: Nanos = Nanos::from_secs(1_763_632_345);
const INTERVAL: Nanos = Nanos(100_000);

fn main() {
    let began = Instant::now();
    let recording = recording();
    println!("wrote {} MB in {:.1?}", recording.len() / 1_000_000, began.elapsed());
    let limits = ReplayLimits { old: limits(600), new: Some(limits(300)) };
    let began = Instant::now();
    let comparison = compare(&*recording, limits).unwrap();
    let newly_denied = comparison.new.unwrap().newly_denied;
    println!(
        "replayed {} checks with two configurations in {:.1?}, {newly_denied} newly denied",
        comparison.checks,
        began.elapsed()
    );
}

fn limits(requests: u32) -> Config {
    let file = format!(
        "domain: shop\ndescriptors:\n\
         - {{key: api_key, rate_limit: {{unit: minute, requests_per_unit: {requests}}}}}\n\
         - {{key: path, value: /pay*, \
            rate_limit: {{unit: second, requests_per_unit: 5000, strategy: gcra, burst: 50}}}}\n"
    );
    load([("limits.yaml", file.as_bytes())], Revision(1), false).unwrap().0
}

fn recording() -> Vec<u8> {
    let header = RecordingHeader {
        salt: None,
        sample: Percent::ALL,
        started_at: START,
        order: CheckOrder::Decisions,
        planning: RecordedPlanning::default(),
    };
    let mut bytes = Vec::new();
    let mut writer = RecordingWriter::start(&mut bytes, &header).unwrap();
    let mut random = 1_u64;
    for number in 0..CHECKS {
        // An xorshift generator; the square makes small keys more frequent.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let share = random % 1_000_000;
        let (key, path) = (share * share / 1_000_000 * KEYS / 1_000_000, number % 100);
        let (key, path) = (format!("customer-{key}"), format!("/pay/{path}"));
        let descriptor = |entry| Descriptor {
            entries: [entry].into_iter().collect(),
            cost: Cost::Charge(Hits(1)),
            limit: None,
        };
        let descriptors = [descriptor(("api_key", &*key)), descriptor(("path", &*path))];
        let check = Check { domain: "shop", descriptors: descriptors.into_iter().collect() };
        let time = START.plus(Nanos(number * INTERVAL.0));
        let decision = RecordedDecision { time, outcome: CheckOutcome::Allow, denied_by: None };
        writer.add(&check, decision).unwrap();
    }
    writer.finish().unwrap();
    bytes
}
