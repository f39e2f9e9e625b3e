//! A server with a fixed number of workers and a queue, in virtual time, under clients that always
//! want more.
//!
//! Whoever is admitted waits for a worker, first come, first served. A worker takes the phase's
//! service time, varied. Between phases the server is as the last one left it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::concurrency::policy::{Policy, Sample};
use sluicegate::kernel::units::Nanos;

/// How service times vary around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly within a fifth to either side.
    Narrow,
    /// Half of it fixed, half exponential.
    Half,
    /// Exponential.
    Wide,
}

/// One stretch of the server's life.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// Workers at its beginning and at its end; they come and go evenly.
    pub workers: (f64, f64),
    /// Seconds.
    pub service: f64,
    /// Seconds that a policy has to recover in.
    pub recovery: f64,
    /// Seconds, recovery included.
    pub length: f64,
}

/// What came of a phase: after recovery, and of the whole.
#[derive(Clone, Copy, Debug)]
pub struct Result {
    pub goodput: f64,
    pub p99: f64,
    pub whole_goodput: f64,
    pub whole_p99: f64,
}

/// What `policy` makes of `phases`, one after the other.
pub fn run(mut policy: Policy, phases: &[Phase], spread: Spread, seed: u64) -> Vec<Result> {
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
    /// Those at work: when each is done, in nanoseconds, and which it is.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    at_work: Vec<Option<Request>>,
    in_flight: u32,
}

impl Server {
    fn new(spread: Spread, seed: u64) -> Self {
        let (waiting, busy, at_work) = (VecDeque::new(), BinaryHeap::new(), Vec::new());
        Self { now: 1.0, spread, dice: seed, waiting, busy, at_work, in_flight: 0 }
    }

    fn live(&mut self, phase: &Phase, policy: &mut Policy) -> Result {
        let began = self.now;
        let mut served = Vec::new();
        loop {
            self.admit(policy.limit());
            self.work(phase, (self.now - began) / phase.length);
            let Some(request) = self.next_done(began + phase.length) else { break };
            let rtt = self.now - request.admitted;
            served.push((self.now - began, rtt));
            policy.step(&sample(self.now, rtt, request.among), u32::MAX);
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

    /// `SplitMix64`, without zero.
    fn uniform(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / 9_007_199_254_740_992.0 + f64::EPSILON
    }
}

fn sample(at: f64, rtt: f64, in_flight: u32) -> Sample {
    let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
    Sample { at: nanos(at), rtt: nanos(rtt), in_flight, outcome: Outcome::Success }
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
