//! Computes the overshoot of a fleet from its log, over every interval.

use sluicegate_kernel::rate::limit::Tick;
use sluicegate_kernel::units::Nanos;

use super::store::Counted;

/// Hits allowed at one instant of true time.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub at: Nanos,
    pub hits: u64,
    pub outstanding: u64,
    /// Outstanding hits at the start of the window that contains `at`.
    pub outstanding_at_window_start: u64,
}

/// The largest excess of any interval, in hits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overshoot {
    /// The excess above the limit.
    pub above_limit: u64,
    /// The excess above the limit plus the hits outstanding at the start of the interval.
    pub above_bound: u64,
}

/// Returns the largest overshoot of `log`, which is sorted by time.
pub fn overshoot(counted: &Counted, log: &[Allowed]) -> Overshoot {
    match counted {
        Counted::Gcra(limit, _) => {
            let (worth, burst) = (limit.refill_rate(), limit.burst());
            let limit_hits = move |from: u64, to: u64| {
                let earned = u128::from(to - from) * u128::from(worth.hits);
                Some(burst + u32::try_from(earned / u128::from(worth.ticks.get())).unwrap())
            };
            over_intervals(log, limit.tick(), limit_hits)
        }
        Counted::Log(limit, _) => {
            let period = Tick::Micro.floor(limit.period());
            let limit_hits =
                move |from: u64, to: u64| (to - from < period).then_some(limit.limit());
            over_intervals(log, Tick::Micro, limit_hits)
        }
        Counted::Sliding(limit, _) => {
            let (period, most) = (limit.refill_rate().ticks.get(), limit.limit());
            let limit_hits = move |from: u64, to: u64| {
                let slid = u128::from(most) * u128::from(to - from) / u128::from(period);
                (to - from <= period).then(|| most + u32::try_from(slid).unwrap())
            };
            over_intervals(log, limit.tick(), limit_hits).max(over_windows(counted, log))
        }
        Counted::Fixed(..) | Counted::Calendar(..) => over_windows(counted, log),
    }
}

impl Overshoot {
    fn of(allowed: u64, limit_hits: u64, outstanding: u64) -> Self {
        let above_limit = allowed.saturating_sub(limit_hits);
        Self { above_limit, above_bound: above_limit.saturating_sub(outstanding) }
    }

    fn max(self, other: Self) -> Self {
        Self {
            above_limit: self.above_limit.max(other.above_limit),
            above_bound: self.above_bound.max(other.above_bound),
        }
    }
}

fn over_intervals(
    log: &[Allowed],
    tick: Tick,
    limit_hits: impl Fn(u64, u64) -> Option<u32>,
) -> Overshoot {
    let instants = joined(log, |allowed| tick.floor(allowed.at), |allowed| allowed.outstanding);
    let mut worst = Overshoot::default();
    for (i, (from, _, outstanding)) in instants.iter().enumerate() {
        let mut sum = 0;
        for (to, hits, _) in &instants[i..] {
            let Some(limit_hits) = limit_hits(*from, *to) else { break };
            sum += hits;
            worst = worst.max(Overshoot::of(sum, u64::from(limit_hits), *outstanding));
        }
    }
    worst
}

fn over_windows(counted: &Counted, log: &[Allowed]) -> Overshoot {
    let window = |allowed: &Allowed| counted.window(allowed.at);
    let windows = joined(log, window, |allowed| allowed.outstanding_at_window_start);
    windows.iter().fold(Overshoot::default(), |worst, (_, hits, outstanding)| {
        worst.max(Overshoot::of(*hits, counted.most(), *outstanding))
    })
}

/// Merges entries of the same instant into (instant, hits, outstanding).
fn joined(
    log: &[Allowed],
    instant: impl Fn(&Allowed) -> u64,
    outstanding: impl Fn(&Allowed) -> u64,
) -> Vec<(u64, u64, u64)> {
    let mut instants: Vec<(u64, u64, u64)> = Vec::new();
    for allowed in log {
        let at = instant(allowed);
        match instants.last_mut() {
            Some((last, sum, most)) if *last == at => {
                *sum += allowed.hits;
                *most = outstanding(allowed).max(*most);
            }
            _ => instants.push((at, allowed.hits, outstanding(allowed))),
        }
    }
    instants
}
