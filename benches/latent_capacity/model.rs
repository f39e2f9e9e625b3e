//! The latent-capacity experiment: equations, noise, and the compared controllers.
//!
//! The logarithm of the capacity is an Ornstein-Uhlenbeck process that overload pulls down.
//! Latency is 1 s without a queue and `k / c` with one, plus noise. A controller sees only the
//! noisy latency.
//!
//! Source: J. Law, "Handling Concurrency", 2026; base 20, θ 0.05, σ 0.2, ℓ0 1.0, 300 steps. As in
//! the source, the latency of step t is weighted by the concurrency set after seeing it. A request
//! fails above 1.5 s.

use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, LatencySample,
};
use sluicegate_kernel::units::Nanos;

const BASE: f64 = 20.0;
const THETA: f64 = 0.05;
const SIGMA: f64 = 0.2;
const NOISE: f64 = 0.1;
pub const FAILS_ABOVE: f64 = 1.5;
const STEPS: usize = 300;
const RECORDED: &str = include_str!("noise.csv");

/// Noise of one step: a change of the capacity, and an error of the observed latency.
#[derive(Clone, Copy, Debug)]
pub struct Shock {
    pub capacity: f64,
    pub latency: f64,
}

/// Maps the observed latency and its concurrency to the next concurrency.
pub type Controller<'a> = dyn FnMut(f64, f64) -> f64 + 'a;

/// Requests that passed and failed in a trace.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    pub passed: f64,
    pub failed: f64,
}

impl Played {
    /// Passed requests per second.
    pub fn goodput(self) -> f64 {
        self.passed / STEPS as f64
    }

    /// Failed requests per second.
    pub fn refused(self) -> f64 {
        self.failed / STEPS as f64
    }

    pub fn limited(self) -> f64 {
        self.failed / (self.passed + self.failed)
    }

    fn add(&mut self, latency: f64, concurrency: f64) {
        if latency <= FAILS_ABOVE { self.passed += concurrency } else { self.failed += concurrency }
    }
}

/// The logarithm of the capacity. Concurrency above the capacity pulls it down.
pub struct Capacity(f64);

impl Default for Capacity {
    fn default() -> Self {
        Self(BASE.ln())
    }
}

impl Capacity {
    /// The capacity after one step with concurrency `k`.
    pub fn step(&mut self, k: f64, shock: &Shock) -> f64 {
        let stress = (k.ln() - self.0).max(0.0);
        let drift = BASE.ln() - 0.5 * stress;
        self.0 += THETA * (drift - self.0) + SIGMA * shock.capacity;
        self.0.exp()
    }
}

/// Plays a trace, starting at concurrency `start`.
pub fn play(trace: &[Shock], start: f64, controller: &mut Controller<'_>) -> Played {
    let (mut k, mut hidden) = (start, Capacity::default());
    let mut played = Played { passed: 0.0, failed: 0.0 };
    played.add(0.0, k);
    for shock in trace {
        let capacity = hidden.step(k, shock);
        let latency = (k / capacity).max(1.0) + shock.latency;
        k = controller(latency, k);
        played.add(latency, k);
    }
    played
}

/// Result of a controller that always uses exactly the unstressed capacity.
pub fn oracle(trace: &[Shock]) -> Played {
    let mut log_capacity = BASE.ln();
    let mut passed = BASE;
    for shock in trace {
        log_capacity += THETA * (BASE.ln() - log_capacity) + SIGMA * shock.capacity;
        passed += log_capacity.exp();
    }
    Played { passed, failed: 0.0 }
}

/// The result of [`source_aimd_controller`], from 1/s.
pub fn source_aimd(trace: &[Shock]) -> Played {
    play(trace, 1.0, &mut source_aimd_controller())
}

/// The source's own AIMD, on the time between arrivals: α 0.02, β 0.75, target 1.25 s, 1 to 40/s.
pub fn source_aimd_controller() -> impl FnMut(f64, f64) -> f64 {
    let mut interval = 1.0_f64;
    move |latency, _| {
        let near = latency <= 1.25;
        interval = if near { (interval - 0.02).max(0.025) } else { (interval / 0.75).min(1.0) };
        1.0 / interval
    }
}

