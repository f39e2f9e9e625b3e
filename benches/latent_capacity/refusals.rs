//! A provider that refuses requests above its hidden capacity, which fluctuates as in
//! [`super::model`].
//!
//! Requests arrive every 2 ms. The limit sheds a request or sends it. The provider serves it in
//! about 1 s, or refuses it after 5 ms if it already serves as many as its capacity. So latency
//! never shows a queue: refusals, which count as dropped, are the only sign.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, LatencySample,
};
use sluicegate_kernel::units::Nanos;

use super::model::{Capacity, Played, Shock};

const ARRIVALS_PER_STEP: u64 = 500;
const INTERVAL: u64 = Nanos::SECOND.0 / ARRIVALS_PER_STEP;
const REFUSAL: u64 = 5 * Nanos::MILLI.0;

/// The part of the last second's capacity that an informed limit uses: the refused part is near 3 %.
const INFORMED: f64 = 0.98;

/// The limit on requests in flight: an algorithm, or an oracle that knows the capacity. The informed
/// limit knows the capacity of the last second, and the new one after a refusal.
enum Gate {
    Oracle,
    Informed(u32),
    Algorithm(Box<AdaptiveLimit>),
}

/// A sent request: its end, its start, the requests in flight at its start, and its outcome.
type Sent = (u64, u64, u32, bool);

struct Provider<'a> {
    gate: Gate,
    trace: &'a [Shock],
    capacity: u32,
    now: u64,
    sent: BinaryHeap<Reverse<Sent>>,
    served: u32,
    /// The most requests in flight in this step.
    peak: u32,
    count: usize,
    played: Played,
}

/// Receives the capacity and the limit of each step.
pub type Observer<'a> = dyn FnMut(u32, u32) + 'a;

/// The result of an algorithm that counts refusals as dropped.
pub fn product(trace: &[Shock], law: AdaptiveAlgorithm) -> Played {
    observed(trace, law, &mut |_, _| {})
}

/// The same, with an observer.
pub fn observed(trace: &[Shock], law: AdaptiveAlgorithm, observe: &mut Observer<'_>) -> Played {
    let config = AdaptiveConfig::new(law, 1, 1_000);
    let limit = AdaptiveLimit::new(10, Some(config), 0);
    play(trace, Gate::Algorithm(Box::new(limit)), observe)
}

/// The result of a limit that is told the capacity a second late, or with the first refusal. No
/// algorithm knows as much.
pub fn informed(trace: &[Shock]) -> Played {
    play(trace, Gate::Informed(10), &mut |_, _| {})
}

/// The result of a limit that always equals the capacity.
pub fn oracle(trace: &[Shock]) -> Played {
    play(trace, Gate::Oracle, &mut |_, _| {})
}

fn play(trace: &[Shock], gate: Gate, observe: &mut Observer<'_>) -> Played {
    let mut provider = Provider {
        gate,
        trace,
        capacity: 0,
        now: Nanos::from_secs(1_000).0,
        sent: BinaryHeap::new(),
        served: 0,
        peak: 0,
        count: 0,
        played: Played { passed: 0.0, failed: 0.0 },
    };
    let mut capacity = Capacity::default();
    for shock in trace {
        let peak = std::mem::take(&mut provider.peak);
        if let Gate::Informed(limit) = &mut provider.gate {
            *limit = (f64::from(provider.capacity) * INFORMED).round().max(1.0) as u32;
        }
        provider.capacity = capacity.step(f64::from(peak.max(1)), shock) as u32;
        provider.step();
        observe(provider.capacity, provider.limit());
    }
    provider.played
}

impl Provider<'_> {
    fn step(&mut self) {
        for _ in 0..ARRIVALS_PER_STEP {
            self.now += INTERVAL;
            while self.sent.peek().is_some_and(|Reverse((end, ..))| *end <= self.now) {
                self.end_next();
            }
            self.arrive();
        }
    }

    fn limit(&self) -> u32 {
        match &self.gate {
            Gate::Oracle => self.capacity,
            Gate::Informed(limit) => *limit,
            Gate::Algorithm(limit) => limit.limit(),
        }
    }

    fn arrive(&mut self) {
        let in_flight = self.sent.len() as u32 + 1;
        if self.limit() < in_flight {
            return;
        }
        self.peak = self.peak.max(in_flight);
        let is_served = self.served < self.capacity;
        let lasts = if is_served { self.service_time() } else { REFUSAL };
        self.served += u32::from(is_served);
        self.sent.push(Reverse((self.now + lasts, self.now, in_flight, is_served)));
    }

    /// About 1 s. The noise of the trace repeats with a period that is no multiple of a step.
    fn service_time(&mut self) -> u64 {
        self.count += 1;
        let noise = self.trace[self.count % self.trace.len()].latency;
        ((1.0 + noise).max(0.1) * 1e9) as u64
    }

    fn end_next(&mut self) {
        let Some(Reverse((end, start, in_flight, is_served))) = self.sent.pop() else { return };
        self.served -= u32::from(is_served);
        let outcome = if is_served { RequestOutcome::Success } else { RequestOutcome::Dropped };
        *(if is_served { &mut self.played.passed } else { &mut self.played.failed }) += 1.0;
        match &mut self.gate {
            Gate::Algorithm(limit) => {
                let rtt = Nanos(end - start);
                let sample = LatencySample { ended_at: Nanos(end), rtt, in_flight, outcome };
                limit.record(&sample, u32::MAX);
            }
            Gate::Informed(limit) if !is_served => *limit = self.capacity,
            Gate::Informed(_) | Gate::Oracle => {}
        }
    }
}
