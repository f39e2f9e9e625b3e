//! The phases of one simulated server, and the best static limit for each phase.

use sluicegate_kernel::concurrency::adaptive::AdaptiveLimit;

use super::server::{Phase, Result, Spread, run};

/// Static limits to try, relative to the number of workers.
const SEARCH: [f64; 9] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0];

/// Parameters of a simulated server.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub workers: f64,
    /// Mean service time in seconds.
    pub service: f64,
    pub spread: Spread,
    pub seed: u64,
}

impl Scene {
    /// Cold start, capacity × 4 and ÷ 4, drift up and down, cache cold and cache warm.
    pub fn phases(&self) -> [Phase; 7] {
        let (w, service) = (self.workers, self.service);
        let phase = |name, first, last, service: f64| {
            let recovery = f64::max(2.0, 12.0 * service);
            let length = recovery + f64::max(200.0 * service, 1.0);
            Phase { name, workers: (first, last), service, recovery, length }
        };
        [
            phase("cold start", w, w, service),
            phase("x 4", 4.0 * w, 4.0 * w, service),
            phase("/ 4", w, w, service),
            phase("drift up", w, 2.0 * w, service),
            phase("drift down", 2.0 * w, w, service),
            phase("cache cold", w, w, 3.0 * service),
            phase("cache warm", w, w, service),
        ]
    }

    /// Results of `policy` in each phase.
    pub fn run(&self, policy: AdaptiveLimit) -> Vec<Result> {
        run(policy, &self.phases(), self.spread, self.seed)
    }

    /// Results of the best static limit in each phase: the smallest limit with 99 % of the highest
    /// goodput.
    pub fn best(&self) -> Vec<Result> {
        let ceiling = |part: f64| AdaptiveLimit::new((self.workers * part) as u32, None, 0);
        let tried: Vec<_> = SEARCH.iter().map(|part| self.run(ceiling(*part))).collect();
        (0..self.phases().len())
            .map(|phase| {
                let most = tried.iter().map(|tried| tried[phase].goodput).fold(0.0, f64::max);
                let good = |tried: &&Vec<Result>| 0.99 * most <= tried[phase].goodput;
                tried.iter().find(good).map_or(tried[0][phase], |best| best[phase])
            })
            .collect()
    }
}

/// Checks the bounds: at least 0.95 of the best goodput, and at most twice its p99.
pub fn keeps(got: &Result, best: &Result) -> bool {
    0.95 <= got.goodput / best.goodput && got.p99 / best.p99 <= 2.0
}
