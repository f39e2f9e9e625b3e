//! A provider that serves calls at a hidden rate, which fluctuates as in [`super::model`].
//!
//! It has a bucket of tokens, one for each call: it fills with the rate, up to the tokens of half a second.
//! A call without a token is refused after 5 ms, the others are served in about 1 s. The callers always
//! have a next call.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluicegate_kernel::concurrency::Permit;
use sluicegate_kernel::units::Nanos;

use super::model::{Capacity, Played, Shock};
use super::pace::{self, Settings};

const SERVED: f64 = 1.0;
const REFUSED: Nanos = Nanos(5 * Nanos::MILLI.0);
/// The tokens of the bucket, in seconds of the rate.
const BURST: f64 = 0.5;

/// A caller without a pace.
#[derive(Clone, Copy, Debug)]
pub enum Caller {
    Constant(f64),
    /// Calls at the hidden rate of the second before.
    ToldLate,
}

/// Receives the capacity and the rate of each second.
pub type Observer<'a> = dyn FnMut(f64, f64) + 'a;

struct Provider {
    hidden: Capacity,
    rate: f64,
    tokens: f64,
    filled_at: f64,
    calls: u32,
    played: Played,
}

impl Provider {
    fn new() -> Self {
        let played = Played { passed: 0.0, failed: 0.0 };
        let hidden = Capacity::default();
        Self { hidden, rate: 20.0, tokens: 10.0, filled_at: 0.0, calls: 0, played }
    }

    /// Starts the next second. Calls above the capacity pull it down.
    fn next_second(&mut self, shock: &Shock, now: f64) {
        self.fill(now);
        self.rate = self.hidden.step(f64::from(self.calls.max(1)), shock);
        self.calls = 0;
    }

    fn fill(&mut self, now: f64) {
        let tokens = self.tokens + (now - self.filled_at) * self.rate;
        (self.tokens, self.filled_at) = (tokens.min(BURST * self.rate), now);
    }

    /// Returns `true` if the call is refused.
    fn call(&mut self, now: f64) -> bool {
        self.fill(now);
        self.calls += 1;
        if self.tokens < 1.0 {
            self.played.failed += 1.0;
            return true;
        }
        self.tokens -= 1.0;
        self.played.passed += 1.0;
        false
    }
}

pub fn play(trace: &[Shock], caller: Caller, observe: &mut Observer<'_>) -> Played {
    let (mut provider, mut next) = (Provider::new(), 0.0);
    for (second, shock) in trace.iter().enumerate() {
        let before = provider.rate;
        provider.next_second(shock, second as f64);
        let rate = match caller {
            Caller::Constant(rate) => rate,
            Caller::ToldLate => before,
        };
        observe(provider.rate, rate);
        while next < (second + 1) as f64 {
            provider.call(next);
            next += 1.0 / rate;
        }
    }
    provider.played
}

/// A call at the provider: the instant of its answer, a number, and whether it is refused.
type Pending = Reverse<(Nanos, Permit, bool)>;

/// The result of a pace from 10 calls per second.
pub fn paced(trace: &[Shock], settings: Settings, observe: &mut Observer<'_>) -> Played {
    let (mut provider, mut limiter) = (Provider::new(), pace::limiter(settings, (10, 500)));
    let mut pending: BinaryHeap<Pending> = BinaryHeap::new();
    for (second, shock) in trace.iter().enumerate() {
        let start = Nanos::from_secs(second as u64);
        let end = start.plus(Nanos::SECOND);
        provider.next_second(shock, second as f64);
        observe(provider.rate, pace::rate(&limiter));
        loop {
            let turn = pace::next_turn(&limiter).max(start);
            let answer = pending.peek().map(|Reverse((at, ..))| *at).filter(|at| *at <= turn);
            if answer.unwrap_or(turn) >= end {
                break;
            }
            if let Some(at) = answer {
                let Some(Reverse((_, permit, is_refused))) = pending.pop() else { break };
                pace::release(&mut limiter, at, permit, is_refused);
                continue;
            }
            let permit = pace::take(&mut limiter, turn);
            let is_refused = provider.call(turn.0 as f64 / 1e9);
            let served = Nanos(((SERVED + shock.latency).max(0.05) * 1e9) as u64);
            let at = turn.plus(if is_refused { REFUSED } else { served });
            pending.push(Reverse((at, permit, is_refused)));
        }
    }
    provider.played
}