/// gradient2 without the input smoothing that its publication added later.
pub fn bare_gradient2(trace: &[Shock]) -> Played {
    let (mut estimate, mut seen) = (1.0_f64, Vec::new());
    play(trace, 1.0, &mut |latency, _| {
        seen.push(latency);
        let last = &seen[seen.len().saturating_sub(100)..];
        let ideal = last.iter().copied().fold(f64::MAX, f64::min);
        let gradient = (2.0 * ideal / latency).clamp(0.5, 1.0);
        estimate = (estimate * gradient + estimate.sqrt()).clamp(1.0, 40.0);
        estimate.floor()
    })
}

/// The result of [`product_controller`], from 1 request in flight.
pub fn product(trace: &[Shock], law: AdaptiveAlgorithm) -> Played {
    play(trace, 1.0, &mut product_controller(law))
}

/// An algorithm of Sluicegate with limits from 1 to 40, started at 1. Each request in flight in a
/// step is one sample of the latency.
pub fn product_controller(law: AdaptiveAlgorithm) -> impl FnMut(f64, f64) -> f64 {
    let mut policy = AdaptiveLimit::new(1, Some(AdaptiveConfig::new(law, 1, 40)), 0);
    let mut now = Nanos::SECOND;
    move |latency, k| {
        let rtt = Nanos((latency.max(0.001) * 1e9) as u64);
        now = now.plus(rtt);
        let in_flight = k as u32;
        let sample =
            LatencySample { ended_at: now, rtt, in_flight, outcome: RequestOutcome::Success };
        (0..in_flight).for_each(|_| policy.record(&sample, u32::MAX));
        f64::from(policy.limit())
    }
}

/// The noise behind the source's table.
pub fn recorded() -> Vec<Shock> {
    let number = |text: Option<&str>| text.unwrap().parse().unwrap();
    let shock = |line: &str| {
        let mut fields = line.split(',').skip(1);
        Shock { capacity: number(fields.next()), latency: number(fields.next()) }
    };
    RECORDED.lines().skip(1).map(shock).collect()
}

/// Noise from a seed: `MT19937`, 53-bit uniforms, Marsaglia's polar method, capacity and latency
/// in turn. Seed 200 yields the recorded noise.
pub fn generated(seed: u32) -> Vec<Shock> {
    let mut twister = Twister::new(seed);
    let shock = |_| {
        let capacity = twister.normal();
        Shock { capacity, latency: NOISE * twister.normal() }
    };
    (1..STEPS).map(shock).collect()
}

/// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998.
struct Twister {
    state: [u32; 624],
    next: usize,
    spare: Option<f64>,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..624 {
            let last: u32 = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: 624, spare: None }
    }

    fn twist(&mut self) {
        for i in 0..624 {
            let y = self.state[i] & 0x8000_0000 | self.state[(i + 1) % 624] & 0x7fff_ffff;
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == 624 {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn uniform(&mut self) -> f64 {
        let (high, low) = (f64::from(self.word() >> 5), f64::from(self.word() >> 6));
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square < 1.0 && square != 0.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.spare = Some(factor * x);
                return factor * y;
            }
        }
    }
}

/// A mean and its standard error.
#[derive(Clone, Copy, Debug)]
pub struct Mean {
    pub mean: f64,
    pub error: f64,
}

pub fn mean(values: &[f64]) -> Mean {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (count - 1.0);
    Mean { mean, error: (variance / count).sqrt() }
}

/// The ratio of two means over the same traces, with its paired error.
pub fn ratio(ours: &[Played], theirs: &[Played]) -> Mean {
    let goodputs = |played: &[Played]| played.iter().map(|p| p.goodput()).collect::<Vec<_>>();
    let (ours, theirs) = (goodputs(ours), goodputs(theirs));
    let (above, below) = (mean(&ours).mean, mean(&theirs).mean);
    let residuals: Vec<_> = ours.iter().zip(&theirs).map(|(o, t)| o - above / below * t).collect();
    Mean { mean: above / below, error: mean(&residuals).error / below }
}
