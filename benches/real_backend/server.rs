//! A simulated server with workers and a queue, in virtual time, under saturating clients.
//!
//! Allowed requests wait for a worker, first in, first out. A worker needs the phase's service time
//! with random variation. Requests carry over from one phase to the next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{AdaptiveLimit, LatencySample};
use sluicegate_kernel::units::Nanos;

/// Variation of service times around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Uniform within a fifth on either side.
    Narrow,
    /// Half fixed, half exponential.
    Half,
    /// Exponential.
    Wide,
}

#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// Workers at the start and at the end, with a linear change between them.
    pub workers: (f64, f64),
    /// Mean service time in seconds.
    pub service: f64,
    /// Seconds for the algorithm to recover.
    pub recovery: f64,
    /// Seconds, including recovery.
    pub length: f64,
}

/// Results of a phase: after recovery, and in total.
#[derive(Clone, Copy, Debug)]
pub struct Result {
    pub goodput: f64,
    pub p99: f64,
    pub whole_goodput: f64,
    pub whole_p99: f64,
}

/// Runs `policy` through `phases` in order.
pub fn run(mut policy: AdaptiveLimit, phases: &[Phase], spread: Spread, seed: u64) -> Vec<Result> {
    let mut server = Server::new(spread, seed);
    phases.iter().map(|phase| server.live(phase, &mut policy)).collect()
}

struct Request {
    admitted: f64,
    among: u32,
}

struct Server {
    now: f64,
    spread: Spread,
    dice: u64,
    waiting: VecDeque<Request>,
    /// Busy workers: completion time in nanoseconds, and index in `at_work`.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    at_work: Vec<Option<Request>>,
    in_flight: u32,
}

impl Server {
    fn new(spread: Spread, seed: u64) -> Self {
        let (waiting, busy, at_work) = (VecDeque::new(), BinaryHeap::new(), Vec::new());
        Self { now: 1.0, spread, dice: seed, waiting, busy, at_work, in_flight: 0 }
    }

    fn live(&mut self, phase: &Phase, policy: &mut AdaptiveLimit) -> Result {
        let began = self.now;
        let mut served = Vec::new();
        loop {
            self.admit(policy.limit());
            self.work(phase, (self.now - began) / phase.length);
            let Some(request) = self.next_done(began + phase.length) else { break };
            let rtt = self.now - request.admitted;
            served.push((self.now - began, rtt));
            policy.record(&sample(self.now, rtt, request.among), u32::MAX);
        }
        self.now = began + phase.length;
        summary(phase, &served)
    }

    fn admit(&mut self, limit: u32) {
        while self.in_flight < limit {
            self.in_flight += 1;
            self.waiting.push_back(Request { admitted: self.now, among: self.in_flight });
        }
    }

    fn work(&mut self, phase: &Phase, part: f64) {
        let (first, last) = phase.workers;
        let workers = (first + (last - first) * part).round() as usize;
        while self.busy.len() < workers {
            let Some(request) = self.waiting.pop_front() else { return };
            let done = self.now + phase.service * self.varied();
            let place = self.at_work.iter().position(Option::is_none);
            let place = place.unwrap_or_else(|| {
                self.at_work.push(None);
                self.at_work.len() - 1
            });
            self.at_work[place] = Some(request);
            self.busy.push(Reverse(((done * 1e9) as u64, place)));
        }
    }

    fn next_done(&mut self, end: f64) -> Option<Request> {
        let &Reverse((done, place)) = self.busy.peek()?;
        let done = done as f64 / 1e9;
        if end <= done {
            return None;
        }
        self.busy.pop();
        (self.now, self.in_flight) = (done.max(self.now), self.in_flight - 1);
        self.at_work[place].take()
    }

    fn varied(&mut self) -> f64 {
        let uniform = self.uniform();
        match self.spread {
            Spread::Narrow => 0.8 + 0.4 * uniform,
            Spread::Half => 0.5 - 0.5 * uniform.ln(),
            Spread::Wide => -uniform.ln(),
        }
    }

    /// A uniform number above 0 (`SplitMix64`).
    fn uniform(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / 9_007_199_254_740_992.0 + f64::EPSILON
    }
}

fn sample(at: f64, rtt: f64, in_flight: u32) -> LatencySample {
    let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
    LatencySample {
        ended_at: nanos(at),
        rtt: nanos(rtt),
        in_flight,
        outcome: RequestOutcome::Success,
    }
}

fn summary(phase: &Phase, served: &[(f64, f64)]) -> Result {
    let late: Vec<_> = served.iter().filter(|(at, _)| phase.recovery <= *at).collect();
    Result {
        goodput: late.len() as f64 / (phase.length - phase.recovery),
        p99: p99(late.iter().map(|served| served.1).collect()),
        whole_goodput: served.len() as f64 / phase.length,
        whole_p99: p99(served.iter().map(|served| served.1).collect()),
    }
}

fn p99(mut latencies: Vec<f64>) -> f64 {
    latencies.sort_by(f64::total_cmp);
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(f64::INFINITY)
}
